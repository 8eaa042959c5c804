"""A small answer of `vramplan explain --time`, with every part of one."""

from __future__ import annotations

from vramplan.results import FitResult
from vramplan.results.frozen import FrozenDict
from vramplan.results.roofline import BlockRow, CollectiveRow, KernelRow, Roofline
from vramplan.results.time import PARTS, Time

TIME = Time(
    step_seconds=2.0,
    step_seconds_low=1.7,
    step_seconds_high=2.7,
    tokens_per_second_per_device=512.0,
    samples_per_second=2.0,
    mfu_percent=40.0,
    hfu_percent=50.0,
    bound="compute",
    basis="extrapolated",
    shares=FrozenDict({part: 1 / len(PARTS) for part in PARTS}),
    tokens_per_second=1024.0,
    devices=2,
    samples_per_step=4,
    tokens_per_step=2048,
    model_flops=8 * 10**13,
    hardware_flops=10**14,
    peak_flop_per_s=5e13,
)


def small_roofline(fit: FitResult) -> Roofline:
    return Roofline(
        fit=fit,
        time=TIME,
        steps=2,
        product_flop_per_s=4e13,
        bytes_per_s=1e12,
        kernels=(
            KernelRow("mm", "forward", "product", ((4, 8), (8, 8)), 3, 10**12, 10**9, 0.025, 0.025, "compute"),
            KernelRow("add", "backward", "bytes", ((4, 8),), 3, 0, 10**9, 0.001, 0.001, "memory-bandwidth"),
        ),
        blocks=(
            BlockRow(0, 3, 2, 0.01, 0.0, 0.02, 10**12, 10**9, 0.06),
            BlockRow(None, 0, 1, 0.001, 0.0, 0.002, 0, 10**6, 0.003),
        ),
        collectives=(CollectiveRow("all-reduce", "data", "backward", 10**9, 2, 1, 0.01, True),),
    )
