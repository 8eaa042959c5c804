"""What a job's keys say of FSDP: which of its versions, over how many devices, and how gradients are summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import under
from vramplan.job.evidence.cells import FSDP_FP8, FSDP_HALVES
from vramplan.job.machine.software import version_of as release_of
from vramplan.options.words import AS_GATHERED, TORCHAO_OPTIMIZERS, pattern_word
from vramplan.replay.models.capable import named_units, no_flat_parameters, no_flat_policy, no_flat_training
from vramplan.replay.models.part_names import HEAD
from vramplan.replay.models.parts import norm_with_head, own_units
from vramplan.replay.sharding import OWN_UNITS
from vramplan.replay.sharding.traced import OF_BITSANDBYTES
from vramplan.values.job import OF_TORCHAO
from vramplan.values.parallel import BLOCKS, FSDP, Sharded

if TYPE_CHECKING:
    from vramplan.catalog.fields import Fields
    from vramplan.job.given.read import RawJob
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

KEYS = ("fsdp_version", "reduce_dtype", "fsdp_units", "limit_all_gathers")
"""Keys of `parallel` that belong to FSDP alone."""

OUTSIDE_OF_THE_HEAD = ("fused", "tiled")  # losses that take its weight, and do not call the module


def refuse_fsdp_keys(raw: RawJob, parallel: Fields) -> None:
    """Refuse the keys of FSDP where the states are shared in another way."""
    for key in KEYS:
        if getattr(raw, key) is not None:
            parallel.refuse(key, "belongs to FSDP", hint="--sharding fsdp, or leave it out")


def version_of(resolver: Resolver) -> tuple[int, str | None]:
    """Which version of FSDP shares the states, and why where the job does not say it."""
    raw = resolver.raw
    if raw.fsdp_version is not None:
        return raw.fsdp_version, None
    version, why = under(resolver.runtime).fsdp_version(resolver)
    if version == 2 and raw.optimizer in OF_BITSANDBYTES:
        return 1, "bitsandbytes steps no DTensors, which the shards of fully_shard are"
    return version, why


def fsdp_of(resolver: Resolver, parallel: Fields, kind: str, devices: int) -> Sharded:
    """How the devices share the states: all of them, or groups of some that each have everything."""
    raw = resolver.raw
    word, _, size = kind.partition(":")
    shards = raw.shards or devices
    if size:
        shards = int(size)
        if shards > devices or devices % shards:
            message = f"{kind}: {shards} do not divide the {devices} data-parallel devices"
            parallel.refuse("sharding", message, hint="N is the number of devices that share the states")
        elif raw.shards not in {None, shards}:
            message = f"{raw.shards} contradicts {kind}"
            parallel.refuse("shards", message, hint="leave it out")
    if shards < 2 and devices > 1:
        parallel.refuse("sharding" if size else "shards", "1 device shares nothing", hint="use ddp")
    version, why = version_of(resolver)
    if why is not None:
        resolver.assume("parallel.fsdp_version", version, why)
    if version == 2 and raw.optimizer in OF_TORCHAO and raw.optimizer not in TORCHAO_OPTIMIZERS:
        why = "torchao's, whose states have the sizes of those of bitsandbytes, which steps no DTensors"
        resolver.assume("optimizer", raw.optimizer, why)
    model = resolver.model_shape
    obstacle = None
    if version == 1 and model is not None:
        obstacle = no_flat_parameters(model.family)
        if obstacle is None and raw.adapter is None:
            obstacle = no_flat_training(model)
        if obstacle is None and resolver.precision in FSDP_HALVES:
            obstacle = no_flat_policy(model.family)
    if obstacle is not None and model is not None:
        message = f"1 is not modelled for {model.code}: {obstacle}"
        parallel.refuse("fsdp_version", message, hint="use 2; its optimizers are those of PyTorch")
    if version == 1 and raw.adapter is not None:
        why = "PEFT's fsdp_auto_wrap_policy, with use_orig_params=False: each matrix of an adapter is a unit of its own"
        resolver.assume("parallel.units", "peft", why)
    elif model is not None and (named := named_units(model.family)) is not None:
        why = f"as who names them to Accelerate has it; Transformers names {named} by itself, which is not modelled"
        resolver.assume("parallel.units", "blocks", why)
    no_sync = raw.no_sync
    if no_sync is None:
        no_sync, why = under(resolver.runtime).no_sync(resolver)
        if version == 1 and "parameters" in raw.offload:
            no_sync, why = True, "FSDP1 adds no micro-step to gradients that are on the host"
        resolver.assume("parallel.no_sync", no_sync, why)
    return Sharded(
        FSDP if size else word,
        shards,
        no_sync=no_sync,
        version=version,
        reduce_dtype=raw.reduce_dtype or _reduced_by(resolver),
        replicas=max(devices // shards, 1),
        units=_units(resolver, parallel, version),
        limits_gathers=_limit_of_gathers(resolver, parallel, version),
    )


def _limit_of_gathers(resolver: Resolver, parallel: Fields, version: int) -> bool | None:
    """Whether units wait for each other before they are gathered; None: as FSDP1 of the release does by itself."""
    asked, runtime = resolver.raw.limit_all_gathers, resolver.runtime
    if asked is None or runtime is None:
        return None
    if version == 2:
        if not asked:
            message = "fully_shard gathers one unit ahead, and has no such switch"
            parallel.refuse("limit_all_gathers", message, hint="leave it out, or fsdp_version 1")
        return None
    release = release_of(resolver.raw.pytorch_version or "")
    limits = release is None or release >= runtime.limited_gathers_since
    return None if asked == limits else asked


def _units(resolver: Resolver, parallel: Fields, version: int) -> str:
    """What is wrapped beside the blocks: as the job says, else as the runtime does where that can be followed."""
    raw, runtime, model = resolver.raw, resolver.runtime, resolver.model_shape
    asked = raw.fsdp_units
    word = asked or (None if runtime is None else runtime.defaults.get("fsdp_units")) or BLOCKS
    if word == BLOCKS or model is None:
        return word
    why = _no_units(raw, model, word, version)
    if asked is None:
        assert runtime is not None
        note = runtime.notes.get("fsdp_units") or f"as {runtime.name} wraps"
        resolver.assume("parallel.fsdp_units", BLOCKS if why else word, f"not {word}: {why}" if why else note)
        return BLOCKS if why else word
    if why:
        parallel.refuse("fsdp_units", f"{word}: {why}", hint="leave it out")
    return word


def _no_units(raw: RawJob, model: ModelShape, word: str, version: int) -> str | None:
    """Why the ends of a model cannot be units; None where they can."""
    parts, joint = OWN_UNITS[word]
    if version == 1:
        return "units beside the blocks are modelled under fsdp_version 2"
    if set(parts) - set(own_units(model.family)) or (joint and not norm_with_head(model.family)):
        return f"the replay does not follow units beside the blocks in this code of {model.code}"
    if model.tied_embeddings:
        return "a tied head uses the embedding outside of its unit, which PyTorch refuses"
    if HEAD in parts and pattern_word(raw.loss or "") in OUTSIDE_OF_THE_HEAD:
        return f"loss {raw.loss} reads the head's weight outside of its unit"
    return None


def _reduced_by(resolver: Resolver) -> str | None:
    """What the policy that the runtime makes of a precision sums gradients in; None: what the engine does by itself."""
    precision, runtime = resolver.precision, resolver.runtime
    word = None if runtime is None else runtime.defaults.get("reduce_dtype")
    halves = precision in FSDP_HALVES
    if word is None or runtime is None or not (halves or (word != AS_GATHERED and precision == FSDP_FP8)):
        return None
    found: str = precision.rpartition("-")[2] if word == AS_GATHERED else word
    resolver.assume("parallel.reduce_dtype", found, runtime.notes.get("reduce_dtype") or f"as {runtime.name} sums")
    return found
