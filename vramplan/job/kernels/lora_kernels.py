"""Axolotl's fused LoRA: which of the functions that a job asks for run in its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.devices.fsdp import version_of
from vramplan.replay.models.lora_kernels import ACTIVATIONS, FUSED, LAYERS, MLP, OF_ATTENTION, STOPS
from vramplan.replay.techniques.adapters import is_target
from vramplan.values.parallel import is_fsdp

if TYPE_CHECKING:
    from vramplan.job.evidence.cells import Cells
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import Adapter
    from vramplan.values.model import ModelShape

SELECTIVE_OP = "selective-op"
KEY, OWN = "adapter.kernels", "PEFT's own layers are counted"


def with_kernels(
    resolver: Resolver, model: ModelShape, adapter: Adapter, cells: Cells, reference: str | None
) -> Adapter:
    """The adapter with those functions that run; a warning says of the others why they do not.

    Axolotl stops where it does not find what it replaces, and where its functions were never meant to run.
    """
    raw, fields = resolver.raw, resolver.fields
    if not raw.adapter_kernels:
        return _of_the_program(resolver, model, adapter, cells, reference)
    if raw.adapter is None or not raw.adapter.given("kind"):
        return adapter  # which was refused
    asked, kind = tuple(raw.adapter_kernels), model.transformers_model_type
    if model.engine is not None:
        hint = "leave it out, or --runtime transformers"
        fields.refuse(KEY, f"Axolotl replaces no layers of {model.code}", hint=hint)
        return adapter
    if adapter.kind != "lora":
        resolver.warnings.append(f"{KEY} is not modelled with {adapter.kind}: {OWN}")
        return adapter
    if raw.quantization is not None and not raw.quantization.startswith("nf4"):
        message = f"Axolotl has no fused LoRA over {raw.quantization} weights"
        fields.refuse(KEY, message, hint="leave it out, or quantization: nf4")
        return adapter
    if cells.precision.startswith("amp-") and not cells.half_weights:
        message = f"the functions cast nothing, and stop at weights in fp32 under {cells.precision}"
        fields.refuse(KEY, message, hint=f"weight_dtype: {cells.precision.rpartition('-')[2]}, as Axolotl loads them")
        return adapter
    if raw.activation_checkpointing == SELECTIVE_OP:
        message = f"PyTorch stops where {SELECTIVE_OP} keeps a product and the functions add to it in place"
        fields.refuse("activation_checkpointing", message, hint="use full, or leave adapter.kernels out")
        return adapter
    stopping = [word for word in asked if word in OF_ATTENTION and kind in STOPS]
    if stopping:
        message = f"Axolotl stops at {', '.join(stopping)} of {kind}, whose attention it does not know"
        fields.refuse(KEY, message, hint="leave it out")
        return adapter
    obstacle = _obstacle(resolver, reference)
    if obstacle is not None:
        resolver.warnings.append(f"{KEY} is not modelled {obstacle}: {OWN}")
        return adapter
    known = FUSED.get(kind)
    if known is None:
        resolver.warnings.append(f"{KEY} of {kind} was never traced: {OWN}")
        return adapter
    if MLP in asked and MLP in known and model.activation not in ACTIVATIONS:
        fields.refuse(KEY, f"Axolotl stops at {MLP}, as {model.name} has {model.activation}", hint="leave it out")
    run = [word for word in asked if word in known and _all_are_targets(word, adapter)]
    idle = [word for word in asked if word not in run]
    if idle:
        resolver.warnings.append(f"{KEY} {', '.join(idle)} changes nothing: not all of its layers have an adapter")
    if run and raw.sharding == "zero3":
        message = "the weights that the functions gather under ZeRO-3 stay whole until backward is over"
        resolver.warnings.append(f"{KEY}: {message}; without it less is needed")
    return adapter._replace(kernels=tuple(run))


def _of_the_program(
    resolver: Resolver, model: ModelShape, adapter: Adapter, cells: Cells, reference: str | None
) -> Adapter:
    """The functions of a program that has them by itself, where nothing is said of them: Axolotl's stand for them.

    They run without a dropout, and where a job has nothing that they do not go with.
    Source: unslothai/unsloth 015bdef0, unsloth/models/llama.py, patch_peft_model; kernels/fast_lora.py.
    """
    raw = resolver.raw
    usual = raw.quantization is None or raw.quantization.startswith("nf4")
    casts = cells.precision.startswith("amp-") and not cells.half_weights
    if raw.adapter is None or raw.adapter.present("kernels") or adapter.kind != "lora" or adapter.dropout:
        return adapter
    if not usual or casts or raw.activation_checkpointing == SELECTIVE_OP or _obstacle(resolver, reference) is not None:
        return adapter
    known = FUSED.get(model.transformers_model_type, ()) if model.activation in ACTIVATIONS else ()
    run = tuple(word for word in known if _all_are_targets(word, adapter))
    if run:
        why = "its own functions, for which Axolotl's stand: they save the same, and cast the thin matrices earlier"
        resolver.assume(KEY, [*run], why)
    return adapter._replace(kernels=run)


def _all_are_targets(word: str, adapter: Adapter) -> bool:
    return all(is_target(name, adapter.targets) for name in LAYERS[word])


def _obstacle(resolver: Resolver, reference: str | None) -> str | None:
    """What else of a job no function was followed into."""
    raw = resolver.raw
    if raw.adapter_bias not in (None, "none"):
        return f"with adapter.bias {raw.adapter_bias}"  # Unsloth has it in PEFT's own layers
    if raw.compile:
        return "in a compiled model"
    if raw.split is not None:
        return "over devices that share a layer or a sequence"
    if is_fsdp(raw.sharding) and version_of(resolver)[0] == 1:
        return "with parallel.fsdp_version 1"
    return "beside a reference model" if reference is not None else None
