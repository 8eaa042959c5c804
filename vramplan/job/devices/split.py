"""How a replica of a model is split over devices: what must divide, and what a runtime's code can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import engine_of, with_code_of
from vramplan.job.behaviour import under
from vramplan.replay.models import splits_of
from vramplan.replay.techniques.planned_split import has_plan
from vramplan.values.machine import Runtime
from vramplan.values.model import ModelShape
from vramplan.values.parallel import ALL_GATHER, ENDS_AS_BLOCKS, Split, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver


def check_split(resolver: Resolver, split: Split, model: ModelShape, runtime: Runtime, sequence_length: int) -> Split:
    """Refuse what the runtime's code cannot do, and sizes that do not divide, each with the nearest that do.

    What the split leaves open is taken where the program splits a model by a plan.
    """
    fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
    able = splits_of(model.family)
    known = model.published_family or model.family
    split = _experts_among_shards(resolver, _experts_beside_tensor(resolver, split, model), model, runtime)
    for key in ("tensor", "pipeline", "context", "expert", "sequence_parallel"):
        given = getattr(split, key)
        if given is not True and given <= 1:
            continue
        if key in able or is_planned(key, model, runtime):
            CHECKS[key](resolver, split, model, sequence_length)
        else:
            shown = "true" if given is True else given
            elsewhere = [name for name in with_code_of(known) if key in splits_of(engine_of(name).families[known])]
            hint = f"--runtime {elsewhere[0]}" if elsewhere and runtime.engine not in elsewhere else "leave it out"
            fields.refuse(key, f"{shown} is not modelled for {known} under {runtime.name}", hint=hint)
    if split.context > 1 and "context" not in able and split.context_communication is None:
        resolver.assume("parallel.context_communication", ALL_GATHER, "accelerate's default, cp_comm_strategy")
        split = split._replace(context_communication=ALL_GATHER)
    return split


def planned_part(split: Split, model: ModelShape) -> Split | None:
    """The split, where the model's own code knows nothing of it."""
    able = splits_of(model.family)
    return None if all(key in able for key in ("tensor", "context") if getattr(split, key) > 1) else split


def is_planned(key: str, model: ModelShape, runtime: Runtime) -> bool:
    """Whether a program splits a model whose code knows nothing of it: layer by layer, or along the sequence."""
    return key in under(runtime).splits and model.task == "lm" and (key != "tensor" or has_plan(model))


def _tensor(resolver: Resolver, split: Split, model: ModelShape, _sequence_length: int) -> None:
    _divides(resolver, "tensor", split.tensor, model.attention_heads, "attention heads", model)
    if split.tensor <= model.key_value_heads:
        _divides(resolver, "tensor", split.tensor, model.key_value_heads, "key and value heads", model)
    if model.full_key_value_heads is not None and split.tensor <= model.full_key_value_heads:
        what = "key and value heads of blocks without a window"
        _divides(resolver, "tensor", split.tensor, model.full_key_value_heads, what, model)
    _divides(resolver, "tensor", split.tensor, model.intermediate_size, "elements of the feed-forward layer", model)
    if model.experts is not None:
        _divides(resolver, "tensor", split.tensor, model.experts.intermediate_size, "elements of an expert", model)
    if model.state_space is not None:
        _divides(resolver, "tensor", split.tensor, model.state_space.groups, "groups of heads of a state space", model)


def _sequence(resolver: Resolver, split: Split, _model: ModelShape, sequence_length: int) -> None:
    fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
    if split.tensor == 1:
        message = "true shares what tensor parallelism leaves whole, and parallel.tensor is 1"
        fields.refuse("sequence_parallel", message, hint="--tensor 2, or leave it out")
    elif sequence_length % split.tensor:
        message = f"{split.tensor} devices cannot share a sequence_length of {sequence_length}"
        fields.refuse("sequence_parallel", message, hint=_nearest_multiple(sequence_length, split.tensor))


def _context(resolver: Resolver, split: Split, _model: ModelShape, sequence_length: int) -> None:
    """Each device has an early and a late part of the sequence, for an equal share of causal attention."""
    fields, parts = resolver.raw.fields.fields("parallel") or resolver.raw.fields, 2 * split.context
    if sequence_length % parts:
        message = f"{split.context} devices cannot share a sequence_length of {sequence_length} in {parts} equal parts"
        hint = _nearest_multiple(sequence_length, parts)
        if parts > sequence_length:  # a length was meant
            hint = (
                f"--context is the GPUs that share each sequence; for sequences of {split.context} tokens write --seq"
            )
        fields.refuse("context", message, hint=hint)


