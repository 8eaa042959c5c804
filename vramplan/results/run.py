"""How long a whole run takes, and what it costs, as frozen values. Ranges are low, likely and high."""

from __future__ import annotations

from typing import Any

from vramplan.tuples import NamedTuple

SECONDS_PER_DAY, SECONDS_PER_HOUR = 86400.0, 3600.0


class Range(NamedTuple):
    """A figure between two others."""

    low: float
    likely: float
    high: float


class Data(NamedTuple):
    """What the input pipeline has to deliver to a node, and what it does."""

    needed_bytes_per_s: float
    given_bytes_per_s: float
    gpu_utilization: float  # at most 1: the share of time in which the GPUs have data
    is_bound: bool
    host_buffer_bytes: int  # batches in preparation, of a node


class Limit(NamedTuple):
    """A deadline or a budget, and whether the run keeps it."""

    key: str  # deadline | budget
    kept: bool | None  # by the likely figure; None: it cannot be judged
    why: str  # in a sentence; empty where it is kept


class Run(NamedTuple):
    """A whole run. `steady` is computing alone; `wall` has the restarts, evaluations and bad nodes in it."""

    steps: int
    samples: int
    tokens: int | None  # None: the model takes images alone
    epochs: float
    tokens_per_parameter: float | None
    compute_optimal_tokens: int | None  # 20 for each parameter
    model_flops: float
    devices: int
    steady_seconds: Range
    goodput: Range
    wall_seconds: Range
    steady_gpu_hours: Range
    gpu_hours: Range
    warm_up_steps: int
    price_usd_per_gpu_hour: Range | None  # None: no price is given, and none is published
    price_offers: int  # published prices that it is made of; 0: it was given
    cost_usd: Range | None
    cost_usd_per_million_tokens: Range | None
    purchase_usd: float | None  # of all devices; None: no price is given, and none is published
    break_even_runs: float | None  # so many runs cost as much rented at the likely price as the GPUs cost to buy
    energy_kwh: Range | None  # None: the rated power of the GPU is not known
    pue: float | None  # None: the energy is that of the GPUs alone
    co2_kg: Range | None
    deadline_seconds: float | None
    in_time: bool | None  # by the likely figure
    devices_in_time: int | None  # at least so many would do, if each added one helped as much; None: these do
    budget_usd: float | None
    in_budget: bool | None
    price_in_budget_usd: float | None  # of a GPU hour, with which the likely cost is the budget

    @property
    def broken_limits(self) -> tuple[str, ...]:
        """A sentence for each limit that the likely figures do not keep."""
        return tuple(said for said in (self.late, self.dear) if said)

    @property
    def late(self) -> str:
        """That the likely time is longer than the deadline; empty where it is not, or where none is given."""
        if self.in_time is not False or self.deadline_seconds is None:
            return ""
        takes, given = map(_lasting, (self.wall_seconds.likely, self.deadline_seconds))
        enough = f"{self.devices_in_time or 0:,} GPUs or more would keep it"
        return f"the run takes {takes}, and the deadline is {given}: {enough}"

    @property
    def dear(self) -> str:
        """That the likely cost is above the budget; empty where it is not, or where no price or no budget is known."""
        if self.in_budget is not False or self.cost_usd is None or self.budget_usd is None:
            return ""
        return (
            f"the run costs {_figure(self.cost_usd.likely)} USD, and the budget is {_figure(self.budget_usd)} USD: "
            f"{_figure(self.price_in_budget_usd or 0)} USD for a GPU hour or less would keep it"
        )

    def to_dict(self) -> dict[str, Any]:
        """As the JSON documents have it."""
        return {key: _plain(value) for key, value in self._asdict().items()}


def _lasting(seconds: float) -> str:
    for size, unit in ((SECONDS_PER_DAY, "days"), (SECONDS_PER_HOUR, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{_figure(seconds / size)} {unit}"
    return f"{_figure(seconds)} s"


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 99.95 else f"{number:.3g}"


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Range) else value
