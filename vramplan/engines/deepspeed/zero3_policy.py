"""What a job says of its partitions under stage 3 of DeepSpeed's ZeRO."""

from __future__ import annotations

from collections.abc import Iterable

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
    learns: bool = True  # the order of modules is the same in each step, and known
    own_adam: bool = True  # FusedAdam, which has a buffer
    bounds_norm: bool = False  # gradients are clipped by the norm, which is taken in any case
    steps: tuple[str, str] | None = None  # PyTorch's optimizer and its implementation; None: a kernel of another's

    def of_walk(self, sizes: Iterable[int]) -> Zero3Policy:
        """The same for who follows modules without a tensor, where no parameter of these `sizes` is padded.

        Then any number of devices is as each of its divisors, of which the least is taken.
        """
        least = next((one for one in range(2, self.shards) if self.shards % one == 0), self.shards)
        if any(size % self.shards for size in sizes):
            least = self.shards
        return self._replace(shards=least, own_adam=True, bounds_norm=False, steps=None)
