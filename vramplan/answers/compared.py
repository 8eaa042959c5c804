"""Runs side by side: every combination of the values of some options, and from one device to many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from vramplan.answers.brief import Brief
from vramplan.answers.processes import done
from vramplan.answers.session import Session
from vramplan.catalog.prices import rents_of
from vramplan.errors import InputError, UsageError
from vramplan.job import JobEntry
from vramplan.job.lookup import Catalog
from vramplan.job.several import Jobs
from vramplan.planner.setups import iteration_of
from vramplan.results import FITS
from vramplan.results.compared import Cell, Comparison
from vramplan.values.job import ResolvedJob
from vramplan.values.textbook import TextbookJob

T = TypeVar("T")

MOST_CELLS = 10_000
ITERATIONS_OF_SEVERAL = 32  # fewer are done before a second process has begun
OF_NO_ITERATION = ("gpu", "micro_batch_size")  # keys that seldom change what is replayed
PARTS_OF_EACH = 4  # of each process, so that none waits long for the last
WEEKS_ALONE = 14 * 86400.0  # seconds after which texts leave one device
WORTH_IT = 0.8  # of the rate of a device: below, the next devices mostly wait for each other

Keys = dict[str, Any]


def compared(
    axes: Mapping[str, Sequence[str]],
    keys_of: Callable[[Mapping[str, str]], Keys],
    profiles: Sequence[Path] = (),
    processes: int = 1,
) -> Comparison:
    """Every combination of the values of `axes`, the last of which varies fastest.

    `keys_of` makes the keys of a job of a combination. So many `processes` answer at a time. Raises UsageError for too
    many combinations.
    """
    number = prod(len(values) for values in axes.values())
    if number > MOST_CELLS:
        hint = "compare fewer values at a time"
        raise UsageError(f"{number:,} combinations are more than {MOST_CELLS:,}", key="compare", hint=hint)
    names = tuple(axes)
    combinations = [dict(zip(names, values, strict=True)) for values in product(*axes.values())]
    return _ranked(names, _cells(combinations, keys_of, profiles, processes))


def compared_jobs(entries: Sequence[JobEntry], profiles: Sequence[Path] = ()) -> Comparison:
    """The jobs of a file, a matrix as one job for each combination."""
    session, prices = Session(), Prices(profiles)
    cells = []
    with session.open():
        for entry in entries:
            one = {"job": entry.name}
            if isinstance(entry.job, TextbookJob):
                cells.append(_refused(one, "equations have no time to compare"))
            elif entry.job is None:
                cells.append(_refused(one, str(entry.problems[0])))
            else:
                cells.append(_answered(one, entry.job, session, prices))
    return _ranked(("job",), tuple(cells))


def _refused(one: Mapping[str, str], why: str) -> Cell:
    return Cell(one, None, why, *[None] * 18)


def scaled(
    counts: Sequence[int], keys_of: Callable[[Mapping[str, str]], Keys], profiles: Sequence[Path] = ()
) -> Comparison:
    """The same job on more and more devices: what each adds, and where to stop."""
    found = compared({"gpus": [str(count) for count in counts]}, keys_of, profiles)
    first = next((cell for cell in found.cells if cell.is_possible and cell.samples_per_second), None)
    cells = []
    for cell in found.cells:
        efficiency = None
        if first is not None and cell.samples_per_second and cell.devices and first.devices:
            assert first.samples_per_second is not None
            efficiency = cell.samples_per_second / cell.devices / (first.samples_per_second / first.devices)
        cells.append(cell._replace(efficiency=None if efficiency is None else round(efficiency, 6)))
    ranked = _ranked(found.axes, tuple(cells))
    return ranked._replace(advice=tuple(_advice(ranked)))


def _cells(
    combinations: Sequence[Mapping[str, str]],
    keys_of: Callable[[Mapping[str, str]], Keys],
    profiles: Sequence[Path],
    processes: int,
) -> tuple[Cell, ...]:
    """The cells of combinations, in their order. Those of one iteration are answered one after another."""
    session, prices, built = Session(), Prices(profiles), Jobs(Catalog(profiles))
    likely: dict[str, list[tuple[int, Keys]]] = {}  # of one iteration, by all that is likely to decide it
    for number, one in enumerate(combinations):
        keys = keys_of(one)
        decides = str({key: keys[key] for key in keys if key not in OF_NO_ITERATION})
        likely.setdefault(decides, []).append((number, keys))

    def of_iterations(some: Sequence[Sequence[tuple[int, Keys]]]) -> list[tuple[int, Cell]]:
        cells: list[tuple[int, Cell]] = []
        jobs: dict[object, list[tuple[int, ResolvedJob]]] = {}  # by iteration
        for number, keys in chain.from_iterable(some):
            try:
                job = built.job(keys)
                if isinstance(job, TextbookJob):
                    raise UsageError("equations have no time to compare", key="runtime", hint="another runtime")
            except InputError as error:
                cells.append((number, _refused(combinations[number], str(error.problems[0]))))
            else:
                jobs.setdefault(iteration_of(job), []).append((number, job))
        for number, job in chain.from_iterable(jobs.values()):
            cells.append((number, _answered(combinations[number], job, session, prices)))
        return cells

    cells: dict[int, Cell] = {}
    with session.open():
        for found in done(_parts([*likely.values()], processes), of_iterations, processes):
            cells.update(found)
    return tuple(cells[number] for number in range(len(combinations)))


def _parts(iterations: Sequence[T], processes: int) -> list[Sequence[T]]:
    """Iterations that one process does one after another: neighbours, which have most in common."""
    if processes < 2 or len(iterations) < ITERATIONS_OF_SEVERAL:
        return [iterations]
    each = -(-len(iterations) // (processes * PARTS_OF_EACH))
    return [iterations[first : first + each] for first in range(0, len(iterations), each)]


def _answered(one: Mapping[str, str], job: ResolvedJob, session: Session, prices: Prices) -> Cell:
    try:
        return cell_of(one, session.brief(job), prices)
    except InputError as error:
        return _refused(one, str(error.problems[0]))


class Prices:
    """The published price of an hour of each GPU, looked up once."""

    def __init__(self, profiles: Sequence[Path]) -> None:
        self.profiles = profiles
        self.known: dict[tuple[str, str | None], float | None] = {}

    def of(self, job: ResolvedJob) -> float | None:
        """That of a job's GPU: of its instance, of the cloud whose instance it is, or the median of all."""
        if job.rent is not None and job.rent.usd_per_gpu_hour is not None:
            return job.rent.usd_per_gpu_hour
        cloud = None if job.rent is None else job.rent.cloud
        key = job.gpu.name, cloud
        if key not in self.known:
            offers = [offer.usd for offer in rents_of(job.gpu.name, self.profiles, cloud)]
            self.known[key] = median(offers) if offers else None
        return self.known[key]


