"""How the states of a model are shared among data-parallel devices, and what that costs each of them.

A file of this package is an engine's way to do it; it is imported when a job asks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.engines import brought_for
from vramplan.replay.models import prefetches_after, steps_views
from vramplan.replay.models.modules import Recipe
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.parts import keeps_last_unit, keeps_root, reads_head_outside, reshards_root
from vramplan.replay.observers import Accumulation, Trained
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.sharding.flat_leaves import FlatLeaves
from vramplan.replay.sharding.flat_parameter import FlatParameters
from vramplan.replay.sharding.flat_views import FlatViews
from vramplan.replay.sharding.fully_shard import FullyShard
from vramplan.replay.sharding.redistribution import Redistribution
from vramplan.replay.sharding.replicated import Replicated
from vramplan.replay.sharding.units import (
    REDUCED,
    SHARDS,
    WHOLE,
    OutsideBlocks,
    ShardedWeight,
    ShardPolicy,
    outside_weights,
    weight_of,
)
from vramplan.replay.techniques import Shards, frees_gradients, objective_of
from vramplan.tuples import NamedTuple
from vramplan.values.adapter_kinds import KINDS
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import BLOCKS, DDP, ENDS_AS_BLOCKS, FSDP, FSDP_GRAD_OP, WITH_NORM

MOST_OUTSIDE = 64  # models whose parameters in no block are kept, of a few numbers each

_known_outside: dict[Setup, OutsideBlocks] = {}

OWN_UNITS: dict[str, tuple[tuple[str, ...], bool]] = {
    BLOCKS: ((), False),
    "embedding": ((EMBEDDINGS,), False),
    "head": ((HEAD,), False),
    ENDS_AS_BLOCKS: ((EMBEDDINGS, HEAD), False),
    WITH_NORM: ((EMBEDDINGS, HEAD), True),
}
"""Which parts of a model are units beside its blocks, and whether the last norm is in the head's."""


class Way(NamedTuple):
    """A way to share states that an engine brings."""

    walk: Callable[[Setup, Tape, Recipe, Precision], Shards]  # through one iteration
    refused: Callable[[ResolvedJob], dict[str, str]]  # what of a job does not go with it, by its key; else ""
    steps: tuple[str, ...]  # optimizers that step what it gives them
    composed: Callable[[ResolvedJob], dict[str, str]]  # what goes with it and was not traced, by its key; else ""


def way_of(kind: str) -> Way:
    """The way to share states that stands for a word of a job and is not PyTorch's own."""
    way: Way | None = brought_for(kind)
    if way is None:
        raise LookupError(f"no engine shares states by {kind}")
    return way


def sharding_of(setup: Setup, tape: Tape, recipe: Recipe, precision: Precision) -> Shards:
    """The engine that a job's way to share its states means."""
    assert setup.sharding is not None
    if setup.sharding.way is not None:
        return way_of(setup.sharding.way).walk(setup, tape, recipe, precision)
    if setup.sharding.kind == DDP:
        return Replicated(
            tape,
            bucket_views=setup.sharding.bucket_views and not setup.before_last,  # under no_sync they are none yet
            resident=tape.role(Accumulation).resident,
            outside=lambda: _outside(setup, tape, recipe, ShardPolicy(1)).root,
        )
    if setup.sharding.kind not in (FSDP, FSDP_GRAD_OP):
        return way_of(setup.sharding.kind).walk(setup, tape, recipe, precision)
    engine: type[FullyShard] = FullyShard
    if setup.sharding.version == 1:
        engine = FlatViews if steps_views(recipe.shape.family) else FlatParameters
        if setup.adapter is not None:
            engine = FlatLeaves
    accumulated = None
    if setup.accumulating:
        accumulated = WHOLE if setup.sharding.no_sync else SHARDS
    reduce = REDUCED[setup.sharding.reduce_dtype] if setup.sharding.reduce_dtype else precision.stored
    own, joint = OWN_UNITS[setup.sharding.units]
    policy = ShardPolicy(
        shards=setup.sharding.shards,
        stored=precision.stored,
        # which is frozen in turns was trained when it was loaded
        frozen=precision.frozen if setup.trained_blocks == "all" else None,
        storage=precision.weights if setup.quantization is not None else None,
        reduce=None if reduce is precision.weights else reduce,  # as _fsdp_param.py, init_dtype_attrs
        # version 1 casts what the root is given alone (_runtime_utils.py, _root_pre_forward)
        inputs=precision.weights if precision.stored is not None and engine is FullyShard else None,
        reshards_after_forward=setup.sharding.kind == FSDP,
        accumulated=accumulated,
        kept_block=recipe.shape.layers - 1 if keeps_last_unit(recipe.shape.family) and HEAD not in own else None,
        own=own,
        norm_with_head=joint,
        keeps_head=keeps_last_unit(recipe.shape.family),
        keeps_root=keeps_root(recipe.shape.family) or reads_head_outside(recipe.shape.family, recipe.loss),
        reshards_root=reshards_root(recipe.shape.family) and setup.stage is None,
        prefetches_after=prefetches_after(recipe.shape.family),
        reduces=setup.reduces,
        before_last=bool(setup.before_last),
        # an allocator plays each of them
        keeps_whole=bool(setup.before_last) and accumulated == WHOLE and (tape.direct or not tape.unrolled),
        reduces_after=setup.reduces and setup.stage is not None,
        table_parts=setup.split.tensor if setup.split and setup.stage and setup.stage.first else 1,
        clips=setup.max_gradient_norm is not None,
        hosted=setup.optimizer if setup.offload else None,
        averages=setup.ema,
        replicated=setup.sharding.replicas > 1,
        gathers_ahead=setup.gathers_ahead,
        gradients_go=frees_gradients(setup),
    )
    redistribute = None
    if setup.split is not None and setup.split.tensor > 1:
        redistribute = Redistribution(tape)
    # where gradients are summed in their own element type, they are those of the parameters
    if accumulated != WHOLE or policy.reduce is not None or engine is not FullyShard:
        tape.dismiss(Accumulation)
    outside = _outside(setup, tape, recipe, policy)
    if engine is FullyShard and setup.adapter is not None and KINDS[setup.adapter.kind].of_tokens:
        outside = outside._replace(root=(*outside.root, *_prompt_weights(setup, recipe, policy)))
    return engine(tape, policy, outside, redistribute)


def _prompt_weights(setup: Setup, recipe: Recipe, policy: ShardPolicy) -> tuple[ShardedWeight, ...]:
    """What makes virtual tokens, which is outside of the model that is built: under fully_shard the root has it."""
    apart = Tape(1)
    objective_of(setup, apart, recipe)
    found = tuple(weight_of(one, policy) for one in apart.parameters)
    for one in apart.parameters:
        one.node = None
    return found


def _outside(setup: Setup, tape: Tape, recipe: Recipe, policy: ShardPolicy) -> OutsideBlocks:
    """`outside_weights`, which iterations have in common that differ in their checkpoints or in accumulating."""
    key = setup._replace(segments=(), accumulating=False)
    found = _known_outside.get(key)
    if found is None:
        if len(_known_outside) >= MOST_OUTSIDE:
            _known_outside.clear()
        found = _known_outside[key] = outside_weights(recipe, tape.role(Trained), policy)
    return found
