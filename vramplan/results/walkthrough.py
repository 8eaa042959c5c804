"""The walk-through as frozen values: one run in four steps, by the textbook and replayed. Sizes are integer bytes."""

from __future__ import annotations

from vramplan.results import Component
from vramplan.tuples import NamedTuple
from vramplan.values.job import Assumption


class TextbookSide(NamedTuple):
    """What the closed forms say of a step."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    components: tuple[Component, ...]
    total_bytes: int
    change: float | None  # against the step before, as a share of it
    verdict: str


class ReplaySide(NamedTuple):
    """What the replay of the same step says."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    components: tuple[Component, ...]
    allocated_bytes: int
    device_bytes: int
    attention: str
    phase: str
    operator: str
    change: float | None
    verdict: str


class Step(NamedTuple):
    """One step of the story, and why its two sides differ."""

    number: int
    title: str
    precision: str
    activation_checkpointing: str
    textbook: TextbookSide
    replay: ReplaySide
    reasons: tuple[str, ...]


class Walkthrough(NamedTuple):
    """The whole story."""

    model: str
    gpu: str
    textbook_parameters: int
    architecture_parameters: int
    sequence_length: int
    optimizer: str
    activation_model: str | None
    activation_bytes: int | None  # quoted, in fp32, at the micro-batch of the first three steps
    checkpoint_factor: float | None
    data_parallel_size: int
    global_batch_size: int  # of step 4
    nominal_capacity_bytes: int  # what the textbook counts with
    usable_bytes: int  # what the replay counts with
    steps: tuple[Step, ...]
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]  # of the replay
