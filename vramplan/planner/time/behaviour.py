"""How a training program spends its time: what most do, for those that do otherwise to say so."""

from __future__ import annotations

from vramplan.engines import behaviour_of
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.parallel import is_fsdp

ROOM = "time"

FLASH1, FLASH2, CUDNN = "flash-attention-1", "flash-attention-2", "cudnn"
"""Kernels of fused attention whose rates were published."""
EFFICIENT = "memory-efficient"


class FusedKernel(NamedTuple):
    """A kernel of a program in each block: elements that it reads and writes for a token, in each direction."""

    operator: str
    forward_elements: int
    backward_elements: int
    launches: int = 1


class Timing:
    """What a program may do differently; a subclass in its folder says what it does."""

    hides_sums = True  # whether gradients of replicas are summed beside backward
    hooks_checkpoints = True  # whether checkpoints are torch.utils.checkpoint, whose hooks take the host's time
    python_backward = False  # whether the backward of blocks is Python as well, and not PyTorch's own in C++
    fused_optimizer = False  # whether the step is one kernel of the program's own, whatever torch.optim has
    loop_seconds: float | None = None  # of a step outside its kernels; None: what most have

    def flash(self, gpu: Gpu) -> str:
        """The kernel behind fused attention: that of PyTorch's scaled_dot_product_attention."""
        return FLASH2

    def adds_in_product(self, job: ResolvedJob) -> bool:
        """Whether the product that makes a weight's gradient adds it to those of earlier micro-batches."""
        return False

    def shares_matrices(self, job: ResolvedJob) -> int:
        """Among how many devices those matrices are divided that an optimizer takes as a whole: those that share them.

        Source: microsoft/dion, dion/muon.py, muon_update_batch_async.
        """
        return job.sharding.shards if job.sharding is not None and is_fsdp(job.sharding.kind) else 1

    def counted_devices(self, job: ResolvedJob) -> int:
        """Of how many devices of tensor parallelism the record of one counts the weights."""
        return 1

    def gathers_once(self, job: ResolvedJob) -> bool:
        """Whether shards are gathered for the first micro-batch of a step alone, and kept."""
        return False

    def senders(self, job: ResolvedJob) -> int:
        """Devices that share what a stage of a pipeline sends; each sends all of it where they do not."""
        return 1

    def transfers(self, job: ResolvedJob) -> int:
        """Of those with the stages before and behind, how many a micro-batch waits for one after the other."""
        return 2

    def fused_kernels(self, job: ResolvedJob) -> tuple[FusedKernel, ...]:
        """Those of its own in place of the point-wise operators of a block, where the replay has others; none."""
        return ()


DEFAULT = Timing()


def timing_of(job: ResolvedJob) -> Timing:
    """How the job's program spends its time."""
    return behaviour_of(job.runtime.engine, ROOM, DEFAULT)
