"""The search among plans: every combination of what a job leaves open, each answered as `fit` answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from vramplan.answers.compared import Keys, Prices, cell_of
from vramplan.answers.session import Session
from vramplan.errors import InputError, UsageError
from vramplan.job import build_any_job
from vramplan.job.lookup import Catalog
from vramplan.planner.floor import floor_of
from vramplan.results.compared import Cell
from vramplan.results.plans import Bought, Plan, Search
from vramplan.values.job import Job
from vramplan.values.textbook import TextbookJob

PLAIN = "-"  # the value of a choice that leaves the option out
SHARDINGS = ("ddp", "fsdp", "fsdp-grad-op", "zero1", "zero2", "zero3", "distributed-optimizer")
CHECKPOINTS = ("none", "selective-op", "selective", "sqrt", "full")
LOSSES = (PLAIN, "fused")
OFFLOADS = (PLAIN, "optimizer")
COMPILED = (PLAIN, "true")
MOST_TENSOR = 8  # tensor parallelism stays inside a node
MOST_CANDIDATES = 500_000
WITHIN = 0.10  # of the rate of the fastest plan, in which the simple one lies
REFUSED, TOO_LARGE = "refused", "too large"
NO_STATES = ("checkpointing", "loss")  # choices that change nothing of what is alive during the whole iteration
MOST_PLANS = 200  # of those that fit, in the answer
SETTLED = (
    8  # of the fastest whose allocator is simulated, where the program's is; beside them the simple one and the front
)

COMPLEXITY = {
    "sharding": {
        "ddp": 0,
        "fsdp": 1,
        "fsdp-grad-op": 1,
        "zero1": 1,
        "zero2": 1,
        "zero3": 2,
        "distributed-optimizer": 1,
    },
    "checkpointing": {"none": 0, "full": 1, "selective": 1, "selective-op": 2, "sqrt": 2},
    "loss": {"fused": 1},
    "offload": {"optimizer": 2},
    "compile": {"true": 1},
}
"""How much each choice asks of a person: 0 is the plain script, 1 a switch, 2 code or another program. A degree of
tensor, context or expert parallelism above 1 counts 2, one of a pipeline 3."""
DEGREES = {"tensor": 2, "context": 2, "pipeline": 3, "expert": 2}
SPLITS = ("tensor", "pipeline", "context")  # a replica of the model has so many devices
EXPERT = "expert"  # within the replicas


def open_axes(devices: int, *, splits: bool, experts: int = 0) -> dict[str, tuple[str, ...]]:
    """The choices that are open for so many devices, by option.

    `splits`: the program splits models over devices. `experts`: those of a block of the model.
    """
    powers = [2**power for power in range(devices.bit_length()) if devices % 2**power == 0]
    degrees = tuple(PLAIN if one == 1 else str(one) for one in powers)
    few = tuple(one for one in degrees if one == PLAIN or int(one) <= MOST_TENSOR)
    axes: dict[str, tuple[str, ...]] = {}
    if splits and devices > 1:
        axes |= {"tensor": few, "pipeline": degrees, "context": few}
        if experts:
            axes[EXPERT] = tuple(one for one in degrees if one == PLAIN or experts % int(one) == 0)
    if devices > 1:
        axes["sharding"] = SHARDINGS if not splits else (PLAIN, *SHARDINGS)
    return axes | {"checkpointing": CHECKPOINTS, "loss": LOSSES, "compile": COMPILED, "offload": OFFLOADS}


def searched(
    axes: Mapping[str, tuple[str, ...]],
    devices: int,
    keys_of: Callable[[Mapping[str, str]], Keys],
    flags_of: Callable[[Mapping[str, str]], str],
    profiles: Sequence[Path] = (),
    watch: Callable[[int, int], None] = lambda done, of: None,
) -> Search:
    """Look at every combination of `axes` on `devices`. `watch` is told how many of how many are done.

    Whoever interrupts it gets what was found so far. Raises UsageError for too many combinations.
    """
    combinations = list(_combinations(axes, devices))
    if len(combinations) > MOST_CANDIDATES:
        hint = "pin some of the choices, or exclude values with --exclude"
        raise UsageError(f"{len(combinations):,} plans are more than {MOST_CANDIDATES:,}", key="plan", hint=hint)
    asked = Asked(axes, devices, keys_of, profiles)
    found: list[Plan] = []
    refused = too_large = 0
    complete = True
    with asked.session.open():
        try:
            for number, one in enumerate(combinations):
                watch(number, len(combinations))
                cell = asked.cell(one)
                if isinstance(cell, str):
                    refused += cell == REFUSED
                    too_large += cell == TOO_LARGE
                elif cell.is_possible and cell.samples_per_second is not None:
                    found.append(Plan(cell, complexity(one, axes), flags_of(one)))
                else:
                    too_large += 1
        except KeyboardInterrupt:
            complete = False
        found.sort(key=_rank)
        if complete:
            try:
                too_large += _settle(found, asked)
            except KeyboardInterrupt:
                complete = False
        ladder = _ladder(found[0], asked) if found else ()
    front = _front(found)
    kept = {*range(MOST_PLANS), *front, *(() if not found else (_simplest(found),))}
    places = [place for place in range(len(found)) if place in kept]
    at = {place: number for number, place in enumerate(places)}
    return Search(
        axes=dict(axes),
        candidates=len(combinations),
        refused=refused,
        too_large=too_large,
        complete=complete,
        fits=len(found),
        plans=tuple(found[place] for place in places),
        fastest=0 if found else None,
        simplest=at[_simplest(found)] if found else None,
        front=tuple(at[place] for place in front),
        ladder=ladder,
    )


class Asked:
    """Answers about combinations, and what was learned of refusals.

    Most combinations of a large search are refused, each for a few of its choices: whatever else is chosen beside
    these, the program cannot run it. Which they are is found once, by trying every other value of each.
    """

    def __init__(
        self,
        axes: Mapping[str, tuple[str, ...]],
        devices: int,
        keys_of: Callable[[Mapping[str, str]], Keys],
        profiles: Sequence[Path],
    ) -> None:
        self.axes, self.devices, self.keys_of = axes, devices, keys_of
        self.session, self.prices, self.catalog = Session(), Prices(profiles), Catalog(profiles)
        self.too_large: set[tuple[str, ...]] = set()  # the choices that decide the states, where these do not fit
        self.refusals: dict[tuple[str, ...], set[tuple[str, ...]]] = {}  # by the choices that they hang on
        self.simulated: dict[tuple[str, ...], Job] = {}  # by all choices: whose allocator was estimated up to now

    def cell(self, one: Mapping[str, str]) -> Cell | str:
        """The run of a combination, or a word: it is refused, or certainly too large."""
        for options, values in self.refusals.items():
            if tuple([one[option] for option in options]) in values:
                return REFUSED
        states = tuple([value for option, value in one.items() if option not in NO_STATES])
        if states in self.too_large:
            return TOO_LARGE
        job = self._job(one)
        if isinstance(job, str):
            self._learn(one, job)
            return REFUSED
        try:
            floor = floor_of(job, self.session.replays)
        except InputError:
            return REFUSED
        if floor is not None and floor.peak_bytes > floor.usable_bytes:
            if floor.states_bytes > floor.usable_bytes:
                self.too_large.add(states)
            return TOO_LARGE
        if job.allocator is not None:  # a simulation takes as long as a hundred estimates
            self.simulated[tuple(one.values())] = job
        return self._answered(one, job._replace(allocator=None)) or REFUSED

    def is_estimated(self, cell: Cell) -> bool:
        """Whether the allocator of a run was estimated, although the program's is simulated."""
        return tuple(cell.options.values()) in self.simulated

    def settled(self, cell: Cell) -> Cell | None:
        """The same with its allocator simulated: at the batch that the estimate chose, else at the best of its own."""
        job = self.simulated.pop(tuple(cell.options.values()))
        steps = cell.gradient_accumulation_steps
        pinned = job._replace(micro_batch_size=cell.micro_batch_size, gradient_accumulation_steps=steps)
        near = self._answered(cell.options, pinned)
        return near if near is not None and near.is_possible else self._answered(cell.options, job)

    def rung(self, one: Mapping[str, str]) -> Cell | None:
        """The same of some of the choices, with the others as they are without an option."""
        job = self._job(one)
        return None if isinstance(job, str) else self._answered(one, job)

    def _answered(self, one: Mapping[str, str], job: Job) -> Cell | None:
        try:
            return cell_of(one, self.session.brief(job), self.prices)
        except InputError:
            return None

    def _job(self, one: Mapping[str, str]) -> Job | str:
        """The job, or why there is none."""
        try:
            job = build_any_job(self.keys_of(one), catalog=self.catalog)
        except InputError as error:
            return str(error.problems[0])
        return "equations have no time to compare" if isinstance(job, TextbookJob) else job

    def _learn(self, one: Mapping[str, str], why: str) -> None:
        """Remember on which choices a refusal hangs: those of which another value is refused for another reason."""
        hangs_on = tuple(option for option in self.axes if not self._is_idle(option, one, why))
        self.refusals.setdefault(hangs_on, set()).add(tuple(one[option] for option in hangs_on))

    def _is_idle(self, option: str, one: Mapping[str, str], why: str) -> bool:
        others = [{**one, option: value} for value in self.axes[option] if value != one[option]]
        possible = [other for other in others if _is_layout(other, self.devices)]
        return bool(possible) and all(self._job(other) == why for other in possible)


