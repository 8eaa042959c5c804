"""How a training program spends its time: what most do, for those that do otherwise to say so."""

from __future__ import annotations

from vramplan.engines import behaviour_of
from vramplan.values.job import Job

ROOM = "time"

FLASH1, FLASH2, CUDNN = "flash-attention-1", "flash-attention-2", "cudnn"
"""Kernels of fused attention whose rates were published."""

FP32, OWN = "fp32", "own"


class Timing:
    """What a program may do differently; a subclass in its folder says what it does."""

    flash = FLASH2  # the kernel behind fused attention: that of PyTorch's scaled_dot_product_attention
    hides_sums = True  # whether gradients of replicas are summed beside backward
    summed = OWN  # in which element type: that of the gradients, or FP32
    adds_in_product = False  # whether the product that makes a weight's gradient adds it to those of earlier ones
    fused_optimizer = False  # whether the step is one kernel of the program's own, whatever torch.optim has
    fused_points = False  # whether compiled kernels of the program join its point-wise operators
    loop_seconds: float | None = None  # of a step outside its kernels; None: what most have


DEFAULT = Timing()


def timing_of(job: Job) -> Timing:
    """How the job's program spends its time."""
    return behaviour_of(job.runtime.engine, ROOM, DEFAULT)
