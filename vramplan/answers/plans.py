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
from vramplan.results.compared import Cell
from vramplan.results.plans import Bought, Plan, Search
from vramplan.values.textbook import TextbookJob

PLAIN = "-"  # the value of a choice that leaves the option out
SHARDINGS = ("ddp", "fsdp", "fsdp-grad-op", "zero1", "zero2", "zero3", "distributed-optimizer")
CHECKPOINTS = ("none", "selective-op", "selective", "sqrt", "full")
LOSSES = (PLAIN, "fused")
OFFLOADS = (PLAIN, "optimizer")
COMPILED = (PLAIN, "true")
MOST_TENSOR = 8  # tensor parallelism stays inside a node
MOST_CANDIDATES = 20_000
WITHIN = 0.10  # of the rate of the fastest plan, in which the simple one lies
MOST_PLANS = 200  # of those that fit, in the answer

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
    "tensor": {},
    "context": {},
    "pipeline": {},
}
"""How much each choice asks of a person: 0 is the plain script, 1 a switch, 2 code or another program. A degree of
tensor or context parallelism above 1 counts 2, one of a pipeline 3."""
DEGREES = {"tensor": 2, "context": 2, "pipeline": 3}


def open_axes(devices: int, splits: bool) -> dict[str, tuple[str, ...]]:
    """The choices that are open for so many devices, by option. `splits`: the program splits models over devices."""
    powers = [2**power for power in range(devices.bit_length()) if devices % 2**power == 0]
    degrees = tuple(PLAIN if one == 1 else str(one) for one in powers)
    few = tuple(one for one in degrees if one == PLAIN or int(one) <= MOST_TENSOR)
    axes: dict[str, tuple[str, ...]] = {}
    if splits and devices > 1:
        axes |= {"tensor": few, "pipeline": degrees, "context": few}
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
    session, prices, catalog = Session(), Prices(profiles), Catalog(profiles)
    found: list[Plan] = []
    refused = too_large = 0
    complete = True
    with session.open():
        try:
            for number, one in enumerate(combinations):
                watch(number, len(combinations))
                cell = _answered(one, keys_of, session, prices, catalog)
                if cell is None:
                    refused += 1
                elif cell.is_possible and cell.samples_per_second is not None:
                    found.append(Plan(cell, complexity(one), flags_of(one)))
                else:
                    too_large += 1
        except KeyboardInterrupt:
            complete = False
        found.sort(key=lambda plan: (-(plan.cell.samples_per_second or 0), plan.complexity, plan.flags))
        ladder = _ladder(found, keys_of, session, prices, catalog) if found else ()
    plans = tuple(found[:MOST_PLANS])
    return Search(
        axes=dict(axes),
        candidates=len(combinations),
        refused=refused,
        too_large=too_large,
        complete=complete,
        plans=plans,
        fastest=0 if plans else None,
        simplest=_simplest(plans),
        front=_front(plans),
        ladder=ladder,
    )


def complexity(one: Mapping[str, str]) -> int:
    """What the choices of a plan ask of a person."""
    points = 0
    for option, value in one.items():
        if value != PLAIN:
            points += DEGREES.get(option, 0) or COMPLEXITY[option].get(value.partition(":")[0], 1)
    return points


def _combinations(axes: Mapping[str, tuple[str, ...]], devices: int) -> Iterator[dict[str, str]]:
    """Those whose degrees divide the devices; a choice that is plain is left out."""
    for values in product(*axes.values()):
        one = dict(zip(axes, values, strict=True))
        replica = 1
        for degree in DEGREES:
            replica *= int(one.get(degree, PLAIN).replace(PLAIN, "1"))
        shared = one.get("sharding", PLAIN) != PLAIN
        if devices % replica == 0 and ("sharding" not in one or shared is (replica < devices)):
            yield one


def _answered(
    one: Mapping[str, str],
    keys_of: Callable[[Mapping[str, str]], Keys],
    session: Session,
    prices: Prices,
    catalog: Catalog,
) -> Cell | None:
    """The run of a combination; None if it is refused."""
    try:
        job = build_any_job(keys_of(one), catalog=catalog)
        if isinstance(job, TextbookJob):
            raise UsageError("equations have no time to compare", key="runtime", hint="another runtime")
        return cell_of(one, session.brief(job), prices)
    except InputError:
        return None


def _simplest(plans: Sequence[Plan]) -> int | None:
    if not plans:
        return None
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


def _ladder(
    found: Sequence[Plan],
    keys_of: Callable[[Mapping[str, str]], Keys],
    session: Session,
    prices: Prices,
    catalog: Catalog,
) -> tuple[Bought, ...]:
    """The choices of the fastest plan one after another, and what each buys."""
    winner = found[0].cell.options
    steps: list[Bought] = []
    so_far: dict[str, str] = {}
    before: Cell | None = None
    for option, value in [("", PLAIN), *((key, value) for key, value in winner.items() if value != PLAIN)]:
        if option:
            so_far[option] = value
        cell = _answered(so_far, keys_of, session, prices, catalog)
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