def complexity(one: Mapping[str, str], axes: Mapping[str, tuple[str, ...]]) -> int:
    """What the choices of a plan ask of a person. Of a list that was given the first value is what they have."""
    points = 0
    for option, value in one.items():
        if option in DEGREES:
            points += DEGREES[option] if value != PLAIN else 0
        elif option in COMPLEXITY:
            points += COMPLEXITY[option].get(value.partition(":")[0], 1) if value != PLAIN else 0
        else:
            points += value != axes[option][0]
    return points


def _combinations(axes: Mapping[str, tuple[str, ...]], devices: int) -> Iterator[dict[str, str]]:
    """Those whose degrees divide the devices; a choice that is plain is left out."""
    for values in product(*axes.values()):
        one = dict(zip(axes, values, strict=True))
        if _is_layout(one, devices):
            yield one


def _is_layout(one: Mapping[str, str], devices: int) -> bool:
    """Whether the degrees divide the devices, and states are shared exactly where there is whom to share them with."""
    replica = 1
    for degree in SPLITS:
        replica *= int(one.get(degree, PLAIN).replace(PLAIN, "1"))
    if devices % replica or devices // replica % int(one.get(EXPERT, PLAIN).replace(PLAIN, "1")):
        return False
    return "sharding" not in one or (one["sharding"] != PLAIN) is (replica < devices)


