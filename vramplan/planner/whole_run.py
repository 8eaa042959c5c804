"""From one step to a whole run: steps, hours, money, energy and carbon dioxide, each as a range."""

from __future__ import annotations

import math

from vramplan.planner.accumulation import Schedule
from vramplan.planner.textbook.cost import break_even_runs
from vramplan.planner.textbook.learning_rate import warm_up_steps
from vramplan.planner.time.rates import missing_rate
from vramplan.results.frozen import FrozenDict
from vramplan.results.run import Data, Limit, Range, Run
from vramplan.results.time import DATA, Time
from vramplan.values.job import ResolvedJob
from vramplan.values.length import Length, Price

TOKENS_PER_PARAMETER = 20
"""Compute-optimal data. Source: arXiv 2203.15556 (Chinchilla), table 3: 1.4 T tokens for 70 B parameters."""

GOODPUT = Range(0.80, 0.85, 0.91)
"""Share of wall time that computes. Source: arXiv 2512.13961 (OLMo 3) prints rates and GPU hours of two runs: 0.80 and
0.91. The likely figure lies between them."""

POWER_SHARE = Range(0.75, 0.90, 1.0)
"""Power of a GPU while it trains over its rated power. Source: 621 and 649 W of 700 W were measured while OLMo 3 was
trained (muxup.com/2025q4/minipost-olmo3-training-cost), 89 and 93 %; nothing draws more than all of it for long. The
low end is the 76 % of its rated power that a node of H100 was measured at."""

LARGEST_WARM_UP = 0.1
"""Of the steps of a run: the rules by batch size are for long runs."""

PREFETCHED, PROCESSED, MOVED = 2, 1, 1
"""Batches of each process in the memory of the host: `prefetch_factor` of torch.utils.data.DataLoader has 2 waiting,
one is made and one is on its way to the device."""

TOKEN_BYTES, PIXEL_BYTES = 4, 3  # 32-bit numbers of tokens; three colours of 8 bits, decoded

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
GRAMS_PER_KG = 1000.0


def with_data(time: Time, data: Data | None) -> Time:
    """The time of a step whose input pipeline delivers no faster than `data` says."""
    if data is None or not data.is_bound:
        return time
    seconds = time.step_seconds / data.gpu_utilization
    share = time.step_seconds / seconds  # of the longer step in which the GPUs compute
    per_device, tokens = time.tokens_per_second_per_device, time.tokens_per_second
    return time._replace(
        step_seconds=seconds,
        step_seconds_low=max(time.step_seconds_low, seconds),
        step_seconds_high=max(time.step_seconds_high, seconds),
        tokens_per_second_per_device=None if per_device is None else per_device * share,
        tokens_per_second=None if tokens is None else tokens * share,
        samples_per_second=time.samples_per_second * share,
        mfu_percent=time.mfu_percent * share,
        hfu_percent=time.hfu_percent * share,
        shares=FrozenDict([*((name, part * share) for name, part in time.shares.items()), (DATA, 1 - share)]),
        bound=DATA,
    )


def data_of(length: Length, time: Time, micro: int, devices_per_node: int, sample_bytes: int) -> Data | None:
    """What a node has to read, and whether it can; None where nobody says what it delivers.

    `sample_bytes`: of one sample, where the job does not say it.
    """
    given = length.data_bytes_per_s
    if given is None:
        return None
    size = length.sample_bytes or sample_bytes
    devices = min(devices_per_node, time.devices)
    needed = time.samples_per_second * size * devices / time.devices
    utilization = min(1.0, given / needed)
    batches = PREFETCHED + PROCESSED + MOVED
    return Data(needed, given, utilization, utilization < 1, batches * micro * size * devices)


