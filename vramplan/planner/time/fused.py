"""Kernels of a program that the replay does not have: it runs the code of Transformers, and casts nothing to fp8.

Where a compiled step multiplies in fp8, the casts are parts of other kernels, and the replay lists products in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.planner.time.behaviour import FusedKernel
from vramplan.replay.kernels import (
    ATTENTION,
    BACKWARD,
    BYTES,
    DEQUANTIZED,
    FORWARD,
    FP8,
    NOTHING,
    PRODUCT,
    RECOMPUTE,
    Kernel,
)
from vramplan.values.job import ResolvedJob

ITEMSIZE = 2  # such kernels run in 16 bits


def with_fused(
    kernels: Sequence[Kernel], fused: Sequence[FusedKernel], job: ResolvedJob, blocks: int
) -> tuple[Kernel, ...]:
    """The kernels of a micro-batch with those of a program in place of the point-wise ones in its blocks.

    Products, attention, numbers that are made of 4-bit codes, and what is outside of the blocks stay.
    """
    inside = [kernel for kernel in kernels if kernel.unit]
    if not inside:
        return tuple(kernels)
    unit = max(inside, key=lambda kernel: kernel.times).unit
    kept = [kernel for kernel in kernels if not kernel.unit or kernel.kind != BYTES or kernel.operator == DEQUANTIZED]
    directions = [FORWARD, BACKWARD]
    if any(kernel.direction == RECOMPUTE for kernel in inside):
        directions.insert(1, RECOMPUTE)
    for one in fused:
        for direction in directions:
            elements = one.backward_elements if direction == BACKWARD else one.forward_elements
            moved = elements * job.sequence_length * ITEMSIZE
            kept.append(
                Kernel(
                    operator=one.operator,
                    direction=direction,
                    kind=BYTES,
                    unit=unit,
                    dtype="bfloat16",
                    head_size=0,
                    launches=one.launches,
                    flops=NOTHING,
                    again=NOTHING,
                    read=(0, moved, 0),
                    written=NOTHING,
                    shapes=(),
                    times=blocks,
                )
            )
    return tuple(kept)


LINEAR = frozenset({"mm", "addmm"})  # operators of a linear layer, and of its gradients


def in_eight_bits(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels of a compiled step whose linear layers are Float8Linear: all of them but that outside of the blocks.

    Each operand is read for its largest number, and read and written in 8 bits.
    Source: torchtitan, components/quantization/float8.py, `filter_fqns: ["output"]` of its train_configs; torchao,
    float8/float8_scaling_utils.py, hp_tensor_to_float8_dynamic.
    """
    found: list[Kernel] = []
    for kernel in kernels:
        if kernel.kind == PRODUCT and kernel.unit and kernel.operator in LINEAR:
            found += (kernel._replace(dtype=FP8), _casts_of(kernel))
        else:
            found.append(kernel)
    return tuple(found)


def _casts_of(kernel: Kernel) -> Kernel:
    """Of its operands in 16 bits, which the replay knows as what it reads."""
    fixed, each, pairs = kernel.read
    written = fixed // ITEMSIZE, each // ITEMSIZE, pairs // ITEMSIZE
    return kernel._replace(
        operator="to_float8",
        kind=BYTES,
        flops=NOTHING,
        again=NOTHING,
        read=(2 * fixed, 2 * each, 2 * pairs),
        written=written,
        launches=2 * kernel.launches,
        aligned=0,
    )


def over_all_keys(kernels: Sequence[Kernel], context: int) -> tuple[Kernel, ...]:
    """The kernels of a device that has a part of each sequence, where the replay knows the part alone.

    Its queries attend to the keys of all devices, a part after another: so its attention runs as often as there are.
    Where heads are exchanged instead, it has a part of them over the whole sequence, which is as much.
    Source: torch/distributed/tensor/experimental/_attention.py, _templated_ring_attention; arXiv:2309.14509.
    """
    return tuple(
        kernel._replace(times=kernel.times * context) if kernel.kind == ATTENTION else kernel for kernel in kernels
    )
