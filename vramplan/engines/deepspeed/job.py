"""DeepSpeed's ZeRO: its switches, whose defaults are taken, and what it does not go with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramplan.catalog.fields import shown
from vramplan.engines.deepspeed.drives import check_parameter_drive, drive_buffers, drives_to_dict, parameter_drive
from vramplan.job.behaviour import JobBehaviour, SharingBehaviour, under
from vramplan.values.machine import Runtime
from vramplan.values.parallel import DDP, ZERO_STAGES, Sharded, Zero

if TYPE_CHECKING:
    from vramplan.catalog.fields import Fields
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import ResolvedJob


DEFAULTS: dict[str, int] = {
    "reduce_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
}
"""Elements. Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/config.py, DeepSpeedZeroConfig."""

AUTO: dict[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""What the Trainer makes of `auto`, which its documentation recommends for stage 3.

Source: transformers 5.23.0, src/transformers/integrations/deepspeed.py, HfTrainerDeepSpeedConfig.
"""

REPLICAS = "zero0"
STAGE_0 = "DeepSpeed without ZeRO (stage 0) was read in its source and never traced"

KEY = "deepspeed_version"
RELEASE = re.compile(r"v?(\d{1,2})\.(\d{1,2})\.(\d{1,2})", re.ASCII)
OLDEST = (0, 9, 0)  # of which it was read how weights are put together
NAMES = {"pytorch_version": "PyTorch", "transformers_version": "Transformers"}
# Of March 2026, as DeepSpeed 0.18.7: who names an older one has a DeepSpeed of its time. On 24 February Transformers
# was 5.2.0, and PyTorch 2.11 was not out yet (pytorch/pytorch pull request 175274).
OF_ITS_TIME = {"pytorch_version": (2, 11), "transformers_version": (5, 3)}

STAGE_3 = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters")
ONLY_STAGE_3 = (*STAGE_3, "sub_group_size")
LINEAR = "memory_efficient_linear"


def zero_of(resolver: Resolver, kind: str, devices: int) -> Sharded:
    """What the switches say, and DeepSpeed's defaults, or those of the Trainer's `auto`."""
    raw = resolver.raw
    fields = raw.fields.fields("parallel") or raw.fields
    given = dict(raw.zero or {})
    contiguous = given.get("contiguous_gradients") is not False
    if "allgather_bucket_size" in given:
        message = "parallel.allgather_bucket_size decides nothing: DeepSpeed 0.19.8 gathers each flat buffer in place"
        resolver.warnings.append(message)
    overlap = given.get("overlap_comm")
    if overlap is None:
        overlap = kind == "zero3"
        resolver.assume("parallel.overlap_comm", overlap, f"DeepSpeed's default for {kind}")
    wanted = [key for key in DEFAULTS if kind == "zero3" or key not in ONLY_STAGE_3]
    if kind != "zero3":
        for key in (*ONLY_STAGE_3, LINEAR):
            if key in given:
                fields.refuse(key, f"belongs to parallel.sharding zero3, not to {kind}", hint="leave it out")
    sizes = {key: _size(resolver, key, given, kind) for key in wanted}
    return Sharded(
        kind,
        devices,
        zero=Zero(
            reduce_bucket_size=sizes["reduce_bucket_size"],
            overlap_comm=overlap,
            allgather_bucket_size=given.get("allgather_bucket_size"),
            contiguous_gradients=contiguous,
            flat_on_device=_is_flat_on_device(resolver, kind),
            memory_efficient_linear=given.get(LINEAR) is not False,
            drive_buffers=drive_buffers(resolver, fields, given, kind),
            parameter_drive=parameter_drive(resolver, fields, given, kind),
            **{key.removeprefix("stage3_"): sizes.get(key, DEFAULTS[key]) for key in ONLY_STAGE_3},
            beside=_sizes_beside(resolver, sizes) if kind == "zero3" else None,
        ),
    )


def _is_flat_on_device(resolver: Resolver, kind: str) -> bool:
    """Whether stages 1 and 2 put the weights together there, which a release decides."""
    raw = resolver.raw
    since = Runtime.flat_on_device_since if resolver.runtime is None else resolver.runtime.flat_on_device_since
    named = raw.deepspeed_version
    if named is not None and kind == "zero3":
        resolver.warnings.append(f"{KEY}: what releases change is of stages 1 and 2, and decides nothing here")
    if named is not None:
        match = RELEASE.fullmatch(named.strip())
        found = None if match is None else tuple(int(one) for one in match.groups())
        if found is None:
            resolver.fields.problem(
                KEY, f"{shown(named)} is no release of DeepSpeed", hint='three numbers, as in "0.18.6"'
            )
        elif found < OLDEST:
            hint = f"{'.'.join(map(str, OLDEST))} or later; or leave it out"
            resolver.fields.refuse(KEY, f"{named} is not modelled", hint=hint)
        return found is None or found >= since
    for key, first in OF_ITS_TIME.items():
        other = getattr(raw, key)
        if kind != "zero3" and other is not None and _release(other) < first:
            release = ".".join(map(str, since))
            resolver.assume(KEY, f"before {release}", f"of the time of {NAMES[key]} {other}")
            return False
    return True


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _sizes_beside(resolver: Resolver, sizes: dict[str, int]) -> tuple[int, int] | None:
    """Of the engine of a reference, which is made before the Trainer sizes what is `auto`: DeepSpeed then has defaults.

    What a job says as the Trainer would count it is taken for `auto`.
    Source: trl 1.16.0, trainer/dpo_trainer.py, DPOTrainer.__init__; transformers 5.23.0, integrations/deepspeed.py,
    deepspeed_init (trainer_config_finalize); deepspeed/runtime/config_utils.py, DeepSpeedConfigModel.__init__.
    """
    model = resolver.model_shape
    if model is None or not under(resolver.runtime).sizes_buckets_by_width:
        return None
    ahead, small = (
        DEFAULTS[key] if sizes[key] == AUTO[key](model.hidden_size) else sizes[key]
        for key in ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    )
    return ahead, small