def run_of(length: Length, time: Time, parameters: int, tdp_watts: float | None) -> Run:
    """The whole run of steps that each take `time`. `length` has tokens, samples, or asks for the compute-optimal ones.

    `parameters`: of the whole model. `tdp_watts`: the rated power of one GPU.
    """
    optimal = None if time.tokens_per_step is None else TOKENS_PER_PARAMETER * parameters
    per_step = time.samples_per_step
    if length.samples is not None:
        samples = math.ceil(length.samples * length.epochs)
    else:
        assert time.tokens_per_step is not None
        wanted = optimal if length.tokens is None else length.tokens
        assert wanted is not None
        samples = math.ceil(wanted * length.epochs * per_step / time.tokens_per_step)
    steps = max(1, -(-samples // per_step))
    tokens = None if time.tokens_per_step is None else samples * time.tokens_per_step // per_step
    steady = Range(*(steps * one for one in (time.step_seconds_low, time.step_seconds, time.step_seconds_high)))
    goodput = GOODPUT if length.goodput is None else Range(length.goodput, length.goodput, length.goodput)
    wall = Range(steady.low / goodput.high, steady.likely / goodput.likely, steady.high / goodput.low)
    hours = _scaled(wall, time.devices / SECONDS_PER_HOUR)
    price = length.price
    cost = None if price is None else _cost(hours, price)
    energy = None if tdp_watts is None else _energy(hours, tdp_watts, length.pue)
    bought = None if length.purchase_usd is None else length.purchase_usd * time.devices
    grid = length.grid_g_per_kwh
    deadline, budget = length.deadline_seconds, length.budget_usd
    in_time = None if deadline is None else wall.likely <= deadline
    in_budget = None if budget is None or cost is None else cost.likely <= budget
    return Run(
        steps=steps,
        samples=samples,
        tokens=tokens,
        epochs=length.epochs,
        tokens_per_parameter=None if tokens is None else tokens / parameters,
        compute_optimal_tokens=optimal,
        model_flops=float(time.model_flops * steps),
        devices=time.devices,
        steady_seconds=steady,
        goodput=goodput,
        wall_seconds=wall,
        steady_gpu_hours=_scaled(steady, time.devices / SECONDS_PER_HOUR),
        gpu_hours=hours,
        warm_up_steps=min(warm_up_steps(per_step)[1], math.ceil(LARGEST_WARM_UP * steps)),
        price_usd_per_gpu_hour=None if price is None else Range(*price),
        price_offers=length.offers,
        cost_usd=cost,
        cost_usd_per_million_tokens=None if cost is None or not tokens else _scaled(cost, 1e6 / tokens),
        purchase_usd=bought,
        break_even_runs=None if bought is None or cost is None else break_even_runs(bought, cost.likely),
        energy_kwh=energy,
        pue=length.pue,
        co2_kg=None if energy is None or grid is None else _scaled(energy, grid / GRAMS_PER_KG),
        deadline_seconds=deadline,
        in_time=in_time,
        devices_in_time=None if in_time is not False or deadline is None else _enough(time.devices, wall, deadline),
        budget_usd=budget,
        in_budget=in_budget,
        price_in_budget_usd=None if budget is None or in_budget else budget / hours.likely,
    )


def limits_of(job: ResolvedJob, run: Run | None) -> tuple[Limit, ...]:
    """The deadline and the budget of a job, and whether its run keeps them. `run` is None where its time is unknown.

    What cannot be judged is not kept: a limit that passed in silence would be none.
    """
    found, length = [], job.length
    if length.deadline_seconds is not None:
        kept = None if run is None else run.in_time
        doubt = f"the deadline of {length.deadline_seconds / SECONDS_PER_HOUR:,.4g} h cannot be judged: {_no_time(job)}"
        found.append(Limit("deadline", kept, doubt if run is None else run.late))
    if length.budget_usd is not None:
        kept = None if run is None else run.in_budget
        doubt = f"the budget of {length.budget_usd:,.10g} USD cannot be judged: {'; '.join(_no_cost(job, run))}"
        found.append(Limit("budget", kept, doubt if run is None or kept is None else run.dear))
    return tuple(found)


def why_no_run(job: ResolvedJob) -> str:
    """Why a job that asks for a run has none."""
    return f"the run has no time and no cost: {_no_time(job)}"


def _no_time(job: ResolvedJob) -> str:
    missing = missing_rate(job)
    return f"no {'rate' if missing is None else missing[1]} of the GPU is known ({job.gpu.name})"


def _no_cost(job: ResolvedJob, run: Run | None) -> list[str]:
    """What is not known of the cost of a run; `run` is None where its time is not."""
    said = [_no_time(job)] if run is None else []
    return said if job.length.price is not None else [*said, "no price of the GPU is known: --price gives one"]


def timed(job: ResolvedJob, time: Time, schedule: Schedule, parameters: int) -> tuple[Data | None, Time, Run | None]:
    """What a step has to read, its time with that, and the whole run; None where the job does not ask for it."""
    data, time = fed(job, time, schedule)
    run = run_of(job.length, time, parameters, job.gpu.tdp_watts) if job.length.is_asked else None
    return data, time, run


def fed(job: ResolvedJob, time: Time, schedule: Schedule) -> tuple[Data | None, Time]:
    """What a step has to read, None where no job says what is delivered; and the time of the step with that."""
    edge = job.image_size
    size = PIXEL_BYTES * edge * edge if edge is not None else 0
    size += 0 if time.tokens_per_step is None else TOKEN_BYTES * time.tokens_per_step // time.samples_per_step
    data = data_of(job.length, time, schedule.micro_batch_size, job.devices_per_node, size)
    return data, with_data(time, data)


def _scaled(one: Range, factor: float) -> Range:
    return Range(*(part * factor for part in one))


def _cost(gpu_hours: Range, price: Price) -> Range:
    return Range(gpu_hours.low * price.low_usd, gpu_hours.likely * price.likely_usd, gpu_hours.high * price.high_usd)


def _energy(gpu_hours: Range, tdp_watts: float, pue: float | None) -> Range:
    """Kilowatt hours: GPU hours times rated power times the share of it that is drawn."""
    each = tdp_watts / 1000 * (pue or 1.0)
    return Range(*(hours * each * share for hours, share in zip(gpu_hours, POWER_SHARE, strict=True)))


def _enough(devices: int, wall: Range, deadline_seconds: float) -> int:
    return math.ceil(devices * wall.likely / deadline_seconds)
