"""An MLP in tiles along the sequence: where Axolotl's function runs in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.devices.fsdp import version_of
from vramplan.job.losses.loss import RESIDENT
from vramplan.replay.models.lora_kernels import LAYERS, MLP, OF_ATTENTION
from vramplan.replay.models.tiled_mlp import STOPS, TILED
from vramplan.replay.techniques.adapters import leaf
from vramplan.values.parallel import DDP, ZERO_STAGES, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import Adapter
    from vramplan.values.model import ModelShape

KEY, WHOLE = "tiled_mlp", "the whole MLP is counted"


def tiles_of(
    resolver: Resolver,
    model: ModelShape,
    adapter: Adapter | None,
    length: int,
    reference: str | None,
    *,
    fp32_gradients: bool,
) -> int | None:
    """The tiles that the MLP of each block runs in; a warning says why it does not run in tiles."""
    raw, fields, kind = resolver.raw, resolver.fields, model.transformers_model_type
    asked = raw.tiled_mlp
    assert asked is not None
    if model.engine is not None:
        fields.refuse(KEY, f"Axolotl replaces no MLP of {model.code}", hint="leave it out, or --runtime transformers")
        return None
    if kind in STOPS:
        fields.refuse(KEY, f"Axolotl stops at a {kind}: {STOPS[kind]}", hint="leave it out")
        return None
    if adapter is not None and MLP in adapter.kernels:
        resolver.warnings.append(f"{KEY} changes nothing: Axolotl's fused LoRA runs in the place of the MLP")
        return None
    if raw.optimizer_in_backward:
        message = "Axolotl sums the gradients of tiles by itself, and a weight would be stepped after each of them"
        fields.refuse(KEY, message, hint="optimizer_in_backward: false, or leave it out")
        return None
    if fp32_gradients and not _is_of_attention(adapter):
        message = "Axolotl sums the gradients of tiles by itself, and buffers of fp32 gradients never get the sum"
        fields.refuse(KEY, message, hint="leave it out, or gradient_dtype")
        return None
    cut = -(-length // -(-length // asked)) if length else asked
    if asked > 1 and _refuses_shards(resolver, adapter, cut, asked):
        return None
    obstacle = _obstacle(resolver, kind, reference)
    if obstacle is not None:
        resolver.warnings.append(f"{KEY} is not modelled {obstacle}: {WHOLE}")
        return None
    return cut


def _refuses_shards(resolver: Resolver, adapter: Adapter | None, cut: int, asked: int) -> bool:
    """Whether a way to share the states stops, or never gets the gradients of what runs in tiles."""
    raw, fields = resolver.raw, resolver.fields
    way_out = "parallel.sharding: zero3; or leave it out"
    if raw.sharding == DDP and not _is_of_attention(adapter):
        fields.refuse(KEY, "DistributedDataParallel stops where a weight has a gradient of each tile", hint=way_out)
    elif is_fsdp(raw.sharding) and version_of(resolver)[0] == 2:
        message = "under fully_shard Axolotl lets go of the weights of a block before its attention is through backward"
        fields.refuse(KEY, message, hint=way_out)
    elif raw.sharding in ZERO_STAGES and cut != asked:
        message = f"DeepSpeed waits for tile {asked} before it reduces gradients, and there are {cut}"
        fields.refuse(KEY, message, hint=f"tiled_mlp: {cut}")
    else:
        return False
    return True


def _is_of_attention(adapter: Adapter | None) -> bool:
    """Whether no layer of an MLP is trained."""
    known = {name for word in OF_ATTENTION for name in LAYERS[word]}
    return adapter is not None and all(leaf(word) in known for word in adapter.targets)


def _obstacle(resolver: Resolver, kind: str, reference: str | None) -> str | None:
    """What else of a job no tile was followed into."""
    raw = resolver.raw
    if kind not in TILED:
        return f"for {kind}"
    if raw.compile:
        return "in a compiled model"
    if raw.split is not None:
        return "over devices that share a layer or a sequence"
    if is_fsdp(raw.sharding):
        return "with parallel.fsdp_version 1"
    return "beside a reference model" if reference == RESIDENT else None
