"""Whose forward pass is replayed, where a runtime does not train the models of Transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.fsdp import is_fsdp
from vramplan.replay.models import compiles_blocks, drops_out, is_only_compiled, stands_for
from vramplan.values.machine import Runtime
from vramplan.values.model import ModelShape
from vramplan.values.parallel import FSDP

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

OWN_CODE: dict[str, dict[str, str]] = {
    "litgpt": dict.fromkeys(("llama", "neox", "phi", "falcon"), "litgpt"),
    "torchtune": {"llama": "torchtune"},
    "nanogpt": {"gpt2": "nanogpt"},
    "megatron": dict.fromkeys(("gpt2", "llama", "bloom", "mixtral"), "megatron"),
    "torchtitan": {"llama": "titan"},
    "llm-foundry": {"mpt": "foundry"},
    "fms-fsdp": {"llama": "fms"},
    "llm.c": {"gpt2": "llmc"},
    "modded-nanogpt": {"modded_nanogpt": "modded_nanogpt"},
}
"""For each `model_code` of a runtime profile the families that it has code for, and the file of vramplan/models."""

CHECKED_APART = ("megatron", "torchtitan")  # engines/megatron/job.py, engines/torchtitan/job.py

BINDING: tuple[str, ...] = ("megatron", "llm.c", "modded-nanogpt")
"""Of them those that never run the models of Transformers."""

RECORDS = {
    "modded-nanogpt": "model: modded-nanogpt-2024-12-17 or modded-nanogpt-2024-12-10, "
    "or family: modded_nanogpt with the keys of unet",
}
"""What to write as the model where the family of a general architecture does not say what such code computes."""


def as_written(own: str, model: ModelShape) -> ModelShape:
    """The model in the code of a file of vramplan/models, which may have no dropout at all."""
    model = model._replace(family=own, published_family=model.family)
    if not drops_out(own):
        return model._replace(embedding_dropout=0.0, attention_dropout=0.0, hidden_dropout=0.0, activation_dropout=0.0)
    return model


def check_own_code(resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
    """Refuse what the code of a runtime has not got, or was not traced with."""
    raw, fields = resolver.raw, resolver.fields
    if not drops_out(own) and raw.dropout:
        fields.refuse(
            "dropout", f"{raw.dropout:g} means nothing to {runtime.name}, which has none", hint="leave it out"
        )
    window, length = model.sliding_window, raw.sequence_length
    if window is not None and (length is None or length >= window) and window < model.max_positions:
        message = (
            f"a sequence that reaches the sliding window of {window} is not modelled as {runtime.name} computes it"
        )
        fields.refuse("sequence_length", message, hint=f"use less than {window}, or another --runtime")
    if raw.compile and compiles_blocks(own):
        resolver.assume("compile", True, COMPILED if own == "fms" else f"{COMPILED}; and the loss")
        if own == "fms" and (raw.data_parallel_size == 1 or not is_fsdp(raw.sharding or FSDP)):
            message = f"true is modelled for {runtime.name} under FSDP, which cuts the graph at each block"
            fields.refuse("compile", message, hint="--gpus 8 --sharding fsdp")
    if own == "foundry":
        from vramplan.engines.llm_foundry.job import check_foundry  # only its jobs pay for it

        check_foundry(resolver)
    if raw.quantization is not None and own == "torchtune":
        what = "torchao's tensors of 4 bits, as large as those of bitsandbytes"
        if raw.compile:
            resolver.assume("quantization", raw.quantization, f"{what}, in fused kernels")
        else:
            message = f"{raw.quantization} is modelled under torchtune compiled: else it makes indices of 8 bytes"
            fields.refuse("quantization", message, hint="compile: true, as an option --compile")
    if raw.frozen and runtime.only.get("adapter") is not None:
        fields.refuse("frozen", f"frozen parts are not modelled as {runtime.name} has them", hint="leave them out")


COMPILED = "each block: what its backward asks for is kept, and nothing inside is larger than it is uncompiled"


def in_its_own_code(resolver: Resolver, model: ModelShape, runtime: Runtime) -> ModelShape:
    """The model in the code of its runtime, where that is written down; else as Transformers computes it."""
    code = runtime.model_code
    families = OWN_CODE.get(code, {})
    own = families.get(model.family)
    if own is not None and is_only_compiled(own) and not resolver.raw.compile:
        own = None
    if own is not None and stands_for(own, model):
        if code not in CHECKED_APART:
            check_own_code(resolver, own, model, runtime)
        return as_written(own, model)
    if code in BINDING:
        message = f"{model.family} is not modelled as {runtime.name} computes it"
        known = RECORDS.get(code) or f"modelled: {', '.join(families)}"
        resolver.fields.refuse("model", message, hint=f"{known}; or another --runtime")
        return model
    why = f"the operators of Transformers: {runtime.name}'s own code of {model.family} is not modelled"
    resolver.assume("model.code", "transformers", why)
    return model
