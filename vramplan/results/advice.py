"""What to change with the batch size, as frozen values."""

from __future__ import annotations

from vramplan.tuples import NamedTuple


class Advice(NamedTuple):
    """Learning rate, warm-up and the loop of an accumulating step. It never influences a verdict."""

    base_batch_size: int
    base_learning_rate: float
    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_size: int
    effective_batch_size: int  # the product of the three
    linear_learning_rate: float
    square_root_learning_rate: float
    rule: str  # linear | square-root: the recommended one
    learning_rate: float  # by that rule
    why: str
    warm_up_least_steps: int  # optimizer steps
    warm_up_most_steps: int
    layerwise_optimizer: str | None  # lars | lamb, for batches where texts change the optimizer
    overhead: str  # of accumulating, as texts quote it
    communication_saved: float | None  # share of the all-reduces; None on one device
    loss_by: str  # steps | tokens: what the loss is divided by
    loss: str  # the same as a sentence
    clipping: str
    schedule: str
    synchronisation: str | None  # None where there is nothing to skip
    batch_normalisation: str | None  # a warning; None without it, or for a micro-batch that is large enough
