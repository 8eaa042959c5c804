"""Runs side by side: every combination of the values of some options, and from one device to many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from vramplan.answers.brief import Brief
from vramplan.answers.fit import weight_dtype_of
from vramplan.answers.processes import done
from vramplan.answers.session import Session, at_hand
from vramplan.catalog.prices import rents_of
from vramplan.errors import InputError, UsageError
from vramplan.job import JobEntry
from vramplan.job.lookup import Catalog
from vramplan.job.several import Jobs
from vramplan.options import table
from vramplan.planner.decision import ALWAYS
from vramplan.planner.setups import iteration_of
from vramplan.results import FITS, TIGHT
from vramplan.results.compared import Cell, Comparison
from vramplan.results.run import Limit
from vramplan.values.job import ResolvedJob
from vramplan.values.textbook import AnyJob, TextbookJob

T = TypeVar("T")

MOST_CELLS = 10_000
ITERATIONS_OF_SEVERAL = 32  # fewer are done before a second process has begun
OF_NO_ITERATION = ("gpu", "micro_batch_size")  # keys that seldom change what is replayed
MOST_CLOSER = 16  # runs that are answered as closely as `fit` does, a tenth of a second more each
PARTS_OF_EACH = 4  # of each process, so that none waits long for the last
WEEKS_ALONE = 14 * 86400.0  # seconds after which texts leave one device
WORTH_IT = 0.8  # of the rate of a device: below, the next devices mostly wait for each other

Keys = dict[str, Any]


def compared(
    axes: Mapping[str, Sequence[str]],
    keys_of: Callable[[Mapping[str, str]], Keys],
    profiles: Sequence[Path] = (),
    processes: int = 1,
    job_of: Callable[[Keys], AnyJob] | None = None,
) -> Comparison:
    """Every combination of the values of `axes`, the last of which varies fastest.

    `keys_of` makes the keys of a job of a combination, and `job_of` the job, where they lie over one of a file. So many
    `processes` answer at a time. Raises UsageError for too many combinations.
    """
    number = prod(len(values) for values in axes.values())
    if number > MOST_CELLS:
        hint = "compare fewer values at a time"
        raise UsageError(f"{number:,} combinations are more than {MOST_CELLS:,}", key="compare", hint=hint)
    names = tuple(axes)
    combinations = [dict(zip(names, values, strict=True)) for values in product(*axes.values())]
    asked = AskedRuns(keys_of, profiles, job_of)
    with asked.session.open():
        found = _ranked(names, _cells(combinations, asked, processes))
        return _settled(found, lambda place: asked.closer(combinations[place]))


def compared_jobs(entries: Sequence[JobEntry], profiles: Sequence[Path] = ()) -> Comparison:
    """The jobs of a file, a matrix as one job for each combination."""
    session, prices = at_hand(), Prices(profiles)

    def cell(entry: JobEntry, closer_from: int | None) -> Cell:
        one = {"job": entry.name}
        if isinstance(entry.job, TextbookJob):
            return _refused(one, "equations have no time to compare")
        if entry.job is None:
            return _refused(one, str(entry.problems[0]))
        return _answered(one, entry.job, session, prices, closer_from)

    with session.open():
        cells = tuple(cell(entry, _closer_from(len(entries))) for entry in entries)
        return _settled(_ranked(("job",), cells), lambda place: cell(entries[place], ALWAYS))


def _closer_from(number: int) -> int | None:
    """From which part of the usable memory on an estimate is looked at closer, where so many runs are compared."""
    return ALWAYS if number <= MOST_CLOSER else None


def _refused(one: Mapping[str, str], why: str) -> Cell:
    return Cell(one, None, why, *[None] * 18)


def scaled(
    counts: Sequence[int],
    keys_of: Callable[[Mapping[str, str]], Keys],
    profiles: Sequence[Path] = (),
    shared_by: str | None = None,
    job_of: Callable[[Keys], AnyJob] | None = None,
) -> Comparison:
    """The same job on more and more devices: what each adds, and where to stop.

    `shared_by`: how several devices share the states, in the word of the option. `keys_of` and `job_of` are those of
    `compared`.
    """
    found = compared({"gpus": [str(count) for count in counts]}, keys_of, profiles, job_of=job_of)
    first = next((cell for cell in found.cells if cell.is_possible and cell.samples_per_second), None)
    cells = []
    for cell in found.cells:
        efficiency = None
        if first is not None and cell.samples_per_second and cell.devices and first.devices:
            assert first.samples_per_second is not None
            efficiency = cell.samples_per_second / cell.devices / (first.samples_per_second / first.devices)
        cells.append(cell._replace(efficiency=None if efficiency is None else round(efficiency, 6)))
    ranked = _ranked(found.axes, tuple(cells))
    return ranked._replace(advice=tuple(_advice(ranked, shared_by)))


class AskedRuns:
    """What the runs of one comparison are made of, and what their answers share."""

    def __init__(
        self,
        keys_of: Callable[[Mapping[str, str]], Keys],
        profiles: Sequence[Path],
        job_of: Callable[[Keys], AnyJob] | None = None,
    ) -> None:
        self.keys_of, self.job_of = keys_of, job_of or Jobs(Catalog(profiles)).job
        self.session, self.prices = at_hand(), Prices(profiles)

    def job(self, keys: Keys) -> ResolvedJob:
        """The job of a run. Raises InputError."""
        job = self.job_of(keys)
        if isinstance(job, TextbookJob):
            raise UsageError("equations have no time to compare", key="runtime", hint="another runtime")
        return job

    def answered(self, one: Mapping[str, str], job: ResolvedJob, closer_from: int | None) -> Cell:
        """The run of a combination as a row."""
        return _answered(one, job, self.session, self.prices, closer_from)

    def closer(self, one: Mapping[str, str]) -> Cell:
        """The same as `fit` answers it."""
        return self.answered(one, self.job(self.keys_of(one)), ALWAYS)


def _settled(found: Comparison, closer: Callable[[int], Cell]) -> Comparison:
    """The same with few estimates answered as `fit` does, or of many those that win: who has less room may win no more.

    `closer` is the answer at a place.
    """
    cells = list(found.cells)
    estimated = [place for place, cell in enumerate(cells) if cell.is_estimated]
    if len(estimated) <= MOST_CLOSER:
        for place in estimated:
            cells[place] = closer(place)
        return _ranked(found.axes, tuple(cells))
    for _ in range(MOST_CLOSER):
        winners = (found.fastest, found.cheapest, found.cheapest_hour)
        open_one = next((place for place in winners if place is not None and cells[place].is_estimated), None)
        if open_one is None:
            break
        cells[open_one] = closer(open_one)
        found = _ranked(found.axes, tuple(cells))
    return found


def _cells(combinations: Sequence[Mapping[str, str]], asked: AskedRuns, processes: int) -> tuple[Cell, ...]:
    """The cells of combinations, in their order. Those of one iteration are answered one after another."""
    closer_from = _closer_from(len(combinations))
    likely: dict[str, list[tuple[int, Keys]]] = {}  # of one iteration, by all that is likely to decide it
    for number, one in enumerate(combinations):
        keys = asked.keys_of(one)
        decides = str({key: keys[key] for key in keys if key not in OF_NO_ITERATION})
        likely.setdefault(decides, []).append((number, keys))

    def of_iterations(some: Sequence[Sequence[tuple[int, Keys]]]) -> list[tuple[int, Cell]]:
        cells: list[tuple[int, Cell]] = []
        jobs: dict[object, list[tuple[int, ResolvedJob]]] = {}  # by iteration
        for number, keys in chain.from_iterable(some):
            try:
                job = asked.job(keys)
            except InputError as error:
                cells.append((number, _refused(combinations[number], str(error.problems[0]))))
            else:
                jobs.setdefault(iteration_of(job), []).append((number, job))
        for number, job in chain.from_iterable(jobs.values()):
            cells.append((number, asked.answered(combinations[number], job, closer_from)))
        return cells

    cells: dict[int, Cell] = {}
    for found in done(_parts([*likely.values()], processes), of_iterations, processes):
        cells.update(found)
    return tuple(cells[number] for number in range(len(combinations)))


def _parts(iterations: Sequence[T], processes: int) -> list[Sequence[T]]:
    """Iterations that one process does one after another: neighbours, which have most in common."""
    if processes < 2 or len(iterations) < ITERATIONS_OF_SEVERAL:
        return [iterations]
    each = -(-len(iterations) // (processes * PARTS_OF_EACH))
    return [iterations[first : first + each] for first in range(0, len(iterations), each)]


def _answered(
    one: Mapping[str, str], job: ResolvedJob, session: Session, prices: Prices, closer_from: int | None
) -> Cell:
    try:
        return cell_of(one, session.brief(job, closer_from=closer_from), prices)
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


def _unjudged(limits: Iterable[Limit]) -> str | None:
    """Why the deadline or the budget of a run cannot be judged; None where they can, or one is broken anyway."""
    every = tuple(limits)
    if any(one.kept is False for one in every):
        return None
    return next((one.why for one in every if one.kept is None), None)


def cell_of(options: Mapping[str, str], found: Brief, prices: Prices) -> Cell:
    """A run as a row. The price of an hour is what the job gives; else those that are published count."""
    job, rung, time, run, given = found.job, found.rung, found.time, found.run, found.job.length.price
    each = given.likely_usd if given is not None else prices.of(job)
    hour = None if each is None else each * found.devices
    fits = rung.verdict == FITS
    rate = None if time is None or not fits else time.tokens_per_second
    unjudged = _unjudged(found.limits)
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
        wall_seconds=None if run is None or not fits else run.wall_seconds.likely,
        cost_usd=None if run is None or not fits or run.cost_usd is None else run.cost_usd.likely,
        keeps_limits=None if run is None or not found.limits or unjudged is not None else not run.broken_limits,
        is_composed=bool(job.composed),
        is_estimated=found.is_estimated,
        unjudged=unjudged,
        precision=job.precision,
        weight_dtype=weight_dtype_of(job),
        host_bytes=found.host_bytes if fits else None,
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


def _advice(found: Comparison, shared_by: str | None) -> Iterator[str]:
    """Where to stop, and what texts advise. `shared_by`: how several devices share the states."""
    possible = [cell for cell in found.cells if cell.is_possible]
    way = "" if shared_by is None else f" with {shared_by}"
    if not possible:
        if not any(cell.verdict == FITS for cell in found.cells) and any(cell.error is None for cell in found.cells):
            certain = " for certain" if any(cell.verdict == TIGHT for cell in found.cells) else ""
            most = max((cell.devices or 1 for cell in found.cells), default=1)
            more = f"ask about more (--gpus {2 * most},{4 * most}, and no number before the GPU)"
            steps = f"exhaust one machine first, {more}, or split the model (--tensor, --pipeline)"
            yield f"no run on these numbers of GPUs fits{certain}{way}: {steps}"
        return
    first = possible[0]
    if first.devices == 1:
        steps = "mixed precision, accumulation, checkpointing, a faster data pipeline"
        yield f"it fits on one GPU: exhaust it first with {steps}"
        if first.wall_seconds is not None and first.wall_seconds > WEEKS_ALONE:
            days = first.wall_seconds / 86400
            yield f"one GPU would take {days:.0f} days, more than the two weeks after which texts leave it"
    elif first is found.cells[0]:
        yield f"{first.devices} GPUs fit{way}, the fewest that were asked about"
    else:
        limits = "" if first.keeps_limits is None else " and keep the limits"
        yield f"of these numbers, {first.devices} GPUs are the fewest that fit{limits}{way}"
    yield from _where_to_stop(possible)
    yield from _other_formats([cell for cell in found.cells if cell.error is None])


def _where_to_stop(possible: Sequence[Cell]) -> Iterator[str]:
    """From which number on devices mostly wait for each other."""
    first, last = possible[0], possible[-1]
    worth = [number for number, cell in enumerate(possible) if (cell.efficiency or 0.0) >= WORTH_IT]
    if worth and worth[-1] + 1 < len(possible):
        at, below = possible[worth[-1]], possible[worth[-1] + 1]
        where = "stay on 1 GPU" if at.devices == 1 else f"stop at {at.devices} GPUs"
        yield (
            f"{where}: with {below.devices} each does {below.efficiency:.0%} of what it does on "
            f"{first.devices}, bound by {below.bound}"
        )
    elif len(worth) == len(possible) > 1:
        yield f"up to {last.devices} GPUs each does at least {WORTH_IT:.0%} of what it does on {first.devices}"


PER_GPU = "their steps are not the same"


def _other_formats(cells: Sequence[Cell]) -> Iterator[str]:
    """That programs load weights in half precision on one device, and in fp32 where several share them; that FSDP casts
    by a policy, and one device by autocast.
    """
    alone = next((cell for cell in cells if cell.devices == 1), None)
    several = next((cell for cell in cells if cell.devices != 1), None)
    if alone is None or several is None:
        return
    if alone.weight_dtype == several.weight_dtype:
        if alone.precision != several.precision:
            yield f"1 GPU runs in {alone.precision} and several in {several.precision}, as in `fit`: {PER_GPU}"
        return
    same = f"pure-{alone.weight_dtype}"
    hint = f"; with --precision {same} all have the same" if same in table.find("precision").words else ""
    yield (
        f"1 GPU trains {alone.weight_dtype} weights ({alone.precision}), several {several.weight_dtype} weights "
        f"({several.precision}), as in `fit`{hint}"
    )