def _rank(plan: Plan) -> tuple[float, int, str]:
    return -(plan.cell.samples_per_second or 0), plan.complexity, plan.flags


def _settle(found: list[Plan], asked: Asked) -> int:
    """Simulate the allocator of what a person looks at, and put it where it belongs then.

    Those further down keep their estimates, and say so. The result is how many do not fit after all.
    """
    too_large = 0
    found[:] = [plan._replace(is_estimated=asked.is_estimated(plan.cell)) for plan in found]
    while found:
        places = (*range(min(SETTLED, len(found))), _simplest(found), *_front(found)[-SETTLED:])
        place = next((place for place in places if found[place].is_estimated), None)
        if place is None:
            break
        plan = found.pop(place)
        cell = asked.settled(plan.cell)
        if cell is not None and cell.is_possible and cell.samples_per_second is not None:
            found.append(plan._replace(cell=cell, is_estimated=False))
            found.sort(key=_rank)
        else:
            too_large += 1
    return too_large


def _simplest(plans: Sequence[Plan]) -> int:
    """The place of the least complex one among those that are nearly as fast as the first."""
    most = plans[0].cell.samples_per_second or 0
    near = [place for place, plan in enumerate(plans) if (plan.cell.samples_per_second or 0) >= (1 - WITHIN) * most]
    return min(near, key=lambda place: (plans[place].complexity, place))


def _front(plans: Sequence[Plan]) -> tuple[int, ...]:
    """Places of the plans that no other beats in both memory and rate, the smallest memory first."""
    front: list[int] = []
    least: int | None = None
    for place, plan in enumerate(plans):  # the fastest first: each must need less than all before it
        size = plan.cell.device_bytes or 0
        if least is None or size < least:
            front.append(place)
            least = size
    return tuple(reversed(front))


def _ladder(winner: Plan, asked: Asked) -> tuple[Bought, ...]:
    """The choices of the fastest plan one after another, and what each buys."""
    steps: list[Bought] = []
    known = {**COMPLEXITY, **DEGREES}
    so_far = {option: values[0] for option, values in asked.axes.items() if option not in known}
    before: Cell | None = None
    choices = winner.cell.options.items()
    added = [(option, value) for option, value in choices if value != PLAIN and value != so_far.get(option)]
    for option, value in (("", PLAIN), *added):
        if option:
            so_far[option] = value
        cell = asked.rung(so_far)
        rate = None if cell is None or not cell.is_possible else cell.samples_per_second
        old = None if before is None or not before.is_possible else before.samples_per_second
        gain = None if rate is None or not old else round(rate / old, 6)
        words = f"--{option} {value}" if option else "plain"
        steps.append(
            Bought(
                words, None if cell is None else cell.verdict, None if cell is None else cell.device_bytes, rate, gain
            )
        )
        before = cell
    return tuple(steps)
