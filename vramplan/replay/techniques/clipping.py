"""Clipping the gradients by their total norm, between backward and the optimizer's step."""

from __future__ import annotations

from vramplan.replay.recorder import Tape
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32, INT32, DType, Tensor
from vramplan.values.parallel import DDP

CHUNK = 65536  # elements that one block of threads reduces (aten/src/ATen/native/cuda/MultiTensorApply.cuh, kChunkSize)

PARTIAL_NORMS = 320  # blocks of threads of apex's and Transformer Engine's kernel, each with a sum of its own


def clip_gradients(tape: Tape, *, sharded: bool = False, parted: bool = False) -> Tensor:
    """A norm of each gradient, all at once, and their total, which is returned; the gradients are scaled in place.

    The kernel keeps one fp32 partial sum for each chunk of 65536 elements, and for every gradient as many as for the
    largest. Norms of shards are summed over the devices before they become one, and those of tensors that are `parted`
    by tensor parallelism over its devices after that: what is whole on each of them is divided first.
    Source: torch/nn/utils/clip_grad.py, _get_total_norm and _clip_grads_with_norm_; aten/src/ATen/native/cuda/
    ForeachReduceOp.cu, foreach_tensor_norm_cuda.
    """
    tape.category = "temporaries"
    trained = [parameter for parameter in tape.parameters if parameter.node is not None]
    dtype = trained[0].dtype
    count = sum(parameter.copies for parameter in trained)
    chunks = max(-(-parameter.elements // CHUNK) for parameter in trained)
    norms = [tape.several("_foreach_norm", (), dtype, parameter.copies) for parameter in trained]
    partial = tape.new("_foreach_norm", (count * chunks,), FP32, False, category="workspace")
    del partial
    divided = [tape.several("div", (), dtype, one.copies) for one in trained if parted and len(one.shape) == 1]
    stacked = tape.new("stack", (count,), dtype, False)
    del divided
    _whole = _sum_over_devices(tape, count, dtype) if sharded else None
    if parted:
        _whole = _sum_over_devices(tape, count, dtype)
    total = tape.new("linalg_vector_norm", (), dtype, False)
    del stacked, norms, _whole
    increased = tape.new("add", (), dtype, False)
    reciprocal = tape.new("reciprocal", (), dtype, False)
    coefficient = tape.new("mul", (), dtype, False)
    del increased, reciprocal
    clamped = tape.new("clamp", (), dtype, False)
    del coefficient, clamped
    return total


def _sum_over_devices(tape: Tape, count: int, dtype: DType) -> Tensor:
    """Norms of whole gradients from those of shards: their squares are summed, out of place.

    Source: torch/distributed/tensor/_ops/_math_ops.py, _NormPartial._reduce_value; torch/distributed/
    _functional_collectives.py, all_reduce.
    """
    squares = tape.new("pow", (count,), dtype, False)
    sums = tape.new("all_reduce", (count,), dtype, False)
    root = tape.new("pow", (count,), dtype, False)
    del squares, sums
    return root


def clip_fp32_gradients(tape: Tape) -> None:
    """The same of the fp32 buffers that half-precision gradients were summed in: one norm of all, read on the host.

    Source: megatron/core/optimizer/clip_grads.py, get_grad_norm_fp32 and clip_grad_by_total_norm_fp32; Transformer
    Engine, transformer_engine/pytorch/csrc/extensions/multi_tensor/l2norm.cpp, multi_tensor_l2norm_cuda.
    """
    tape.category = "temporaries"
    overflow = tape.new("zeros", (1,), INT32, False)
    partial = tape.new("multi_tensor_l2norm", (PARTIAL_NORMS,), FP32, False, category="workspace")
    norm = tape.new("multi_tensor_l2norm", (1,), FP32, False)
    del partial
    squared = tape.new("pow", (1,), FP32, False)
    del overflow, norm, squared
    overflow = tape.new("zeros", (1,), INT32, False)  # of the kernel that scales, in place
    del overflow


class Clips(Technique):
    """torch.nn.utils.clip_grad_norm_; the loop keeps the norm until the step is over, to log it."""

    norm: Tensor | None = None

    def clip(self) -> None:
        """Between backward and the step."""
        self.norm = self.norm_of_gradients()

    def norm_of_gradients(self) -> Tensor:
        """The norm over all devices."""
        sharding, split = self.setup.sharding, self.setup.split
        sharded = sharding is not None and sharding.kind != DDP
        return clip_gradients(self.tape, sharded=sharded, parted=split is not None and split.tensor > 1)

    def after_step(self) -> None:
        """The norm is logged."""
        self.norm = None


class ClipsFp32(Technique):
    """The same of buffers in fp32."""

    def clip(self) -> None:
        """Between backward and the step."""
        clip_fp32_gradients(self.tape)
