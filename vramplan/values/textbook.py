"""A job that is answered by closed forms, as frozen values. Sizes are integer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vramplan.tuples import NamedTuple
from vramplan.values.job import MAX_UTILIZATION, Assumption, ResolvedJob
from vramplan.values.machine import Gpu, Runtime
from vramplan.values.model import ModelShape

TEXTS_GLOBAL_BATCH_SIZE = 512  # of GPT-2, which the texts are about; it moves to the nearest that can be reached


ACTIVATION_MODEL_NEEDS = {
    "book": ("layers", "hidden_size"),
    "zero-paper": ("layers", "hidden_size"),
    "korthikanti": ("layers", "hidden_size", "attention_heads"),
}
"""The words of `activation_model`, and what each needs of a model besides the sequence length and the micro-batch."""


class TextbookModel(NamedTuple):
    """What the closed forms know of a network: None is not said, and `shape` is there if the family is modelled."""

    name: str
    parameters: int
    family: str | None = None
    layers: int | None = None
    hidden_size: int | None = None
    attention_heads: int | None = None
    shape: ModelShape | None = None
    trainable_parameters: int | None = None  # None: all of them

    @property
    def trained(self) -> int:
        """The parameters that have gradients and states."""
        return self.parameters if self.trainable_parameters is None else self.trainable_parameters


class TextbookCells(NamedTuple):
    """The element type of each state and of the activations: fp32 | fp16 | bf16 | fp8 | int8 | none (left out)."""

    weights: str
    gradients: str
    master: str
    optimizer: str
    compute: str


class TextbookJob(NamedTuple):
    """A job with `runtime: textbook`: equations instead of a replay, so most keys of a `ResolvedJob` mean nothing here.

    It is a type of its own, so that nothing replays it by accident. `replay` is the same run as a job that can be
    replayed, where there is one, to say how far the equations are from it.
    """

    name: str
    model: TextbookModel
    gpu: Gpu  # with its nominal capacity
    precision: str
    cells: TextbookCells
    optimizer: str
    sequence_length: int | None
    micro_batch_size: int | None
    global_batch_size: int
    global_batch_given: bool
    gradient_accumulation_steps: int | None
    activation_checkpointing: str | None
    activation_model: str | None  # book | zero-paper | korthikanti
    activation_bytes: int | None  # a quoted figure, in fp32
    checkpoint_factor: float | None  # what a text divides the activations by
    data_parallel_size: int
    sharding: str
    shards: int | None  # devices that share the sharded states; None: all data-parallel ones
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    expect: str = "fits"
    max_utilization: float = MAX_UTILIZATION
    case: Mapping[str, Any] = MappingProxyType({})
    base_batch_size: int | None = None
    base_learning_rate: float | None = None
    replay: ResolvedJob | None = None

    @property
    def runtime(self) -> Runtime:
        """The same for every such job."""
        return TEXTBOOK


# No profile in profiles/runtimes/: a profile holds figures with their sources, and the textbook's runtime has none. Its
# equations are code in vramplan/textbook, and context, reserve and all factors are left out by definition.
TEXTBOOK = Runtime(
    name="textbook",
    title="The closed forms of papers and courses",
    optimizer_implementation="left out",
    loss="left out",
    gradients="persistent",
    context_bytes=0,
)


AnyJob = ResolvedJob | TextbookJob
