"""DeepSpeed's ZeRO-Infinity: what of an optimizer and of parameters is on NVMe, and the buffers between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramplan.catalog.counting import setup_of
from vramplan.catalog.fields import Fields
from vramplan.engines.deepspeed.walk import order_of
from vramplan.engines.deepspeed.zero3_offload import SWAPPABLE_BYTES
from vramplan.options import words
from vramplan.replay.observers import Trained
from vramplan.replay.precision import precision_of
from vramplan.replay.recipe import recipe_of
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import ParameterDrive, Zero

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

DEVICE, BUFFERS = "offload_optimizer_device", "offload_optimizer_buffer_count"
STATES_IN_BUFFERS = 4  # of Adam: weights, their gradients and two moments are in buffers at once; also the default

BYTES = 2  # of an element of a parameter

PARAMETERS_DEVICE, *PARAMETER_SIZES = words.PARAMETER_DRIVE_KEYS
PARAMETER_DEFAULTS = dict(zip(PARAMETER_SIZES, (5, 100_000_000, 1_000_000_000), strict=True))
"""Buffers, and elements. Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/offload_config.py,
DeepSpeedZeroOffloadParamConfig."""


def drive_buffers(resolver: Resolver, fields: Fields, given: dict[str, Any], kind: str) -> int | None:
    """How many buffers on the host an optimizer on NVMe passes through; None if it is not there."""
    if "optimizer" not in resolver.raw.offload:
        for key in (DEVICE, BUFFERS):
            if key in given:
                fields.refuse(key, "means nothing without an offloaded optimizer", hint="offload: [optimizer]")
        return None
    if given.get(DEVICE, "cpu") == "cpu":
        if BUFFERS in given:
            fields.refuse(BUFFERS, "belongs to an optimizer on NVMe", hint=f"{DEVICE}: nvme")
        if DEVICE not in given and kind == "zero3":
            resolver.assume(f"parallel.{DEVICE}", "cpu", "the memory of the host")
        return None
    if kind != "zero3":
        fields.refuse(DEVICE, f"nvme belongs to parallel.sharding zero3, not to {kind}", hint="--sharding zero3")
    if BUFFERS not in given:
        resolver.assume(f"parallel.{BUFFERS}", STATES_IN_BUFFERS, "DeepSpeed's default")
    return int(given.get(BUFFERS, STATES_IN_BUFFERS))


def parameter_drive(resolver: Resolver, fields: Fields, given: dict[str, Any], kind: str) -> ParameterDrive | None:
    """How parameters pass between NVMe and the host; None if they are not there."""
    if "parameters" not in resolver.raw.offload:
        for key in words.PARAMETER_DRIVE_KEYS:
            if key in given:
                fields.refuse(
                    key, "means nothing without offloaded parameters", hint="offload: [parameters, optimizer]"
                )
        return None
    if given.get(PARAMETERS_DEVICE, "cpu") == "cpu":
        for key in PARAMETER_SIZES:
            if key in given:
                fields.refuse(key, "belongs to parameters on NVMe", hint=f"{PARAMETERS_DEVICE}: nvme")
        if PARAMETERS_DEVICE not in given and kind == "zero3":
            resolver.assume(f"parallel.{PARAMETERS_DEVICE}", "cpu", "the memory of the host")
        return None
    if kind != "zero3":
        message = f"nvme belongs to parallel.sharding zero3, not to {kind}"
        fields.refuse(PARAMETERS_DEVICE, message, hint="--sharding zero3")
    for key, default in PARAMETER_DEFAULTS.items():
        if key not in given:
            resolver.assume(f"parallel.{key}", default, "DeepSpeed's default")
    return ParameterDrive(*(int(given.get(key, default)) for key, default in PARAMETER_DEFAULTS.items()))


def check_parameter_drive(parallel: Fields, job: ResolvedJob) -> None:
    """Refuse parts that no buffer holds, as DeepSpeed does, and large parameters that always stay whole.

    Source: DeepSpeed 0.19.8, deepspeed/runtime/swap_tensor/partitioned_param_swapper.py, get_buffer.
    """
    sharding = job.sharding
    assert sharding is not None
    assert sharding.zero is not None
    drive, threshold = sharding.zero.parameter_drive, sharding.zero.param_persistence_threshold
    assert drive is not None
    sizes = _sizes_of(job.model)
    largest = -(-max(sizes) // sharding.shards)
    if largest > drive.buffer_size and largest * BYTES >= SWAPPABLE_BYTES:
        message = f"{drive.buffer_size:,} elements are too few: the largest parameter has {largest:,} on each device"
        parallel.refuse(PARAMETER_SIZES[1], message, hint=f"{largest} or more, or more devices")
    kept = max((size for size in sizes if size <= threshold), default=0)
    if -(-kept // sharding.shards) * BYTES >= SWAPPABLE_BYTES:
        message = f"{threshold:,} keeps parameters whole whose parts are on NVMe, which is not modelled"
        parallel.refuse("stage3_param_persistence_threshold", message, hint=f"less than {kept}")


def drives_to_dict(zero: Zero, offload: tuple[str, ...]) -> dict[str, Any]:
    """The same as keys of `parallel`, of what is offloaded."""
    found: dict[str, Any] = {}
    if "optimizer" in offload:
        found |= {DEVICE: "cpu" if zero.drive_buffers is None else "nvme", BUFFERS: zero.drive_buffers}
    if "parameters" in offload:
        drive = zero.parameter_drive
        sizes = (None,) * len(PARAMETER_SIZES) if drive is None else drive
        found |= {PARAMETERS_DEVICE: "cpu" if drive is None else "nvme"}
        found |= dict(zip(PARAMETER_SIZES, sizes, strict=True))
    return found


def _sizes_of(shape: ModelShape) -> tuple[int, ...]:
    setup = setup_of(shape)
    return order_of(recipe_of(setup, precision_of(setup.precision)), Trained(), ()).sizes
