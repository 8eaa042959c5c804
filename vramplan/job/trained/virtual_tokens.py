"""What a job says of virtual tokens, and what they do not go together with."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.fields import Fields
from vramplan.job.given.read import RawJob
from vramplan.options import words
from vramplan.replay.models.capable import masks_padding, takes_prefix, takes_virtual_tokens
from vramplan.replay.techniques.adapters import CLASSIFIERS
from vramplan.values.adapter_kinds import lacks
from vramplan.values.job import Adapter, Assumption
from vramplan.values.model import ModelShape

NO_CHECKPOINTS = "PEFT refuses gradient checkpointing, which has no place for the cache of a prefix"
TASKS = ("lm", "cls", "seq2seq")
"""Of PEFT's classes for virtual tokens: those whose models Transformers makes a loss with."""

OWN_LOSSES = ("standard", "fp32-logits", "classification", words.HALF_LOGITS, "chunked:N", "fused")
"""Losses in the model's own forward pass, which is given labels that are as long as its logits."""


def adapter_of(
    raw: RawJob,
    fields: Fields,
    model: ModelShape,
    loss: str,
    told: list[Assumption],
    *,
    saved: tuple[str, ...],
    dtype: str,
) -> Adapter:
    """An adapter of such a kind; what is wrong is refused. `saved` are modules of which a copy is trained in full."""
    kind = raw.adapter_kind
    assert kind is not None
    for key in lacks(kind):
        if fields.given(key):
            fields.refuse(key, f"has no meaning for {kind}", hint="leave it out")
    check(raw, fields, model, kind, loss)
    number, width = raw.adapter_virtual_tokens, None
    if number is None:
        number = words.USUAL_VIRTUAL_TOKENS
        told.append(Assumption("adapter.virtual_tokens", number, "PEFT has no default; its examples have so many"))
    if kind == "p-tuning":
        width = raw.adapter_encoder_hidden_size
        if width is None:
            width = model.hidden_size
            told.append(Assumption("adapter.encoder_hidden_size", width, "PEFT's own: the width of the embeddings"))
    projects = kind == words.PREFIX and raw.adapter_prefix_projection is True
    if kind == words.PREFIX:
        check_prefix(raw, fields, model, told)
        if fields.given("encoder_hidden_size") and not projects:
            fields.refuse("encoder_hidden_size", "has no meaning without prefix_projection", hint="leave it out")
    if projects:
        width = raw.adapter_encoder_hidden_size
        if width is None:
            width = model.key_value_heads * model.head_size
            told.append(Assumption("adapter.encoder_hidden_size", width, "PEFT's own: the width of keys"))
    if model.task == "cls":
        saved = tuple(dict.fromkeys((*saved, *CLASSIFIERS)))
    made: dict[str, Any] = {"virtual_tokens": number, "encoder_hidden_size": width, "prefix_projection": projects}
    return Adapter(kind, 0, (), modules_to_save=saved, dtype=dtype, **made)


def check_prefix(raw: RawJob, fields: Fields, model: ModelShape, told: list[Assumption]) -> None:
    """Refuse what a cache that is given does not go together with; checkpoints that nobody asked for are none."""
    if not takes_prefix(model.family) or model.task == "seq2seq":
        message = f"{words.PREFIX} is not modelled for {model.transformers_model_type} and the task {model.task}"
        fields.refuse("kind", message, hint="use prompt-tuning")
    elif model.sliding_window is not None:
        message = f"{words.PREFIX} is not modelled with the sliding window of {model.name}"
        fields.refuse("kind", message, hint="use prompt-tuning")
    given = raw.activation_checkpointing
    if given is None:
        raw.activation_checkpointing = "none"
        told.append(Assumption("activation_checkpointing", "none", NO_CHECKPOINTS))
    elif given != "none":
        message = f"{given} does not go with {words.PREFIX}: {NO_CHECKPOINTS}"
        raw.fields.refuse("activation_checkpointing", message, hint="use none, or prompt-tuning")


def check(raw: RawJob, fields: Fields, model: ModelShape, kind: str, loss: str) -> None:
    """Refuse what PEFT does not run, and what is not modelled."""
    if model.published_family is not None:
        fields.refuse("kind", f"{kind} is PEFT's, over models of Transformers", hint="runtime: transformers")
    elif model.task not in TASKS or model.takes_audio:
        message = f"PEFT has no class that puts virtual tokens before the inputs of {model.name} (task {model.task})"
        fields.refuse("kind", message, hint="use lora")
    elif not takes_virtual_tokens(model.family) or model.takes_images:
        fields.refuse("kind", f"{kind} is not modelled for {model.transformers_model_type}", hint="use lora")
    width = model.embedding_size or model.hidden_size
    if kind in words.EMBEDDED_PROMPTS and width != model.hidden_size:
        message = f"{kind}: PEFT's rows are {model.hidden_size} wide, and the embeddings of {model.name} {width}"
        fields.refuse("kind", message, hint="use prefix-tuning, or lora")
    if raw.packing:
        message = "true means nothing beside virtual tokens: PEFT drops positions, and sequences would see each other"
        raw.fields.refuse("packing", message, hint="leave it out")
    length = (raw.sequence_length or 0) + raw.tokens_before
    if raw.padding == "right" and raw.attention != "flash" and not masks_padding(model, length):
        raw.fields.refuse("padding", f"right is not modelled with {kind} for {model.code}", hint="attention: flash")
    if words.pattern_word(loss) not in OWN_LOSSES:
        message = f"{loss} is not modelled with {kind}: logits have the virtual tokens too, and labels have not"
        raw.fields.refuse("loss", message, hint="use standard")
