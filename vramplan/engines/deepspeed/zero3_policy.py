"""What a job says of its partitions under stage 3 of DeepSpeed's ZeRO."""

from __future__ import annotations

from vramplan.replay.tensors import DType
from vramplan.tuples import NamedTuple
from vramplan.values.job import Adapter
from vramplan.values.parallel import Zero

OUTER_MODULES = 2  # around all that has parameters: the model, and the model with its head
OUTER_MODULES_OF_PEFT = 2  # around those: PeftModel and LoraModel


def outer_modules(adapter: Adapter | None) -> int:
    """How many modules are around all that has parameters."""
    return OUTER_MODULES + (0 if adapter is None else OUTER_MODULES_OF_PEFT)


class Zero3Policy(NamedTuple):
    """What a job says of its partitions."""

    shards: int
    dtype: DType  # of weights and gradients
    zero: Zero
    blocks: int
    bias_first: bool = False  # linear layers are Conv1D, whose gradients are autograd's own
    outer_modules: int = OUTER_MODULES
    keeps_frozen: bool = False  # frozen weights that are needed again stay, however far that is
    own_adam: bool = True  # FusedAdam, which has a buffer
    bounds_norm: bool = False  # gradients are clipped by the norm, which is taken in any case
    steps: tuple[str, str] | None = None  # PyTorch's optimizer and its implementation; None: a kernel of another's
