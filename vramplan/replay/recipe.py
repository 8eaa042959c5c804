"""What of an iteration the model's forward pass needs to know."""

from __future__ import annotations

from vramplan.engines import imported
from vramplan.replay.models import reads_slice
from vramplan.replay.models.modules import CORE, MASKED, OUTSIDE_LOSSES, Recipe, Segment, Slice, Tiling
from vramplan.replay.precision import Precision
from vramplan.replay.setup import Setup
from vramplan.values.parallel import RING, ZERO1, ZERO_STAGES, Split

FUSED_PROJECTION = "qkv_proj"  # as a target of an adapter, for a family that has three


def recipe_of(setup: Setup, precision: Precision, *, evaluates: bool = False) -> Recipe:
    """What the model's forward pass needs to know, in training or in eval mode."""
    model, p = setup.model, setup.dropout
    shared = setup.stage is not None or (setup.split is not None and setup.split.context > 1)
    before = 0 if setup.adapter is None else setup.adapter.tokens_before
    part = slice_of(setup) if shared or reads_slice(model.family) else Slice()
    return Recipe(
        slice=part,
        shape=model if p is None else model.with_dropout(p),
        weight_dtype=precision.weights,
        loaded_dtype=precision.frozen or precision.stored,
        sequence_length=setup.sequence_length // part.context + before,
        image_size=setup.image_size,
        vision_attention_dropout=model.vision_attention_dropout if p is None else p,
        attention=setup.attention,
        segments=_segments_of(setup),
        loss=OUTSIDE_LOSSES.get(setup.loss, setup.loss),
        embedding_dropout=model.embedding_dropout if p is None else p,
        attention_dropout=model.attention_dropout if p is None else p,
        hidden_dropout=model.hidden_dropout if p is None else p,
        recomputes_core=any(segment.selects == CORE for segment in setup.segments),
        activation_dropout=model.activation_dropout if p is None else p,
        target_length=setup.target_length or (setup.sequence_length if before else None),
        padded=setup.padded,
        masked=setup.loss in MASKED,
        packed=setup.packed,
        evaluates=evaluates,
        returns_cache=setup.use_cache and _makes_cache(setup, evaluates=evaluates),
        old_code=setup.old_code,
        split=setup.split,
        compiled=setup.compile,
        mamba_kernels=setup.mamba_kernels,
        float8=precision.name == "fsdp-fp8",
        tiling=_tiling_of(setup),
        modules_repeat=setup.sharding is None,  # what shares the states goes through the weights of a block in order
        fused_projection=setup.adapter is not None and FUSED_PROJECTION in setup.adapter.targets,
    )


def _makes_cache(setup: Setup, *, evaluates: bool) -> bool:
    """Whether the model makes a cache, which its blocks may leave empty; with checkpoints it trains without one."""
    name = "caches_in_evaluation" if evaluates else "returns_cache"
    made: bool = imported(f"vramplan.replay.techniques.key_values:{name}")(setup)
    return made and setup.cache_objects


def _tiling_of(setup: Setup) -> Tiling | None:
    """Axolotl takes its own function, and under ZeRO that of DeepSpeed, whose hooks know of tiles."""
    if setup.tiled_mlp is None:
        return None
    return Tiling(setup.tiled_mlp, sums_apart=setup.sharding is None or setup.sharding.kind not in ZERO_STAGES)


def _segments_of(setup: Setup) -> tuple[Segment, ...]:
    if not setup.compile:
        return setup.segments
    found: tuple[Segment, ...]
    found = imported("vramplan.replay.techniques.compiling:compiled_segments")(setup.model.family, setup.segments)
    return found


def slice_of(setup: Setup) -> Slice:
    """What of a model this device's forward pass has."""
    split, stage = setup.split or Split(), setup.stage
    deepspeed = setup.sharding is not None and setup.sharding.kind == ZERO1
    first, last = (True, True) if stage is None else (stage.first, stage.last)
    ring = split.context_communication == RING
    return Slice(
        split.tensor,
        split.sequence_parallel,
        first,
        last,
        deepspeed,
        split.context,
        ring,
        split.expert,
        setup.expert_imbalance,
        setup.expert_capacity_factor,
        setup.expert_pad_to_capacity,
        stage.starts[0] if stage is not None and stage.starts else 0,
    )
