"""How long a whole run is, and what it may cost: what a job says of it, as a frozen value."""

from __future__ import annotations

from vramplan.tuples import NamedTuple


class Price(NamedTuple):
    """US dollars for an hour of one GPU: the lowest, a likely one and the highest."""

    low_usd: float
    likely_usd: float
    high_usd: float

    @property
    def text(self) -> str:
        """As the key takes it: one number, or the three of a range."""
        parts = self[:1] if self.low_usd == self.high_usd else self
        return "-".join(f"{one:.10g}" for one in parts)


class Rent(NamedTuple):
    """The instance of a cloud that the GPUs of a job are, and what it costs."""

    cloud: str  # the name of a profile of prices
    usd_per_gpu_hour: float | None  # of all its GPUs that the job has; None: its own price is not known


class Length(NamedTuple):
    """None is what nobody says. At most one of `tokens`, `samples` and `compute_optimal` is given."""

    tokens: int | None = None  # of one epoch, padding included
    samples: int | None = None  # of one epoch: sequences, pairs or images
    epochs: float = 1.0
    compute_optimal: bool = False
    goodput: float | None = None  # the share of wall time in which the run makes progress
    price: Price | None = None
    offers: int = 0  # published prices that `price` is made of; 0: it was given
    purchase_usd: float | None = None  # of one GPU
    deadline_seconds: float | None = None
    budget_usd: float | None = None
    pue: float | None = None  # power of the building over that of its computers
    grid_g_per_kwh: float | None = None
    data_bytes_per_s: float | None = None  # what storage and input pipeline of a node deliver
    sample_bytes: int | None = None  # of one sample as it is read

    @property
    def is_asked(self) -> bool:
        """Whether there is a length at all."""
        return self.tokens is not None or self.samples is not None or self.compute_optimal

    @property
    def has_limits(self) -> bool:
        """Whether the run has a deadline or a budget."""
        return self.deadline_seconds is not None or self.budget_usd is not None


NO_LENGTH = Length()
