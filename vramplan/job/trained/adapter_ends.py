"""Adapters over the table of the tokens and over the head, and trained rows of that table: what they go with."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.job.given.read import RawJob
from vramplan.job.trained.adapter_targets import ends_of
from vramplan.options import words
from vramplan.replay.techniques.adapters import is_end, is_saved_as, leaf
from vramplan.replay.techniques.trained import Names
from vramplan.values.adapter_kinds import KINDS
from vramplan.values.job import Adapter, Assumption
from vramplan.values.model import ModelShape

OF_A_HEAD = (
    *("standard", "fp32-logits", words.HALF_LOGITS, "chunked:N", "classification"),
    *(words.OVER_LOGITS, *words.PAIR_LOSSES),
)
"""Losses that call the head as a module, and do not take its weight."""

OF_TRL = ("dpo", "kto", words.POLICY, words.TILED)
"""Losses for which TRL takes the weight and the bias of the head (trl 1.16.0, trainer/utils.py, add_fused_lm_head)."""

OF_A_WEIGHT = (*OF_TRL, "fused")
"""Losses that pass by the adapter of a head: it lies beside its weight, and nobody trains it."""


def tokens_of(raw: RawJob, fields: Fields, model: ModelShape, names: Names, kind: str) -> int | None:
    """How many rows of the table of the tokens are trained."""
    number = raw.adapter_trainable_tokens if "trainable_tokens" in KINDS[kind].keys else None
    if number is None:
        if KINDS[kind].of_table:
            hint = "how many tokens are trained: --trainable-tokens N"
            fields.refuse("trainable_tokens", "is missing, and nothing else is trained", hint=hint)
        return None
    if names.token_table not in ends_of(model, names):
        fields.refuse("trainable_tokens", f"is not modelled for {model.code}", hint="leave it out")
    elif model.task != "cls" and model.tied_embeddings and not names.head:
        message = f"is not modelled for {model.code}, whose head is tied to the table"
        fields.refuse("trainable_tokens", message, hint="leave it out")
    if number > model.vocabulary_size:
        fields.refuse("trainable_tokens", f"{number} are more than the {model.vocabulary_size} of the vocabulary")
    return number


def check(
    raw: RawJob,
    fields: Fields,
    model: ModelShape,
    names: Names,
    adapter: Adapter,
    loss: str,
    told: list[Assumption],
) -> None:
    """Refuse what PEFT refuses, and what is not modelled."""
    table, head = (end and is_end(end, adapter.targets) for end in (names.token_table, names.head))
    if (table or head) and not KINDS[adapter.kind].is_lora:
        fields.refuse("targets", f"{adapter.kind} is not modelled over embeddings and heads", hint="use lora")
    elif table and adapter.kind != "lora":
        message = f"{adapter.kind} is not modelled over {names.token_table}"
        fields.refuse("targets", message, hint="use lora, or modules_to_save")
    if table and adapter.trainable_tokens:
        message = f"{names.token_table} has an adapter already, so that PEFT trains no rows of it"
        fields.refuse("trainable_tokens", message, hint="leave one of the two out")
    if adapter.trainable_tokens and any(is_saved_as(names.token_table, word) for word in adapter.modules_to_save):
        message = f"{names.token_table} is trained in full"
        fields.refuse("trainable_tokens", message, hint="leave one of the two out")
    word = words.pattern_word(loss)
    tied = adapter.trainable_tokens and model.tied_embeddings and model.task != "cls"
    if tied and word in OF_TRL:
        message = (
            f"{loss} cannot run: TRL asks the head for its bias, which it has none of where it is tied to the table"
        )
        fields.refuse("trainable_tokens", message, hint="leave it out, or loss standard")
    elif (head or tied) and word not in OF_A_HEAD and (tied or word not in OF_A_WEIGHT):
        what = "what is trained of the table that it is tied to" if tied else "its adapter"
        message = f"{loss} takes the weight of the head, without {what}: not modelled"
        raw.fields.refuse("loss", message, hint="use standard")
    elif head and word in OF_A_WEIGHT:
        why = f"{loss} takes the weight of the head without its adapter, which stays as it is"
        if not adapter.modules_to_save and all(leaf(one) == names.head for one in adapter.targets):
            fields.refuse("targets", f"{why}: nothing would be trained", hint="name a further layer")
        told.append(Assumption("adapter.targets", list(adapter.targets), why))