def _size(resolver: Resolver, key: str, given: dict[str, Any], kind: str) -> int:
    if key in given:
        return int(given[key])
    model = resolver.model_shape
    if kind == "zero3" and model is not None and key in AUTO and under(resolver.runtime).sizes_buckets_by_width:
        size = AUTO[key](model.hidden_size)
        resolver.assume(f"parallel.{key}", size, "the Trainer's `auto`, in elements")
        return size
    resolver.assume(f"parallel.{key}", DEFAULTS[key], "DeepSpeed's default, in elements")
    return DEFAULTS[key]


def zero_to_dict(sharding: Sharded, offload: tuple[str, ...]) -> dict[str, Any]:
    """The switches that mean something, as keys of `parallel`."""
    zero = sharding.zero
    assert zero is not None
    found: dict[str, Any] = {
        "reduce_bucket_size": zero.reduce_bucket_size,
        "allgather_bucket_size": zero.allgather_bucket_size,
        "overlap_comm": zero.overlap_comm,
        "contiguous_gradients": zero.contiguous_gradients,
    }
    if sharding.kind == "zero3":
        found |= {key: getattr(zero, key.removeprefix("stage3_")) for key in ONLY_STAGE_3}
        found[LINEAR] = zero.memory_efficient_linear
        found |= drives_to_dict(zero, offload)
    return found


def only_with_zero(resolver: Resolver) -> None:
    """Refuse switches of ZeRO without ZeRO."""
    fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
    stages = ", ".join(ZERO_STAGES)
    for key in resolver.raw.zero or ():
        fields.refuse(key, f"belongs to parallel.sharding {stages}", hint="leave it out, or --sharding zero2")
    if resolver.raw.deepspeed_version is not None:
        message = f"it decides nothing but with parallel.sharding {stages}"
        resolver.fields.refuse(KEY, message, hint="leave it out, or --sharding zero2")


class DeepSpeedJob(JobBehaviour):
    """DeepSpeed's engine around a plain loop."""

    keeps_master_copy = True
    way_of_replicas = REPLICAS
    offloads_by_zero = True
    splits = ("tensor", "context")  # AutoTP, Ulysses

    def default_sharding(self, resolver: Resolver) -> tuple[str, str]:
        """Nothing is shared."""
        return DDP, "stage 0 of DeepSpeed, its default"

    def check_sharing(self, resolver: Resolver, sharding: Sharded | None) -> None:
        """Refuse other ways than its own, and element types that its optimizer without ZeRO has no code for."""
        runtime, raw = resolver.runtime, resolver.raw
        if runtime is None or resolver.is_refused or (sharding is not None and sharding.zero is not None):
            return
        if sharding is None or sharding.way != REPLICAS:
            message = (
                f"{raw.sharding or 'none'} is not DeepSpeed's, which shares states by ZeRO, or has them all as in ddp"
            )
            raw.fields.refuse("parallel.sharding", message, hint=f"one of ddp, {', '.join(ZERO_STAGES)}")
        elif resolver.precision.startswith(("pure-", "fsdp-")):
            half = resolver.precision.rpartition("-")[2]
            message = f"{resolver.precision} is not DeepSpeed's, whose optimizers step an fp32 copy of {half} weights"
            raw.fields.refuse("precision", message, hint=f"use mixed-{half}")

    def check(self, resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
        """Without ZeRO nothing was traced: read in its source, and composed."""
        if job.sharding is None or job.sharding.way != REPLICAS:
            return job
        return job._replace(composed=(*job.composed, STAGE_0))


class ZeroSharing(SharingBehaviour):
    """The stages of ZeRO under any loop that DeepSpeed is put around."""

    def sharded(self, resolver: Resolver, kind: str, devices: int) -> Sharded:
        """What the switches say, with DeepSpeed's defaults, or those of the Trainer's `auto`."""
        return zero_of(resolver, kind, devices)

    def refuse_keys(self, resolver: Resolver) -> None:
        """Refuse switches of ZeRO without ZeRO."""
        only_with_zero(resolver)

    def check(self, parallel: Fields, job: ResolvedJob) -> None:
        """Refuse what does not go with parameters on a drive."""
        if job.sharding is not None and job.sharding.zero is not None and job.sharding.zero.parameter_drive is not None:
            check_parameter_drive(parallel, job)

    def to_dict(self, sharding: Sharded, offload: tuple[str, ...]) -> dict[str, Any]:
        """The switches as keys of `parallel`: null where they mean nothing."""
        return zero_to_dict(sharding, offload)


BEHAVIOUR = DeepSpeedJob()
SHARING = ZeroSharing()