def _pipeline(resolver: Resolver, split: Split, model: ModelShape, _sequence_length: int) -> None:
    fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
    parts = split.pipeline * split.virtual
    alone = 2 if split.pipeline_split == ENDS_AS_BLOCKS else 0  # the embedding and the head may be a part each
    if parts > model.blocks + alone:
        message = f"{split.pipeline} stages"
        if split.virtual > 1:
            message += f" of {split.virtual} parts"
        most = (model.blocks + alone) // split.virtual
        hint = f"use at most {most}" if most > 1 else "use fewer parts"
        fields.refuse("pipeline", f"{message} are more than the {model.blocks} blocks of {model.name}", hint=hint)
    if split.group is not None and not under(resolver.runtime).groups_micro_batches:
        message = "its schedule has as many micro-batches in a row as there are stages"
        fields.refuse("microbatch_group_size", message, hint="leave it out, or runtime: megatron")
    if split.virtual == 1 and split.schedule == "interleaved":
        fields.refuse("schedule", "interleaved:1 is 1f1b", hint="use interleaved:2 or 1f1b")


def _experts(resolver: Resolver, split: Split, model: ModelShape, _sequence_length: int) -> None:
    fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
    if model.experts is None:
        fields.refuse("expert", f"{model.name} has no experts", hint="leave it out")
        return
    _divides(resolver, "expert", split.expert, model.experts.routed, "experts", model)
    sharing = resolver.raw.data_parallel_size * split.context
    if sharing % split.expert:
        message = f"{split.expert} do not divide the {sharing} devices that share the data"
        fields.refuse("expert", message, hint=nearest_divisors(split.expert, sharing))


def _experts_beside_tensor(resolver: Resolver, split: Split, model: ModelShape) -> Split:
    """Experts that are whole on tensor-parallel devices, as parts of experts on each: the bytes are the same.

    Source: NVIDIA/Megatron-LM core 0.16, core/parallel_state.py, expert_tensor_parallel_size.
    """
    sharing, mixture = resolver.raw.data_parallel_size * split.context, model.experts
    if split.tensor == 1 or mixture is None or sharing % split.expert == 0 or split.expert % split.tensor:
        return split
    apart = split.expert // split.tensor
    if sharing % apart or mixture.intermediate_size % split.tensor:
        return split
    why = f"expert_tensor_parallel_size 1 puts whole experts on the {split.tensor} tensor-parallel devices too; counted"
    resolver.assume("parallel.expert", apart, f"{why} as parts of each, which are as many bytes")
    return split._replace(expert=apart)


def _experts_among_shards(resolver: Resolver, split: Split, model: ModelShape, runtime: Runtime) -> Split:
    """Experts that are spread over the devices of FSDP: these hold as many bytes as without, and gather less."""
    raw, engine = resolver.raw, under(runtime)
    kind = raw.sharding or (engine.default_sharding(resolver)[0] if raw.data_parallel_size > 1 else None)
    among = engine.shards_hold_experts and is_fsdp(kind) and "expert" not in splits_of(model.family)
    if split.expert == 1 or model.experts is None or not among or raw.data_parallel_size % split.expert:
        return split
    why = f"{split.expert} devices that share experts are among those of FSDP: each holds as many bytes"
    resolver.assume("parallel.expert", 1, f"{why}; FSDP is counted as gathering all experts of a block, the most")
    return split._replace(expert=1, among_shards=split.expert)


def _divides(resolver: Resolver, key: str, size: int, whole: int, of_what: str, model: ModelShape) -> None:
    if whole and whole % size:
        fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
        message = f"{size} does not divide the {whole} {of_what} of {model.name}"
        fields.refuse(key, message, hint=nearest_divisors(size, whole))


def nearest_divisors(size: int, whole: int) -> str:
    """The divisors of a number on either side of one that is none."""
    below = next((one for one in range(min(size - 1, whole), 0, -1) if whole % one == 0), None)
    above = next((one for one in range(size + 1, whole + 1) if whole % one == 0), None)
    return "nearest: " + " and ".join(str(one) for one in (below, above) if one is not None)


def _nearest_multiple(length: int, of: int) -> str:
    below = length // of * of
    return "nearest: " + " and ".join(str(one) for one in (below, below + of) if one)


CHECKS = {
    "tensor": _tensor,
    "pipeline": _pipeline,
    "context": _context,
    "expert": _experts,
    "sequence_parallel": _sequence,
}
"""By the key what must divide what."""
