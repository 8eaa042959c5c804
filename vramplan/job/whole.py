"""A job whose parts are decided: what it has as it was given, what a report tells of it, and whether it is special."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from vramplan.job import on_demand
from vramplan.job.given.keyed import sold_as
from vramplan.job.given.read import RawJob
from vramplan.job.resolver import Resolver
from vramplan.options.option import FLAG
from vramplan.options.table import TABLE
from vramplan.replay.models import is_untraced
from vramplan.replay.models.capable import untraced_parts
from vramplan.units import format_gib
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.model import ModelShape


@cache
def _of_the_draft() -> tuple[tuple[str, bool], ...]:
    """What draft and job have under one name, and whether it is a flag."""
    return tuple((row.attribute, row.kind == FLAG) for row in TABLE if row.attribute in ResolvedJob._fields)


def as_given(raw: RawJob, decided: Mapping[str, Any]) -> dict[str, Any]:
    """What the job has as it was given, where nothing `decided` it; what was not given has the default of the job."""
    found = {}
    for name, is_flag in _of_the_draft():
        if name in decided:
            continue
        value = getattr(raw, name)
        if value is not None:
            found[name] = value
        elif name not in ResolvedJob._field_defaults:
            found[name] = False if is_flag else None
    return found


def has_a_state_space(model: ModelShape) -> bool:
    """Whether some blocks of the model have one."""
    return model.state_space is not None and bool(model.state_space.layers)


def is_special(job: ResolvedJob) -> bool:
    """Whether a job has a technique that does not go with all the others (vramplan/replay/techniques/evidence.py)."""
    one = job.compile or job.precision.endswith("fp8") or job.padding != "none" or job.packing
    return (
        one
        or job.half_weights
        or job.planned is not None
        or job.transformers_version is not None
        or job.litgpt_version is not None
        or (job.split is not None and job.split.tensor > job.model.key_value_heads)
        or (job.model.engine is not None and (is_untraced(job.model.family) or bool(untraced_parts(job.model))))
        or bool(job.frozen)
        or job.adapter is not None
        or job.sharding is not None
        or job.model.attention_softcap
        or job.checkpoint_reentrant
        or job.offload_activations
        or bool(job.liger_kernels)
        or job.tiled_mlp is not None
        or job.distillation is not None
        or bool(job.eval_batch_size or job.generation_batch_size or job.label_smoothing)
        or job.loss not in ("standard", "fp32-logits")
    )


def tell_of_the_model(resolver: Resolver, model: ModelShape) -> None:
    """What the model decides where the job says nothing."""
    if (
        not resolver.fields.present("dropout")
        and resolver.raw.dropout is None
        and max(model.embedding_dropout, model.attention_dropout, model.hidden_dropout) > 0
    ):
        shares = (model.embedding_dropout, model.attention_dropout, model.hidden_dropout)
        resolver.assume("dropout", shares[0] if len(set(shares)) == 1 else list(shares), "the model's own")
    if resolver.raw.packing is None and model.takes_text:
        why = "every sequence counts at its full sequence_length; varied_lengths plays shorter ones too"
        resolver.assume("packing", False, why)


def warn(resolver: Resolver, model: ModelShape, gpu: Gpu, sequence_length: int, attention: str) -> None:
    """What is to be known of a job that is answered."""
    sold = sold_as(gpu.name) if gpu.capacity_basis == "given" else None
    if sold is not None:
        size = format_gib(gpu.capacity_bytes)
        resolver.warnings.append(f"{gpu.name} is {size}: cards sold as {sold} GB have {sold} GiB (--gpu '{sold} GiB')")
    before = resolver.raw.tokens_before
    length, most = f"sequence_length {sequence_length - before}", model.max_positions
    if before:
        length = f"{length} with {before} virtual tokens"
    if sequence_length > most and model.takes_text:
        resolver.warnings.append(f"{length} is more than the max_positions {most} of {model.name}")
    if model.linear_attention is not None:
        on_demand.tell_linear(resolver, attention)
    if model.state_space is not None or resolver.raw.mamba_kernels:
        on_demand.tell_space(resolver, model)
    if model.short_convolution is not None and model.short_convolution.layers:
        on_demand.tell_short(resolver, model.short_convolution.kernel)
    checkpointing = resolver.raw.activation_checkpointing or ""
    if checkpointing.startswith("selective-layer:") and int(checkpointing.partition(":")[2]) > max(model.stacks):
        resolver.warnings.append(f"{checkpointing} recomputes nothing: {model.name} has {_blocks(model)}")
    if checkpointing == "selective" and attention != "eager":
        what = f"selective runs the {attention} kernel twice and saves nothing but its row statistics"
        resolver.warnings.append(f"{what}: fused attention stores no scores that could be recomputed")
    raw, devices = resolver.raw, resolver.raw.data_parallel_size
    if raw.host_memory_bytes is not None and not (raw.offload or raw.offload_activations):
        resolver.warnings.append("host_memory is not looked at: the job keeps nothing in the memory of the host")
    if devices > 1 and resolver.raw.sharding == "none":
        what = "data-parallel devices without sharding"
        resolver.warnings.append(f"{devices} {what}: communication buffers are not counted")


def _blocks(model: ModelShape) -> str:
    return " and ".join(str(layers) for layers in model.stacks) + " blocks"
