"""The search among plans: the best of all combinations of what a job leaves open, each answered as `fit` answers it.

Which combinations are answered is the matter of `vramplan/answers/walk.py`; here stand the plans that win.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vramplan.answers.asked import AskedCombinations, is_plan
from vramplan.answers.candidates import COMPLEXITY, DEGREES, PLAIN, families_of
from vramplan.answers.compared import Keys
from vramplan.answers.walk import Walk, rate_of
from vramplan.errors import UsageError
from vramplan.planner.ladder import CLEARLY
from vramplan.planner.time.rates import rates_of
from vramplan.results.plans import Bought, Plan, Search
from vramplan.values.job import ResolvedJob

MOST_COMBINATIONS = 1_000_000
CHECKPOINTING, NOTHING, FULL = "checkpointing", "none", "fp32"
STEPS = "gradient-accumulation-steps"
WITHIN = 0.10  # of the rate of the fastest plan, in which the simple one lies
MOST_PLANS = 200  # of those that fit, in the answer
SETTLED = 8  # of the fastest that are answered as `fit` does; beside them the simple one and the front


def searched(
    axes: Mapping[str, tuple[str, ...]],
    devices: int,
    keys_of: Callable[[Mapping[str, str]], Keys],
    flags_of: Callable[[Mapping[str, str]], str],
    profiles: Sequence[Path] = (),
    watch: Callable[[int, int, int], None] = lambda done, of, found: None,
    within: float = WITHIN,
    processes: int = 1,
) -> Search:
    """Search every combination of `axes` on `devices`. `watch` is told how many of how many are done, and how many of
    them fit.

    `within`: the part of the rate of the fastest plan by which others may be slower, at least a tenth; what is slower
    is not looked for. So many `processes` simulate the plans that win at a time. Whoever interrupts it gets what was
    found so far. Raises UsageError for too many combinations.
    """
    asked = AskedCombinations(axes, devices, keys_of, profiles)
    families = list(families_of(axes, devices))
    walk = Walk(asked, families, max(within, WITHIN), watch)
    if walk.combinations > MOST_COMBINATIONS:
        hint = "pin some of the choices, or exclude values with --exclude"
        raise UsageError(
            f"{walk.combinations:,} combinations are more than {MOST_COMBINATIONS:,}", key="plan", hint=hint
        )
    complete = True
    ladder: tuple[Bought, ...] = ()
    with asked.session.open():
        try:
            _walk_through(walk, asked, flags_of, processes)
        except KeyboardInterrupt:
            complete = False
        found = sorted(walk.found, key=_rank)
        watch(walk.combinations, walk.combinations, len(found))
        least = rate_of(found[0]) * (1 - walk.within) if found else 0.0
        found = [plan for plan in found if rate_of(plan) >= least]
        plans = _with_smaller(found, [plan for plan in walk.smaller if rate_of(plan) >= least])
        try:
            if complete:
                _settle(plans, asked, _front, processes)
                plans = _each_once(plans)
            ladder = _ladder(plans[_fastest(plans)], asked) if plans else ()
        except KeyboardInterrupt:
            complete = False
    nearest = walk.nearest
    if nearest is not None:
        nearest = nearest._replace(is_estimated=asked.is_estimated(nearest.cell))
    front = _front(plans)
    kept = {*range(MOST_PLANS), *front, *(() if not plans else (_fastest(plans), _simplest(plans)))}
    places = [place for place in range(len(plans)) if place in kept]
    at = {place: number for number, place in enumerate(places)}
    return Search(
        axes=dict(axes),
        combinations=walk.combinations,
        candidates=sum(len(family) * asked.batches(family) for family in families),
        refused=walk.refused,
        too_large=walk.too_large,
        over_limits=walk.over_limits,
        slower=walk.combinations - walk.refused - walk.too_large - walk.over_limits - len(found),
        within=walk.within,
        complete=complete,
        fits=len(found),
        plans=tuple(plans[place] for place in places),
        fastest=at[_fastest(plans)] if plans else None,
        simplest=at[_simplest(plans)] if plans else None,
        front=tuple(at[place] for place in front),
        ladder=ladder,
        nearest=None if plans else nearest,
    )


def check_ranked(job: ResolvedJob) -> None:
    """Raise UsageError where plans of a job cannot be ranked, as the rates of its GPU are not known, or held to a
    budget, as its price is not.
    """
    if rates_of(job) is None:
        hint = "name a GPU (`vramplan gpus`), or a profile with its peak rates; `vramplan fit` needs none"
        message = f"plans are ranked by their rate, and the rates of {job.gpu.name} are not known"
        raise UsageError(message, key="--gpu", hint=hint)
    if job.length.budget_usd is not None and job.length.price is None:
        message = f"no plan can be held to it, as no price of {job.gpu.name} is known"
        raise UsageError(message, key="--budget", hint="the USD of a GPU hour, as in --price 2.50")


def _walk_through(
    walk: Walk, asked: AskedCombinations, flags_of: Callable[[Mapping[str, str]], str], processes: int
) -> None:
    """Look at all combinations that may be looked for, and answer those that a person looks at as `fit` does."""
    walk.begin()
    before = None
    while before != len(walk.found):  # plans that do not fit after all let slower ones in
        before = len(walk.found)
        walk.go(flags_of)
        walk.found.sort(key=_rank)
        walk.too_large += _settle(walk.found, asked, _shown, processes)


def _with_smaller(found: list[Plan], smaller: Sequence[Plan]) -> list[Plan]:
    """The plans, and those with smaller micro-batches that are on the front."""
    every = sorted(
        [*((plan, True) for plan in found), *((plan, False) for plan in smaller)], key=lambda one: _rank(one[0])
    )
    front = set(_front([plan for plan, _ in every]))
    return [plan for place, (plan, is_largest) in enumerate(every) if is_largest or place in front]


def _rank(plan: Plan) -> tuple[float, int, str]:
    return -rate_of(plan), plan.complexity, plan.flags


def _shown(found: Sequence[Plan]) -> tuple[int, ...]:
    """Places of the plans that a person looks at first."""
    return (*range(min(SETTLED, len(found))), _fastest(found), _simplest(found), *_front(found)[-SETTLED:])


def _settle(
    found: list[Plan],
    asked: AskedCombinations,
    shown: Callable[[Sequence[Plan]], tuple[int, ...]],
    processes: int,
) -> int:
    """Answer what is shown as `fit` does, which may simulate the allocator, and put it where it belongs then.

    The others keep their estimates. The result is how many do not fit after all.
    """
    too_large = 0
    found[:] = [plan._replace(is_estimated=asked.is_estimated(plan.cell)) for plan in found]
    while found:
        open_ones = dict.fromkeys(place for place in shown(found) if not asked.is_settled(found[place].cell))
        if not open_ones:
            break
        runs = [(found[place].cell, _is_pinned(found[place])) for place in open_ones]
        asked.look_ahead(runs[:processes], processes)
        place = next(iter(open_ones))
        plan = found[place]  # which stays there where somebody interrupts
        cell = asked.settled(plan.cell, pinned=_is_pinned(plan))
        del found[place]
        if cell is not None and is_plan(cell):
            found.append(plan._replace(cell=cell, is_estimated=False))
            found.sort(key=_rank)
        else:
            too_large += 1
    return too_large


def _each_once(plans: Sequence[Plan]) -> list[Plan]:
    """The plans without a pinned micro-batch that is the one that is chosen without it."""
    chosen = {_run_of(plan) for plan in plans if not _is_pinned(plan)}
    return [plan for plan in plans if not _is_pinned(plan) or _run_of(plan) not in chosen]


def _run_of(plan: Plan) -> tuple[object, ...]:
    cell = plan.cell
    return *sorted(cell.options.items()), cell.micro_batch_size, cell.gradient_accumulation_steps


def _is_pinned(plan: Plan) -> bool:
    """Whether its options name the micro-batch."""
    return "--micro-batch" in plan.flags


def _fastest(plans: Sequence[Plan]) -> int:
    """The place of the least complex one among those that no rate can tell from the first: it is not clearly faster."""
    return _least_complex(plans, rate_of(plans[0]) / CLEARLY)


def _simplest(plans: Sequence[Plan]) -> int:
    """The place of the least complex one among those that are nearly as fast as the first."""
    return _least_complex(plans, (1 - WITHIN) * rate_of(plans[0]))


def _least_complex(plans: Sequence[Plan], least_rate: float) -> int:
    near = [place for place, plan in enumerate(plans) if rate_of(plan) >= least_rate]
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


def _ladder(winner: Plan, asked: AskedCombinations) -> tuple[Bought, ...]:
    """What mixed precision, accumulation and each choice of the fastest plan buys, one after another.

    The first three steps are those that texts take on one machine: mixed precision, accumulation, checkpointing.
    """
    cell = winner.cell
    known = {**COMPLEXITY, **DEGREES}
    so_far = {option: values[0] for option, values in asked.axes.items() if option not in known}
    job = asked.found_job(cell)
    bare = {}
    if job.precision != FULL and "precision" not in so_far:
        bare["precision"] = FULL
    if job.gradient_accumulation_steps is None and STEPS not in so_far:
        bare[STEPS] = "1"
    added = [
        (option, value) for option, value in cell.options.items() if value != PLAIN and value != so_far.get(option)
    ]
    added.sort(key=lambda one: one[0] != CHECKPOINTING)
    if CHECKPOINTING in cell.options:
        so_far[CHECKPOINTING] = NOTHING
    rungs = [("plain", {**so_far, **bare})]
    for option, words in (("precision", f"--precision {job.precision}"), (STEPS, "accumulation")):
        if bare.pop(option, None) is not None:
            rungs.append((words, {**so_far, **bare}))
    for option, value in added:
        if so_far.get(option) != value:
            so_far = {**so_far, option: value}
            rungs.append((f"--{option} {value}", so_far))
    found = [(words, asked.rung(one)) for words, one in rungs]
    if _is_pinned(winner) and found[-1][1] is not None and found[-1][1].micro_batch_size != cell.micro_batch_size:
        found.append((f"--micro-batch {cell.micro_batch_size}", cell))
    elif found[-1][1] is not None:
        found[-1] = found[-1][0], cell  # the plan itself, whose allocator may have been simulated
    steps: list[Bought] = []
    old = None
    for words, at in found:
        rate = None if at is None or not at.is_possible else at.samples_per_second
        gain = None if rate is None or not old else round(rate / old, 6)
        verdict, size = (None, None) if at is None else (at.verdict, at.device_bytes)
        steps.append(Bought(words, verdict, size, rate, gain))
        old = rate
    return tuple(steps)