def cell_of(options: Mapping[str, str], found: Brief, prices: Prices) -> Cell:
    """A run as a row. The price of an hour is what the job gives; else those that are published count."""
    job, rung, time, run, given = found.job, found.rung, found.time, found.run, found.job.length.price
    each = given.likely_usd if given is not None else prices.of(job)
    hour = None if each is None else each * found.devices
    fits = rung.verdict == FITS
    rate = None if time is None or not fits else time.tokens_per_second
    return Cell(
        options=options,
        verdict=rung.verdict,
        error=None,
        devices=found.devices,
        device_bytes=rung.peak.device,
        usable_bytes=found.usable_bytes,
        micro_batch_size=rung.schedule.micro_batch_size,
        gradient_accumulation_steps=rung.schedule.gradient_accumulation_steps,
        activation_checkpointing=rung.strategy,
        largest_micro_batch_size=rung.largest_micro_batch_size or None,
        step_seconds=None if time is None or not fits else time.step_seconds,
        tokens_per_second=rate,
        samples_per_second=None if time is None or not fits else time.samples_per_second,
        tokens_per_second_per_device=None if time is None or not fits else time.tokens_per_second_per_device,
        mfu_percent=None if time is None or not fits else time.mfu_percent,
        bound=None if time is None or not fits else time.bound,
        usd_per_hour=hour,
        usd_per_million_tokens=None if hour is None or not rate else hour / 3600 / rate * 1e6,
        wall_seconds=None if run is None else run.wall_seconds.likely,
        cost_usd=None if run is None or run.cost_usd is None else run.cost_usd.likely,
        keeps_limits=None if run is None and not found.limits else all(limit.kept for limit in found.limits),
        is_composed=bool(job.composed),
    )


def _ranked(axes: tuple[str, ...], cells: tuple[Cell, ...]) -> Comparison:
    possible = [(number, cell) for number, cell in enumerate(cells) if cell.is_possible]

    def best(figures: Iterable[tuple[int, float | None]]) -> int | None:
        known = [(figure, number) for number, figure in figures if figure is not None]
        return min(known)[1] if known else None

    def negative(rate: float | None) -> float | None:
        return None if rate is None else -rate

    return Comparison(
        axes=axes,
        cells=cells,
        fastest=best((number, negative(cell.samples_per_second)) for number, cell in possible),
        cheapest=best((number, cell.usd_per_million_tokens) for number, cell in possible),
        cheapest_hour=best((number, cell.usd_per_hour) for number, cell in possible),
    )


def _advice(found: Comparison) -> Iterator[str]:
    """Where to stop, and what texts advise."""
    possible = [cell for cell in found.cells if cell.is_possible]
    if not possible:
        if any(cell.error is None and not cell.is_unjudged for cell in found.cells):
            way = "exhaust one machine first, or split the model (--tensor, --pipeline)"
            yield f"no number of these GPUs is enough: {way}"
        return
    first = possible[0]
    if first.devices == 1:
        steps = "mixed precision, accumulation, checkpointing, a faster data pipeline"
        yield f"it fits on one GPU: exhaust it first with {steps}"
        if first.wall_seconds is not None and first.wall_seconds > WEEKS_ALONE:
            days = first.wall_seconds / 86400
            yield f"one GPU would take {days:.0f} days, more than the two weeks after which texts leave it"
    else:
        are = "fit, the fewest that were asked about" if first is found.cells[0] else "are the fewest that fit"
        yield f"{first.devices} GPUs {are}"
    worth = [cell for cell in possible if cell.efficiency is not None and cell.efficiency >= WORTH_IT]
    last = possible[-1]
    if worth and worth[-1].devices != last.devices:
        yield (
            f"stop at {worth[-1].devices} GPUs: with {last.devices} each does {last.efficiency:.0%} of what it does on "
            f"{first.devices}, bound by {last.bound}"
        )
    elif worth and len(possible) > 1:
        yield f"up to {last.devices} GPUs each does at least {WORTH_IT:.0%} of what it does on {first.devices}"
