"""Refusals of what a training program has no code for, made from what it declares.

Words that a program knows of a key stand in its runtime profile (`only_` fields) or in `accepts` of its behaviour; keys
that it knows nothing of in `lacks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramplan.catalog.fields import Fields
from vramplan.job.behaviour import under
from vramplan.options import table, words

if TYPE_CHECKING:
    from vramplan.job.given.read import RawJob
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import ResolvedJob
    from vramplan.values.machine import Runtime

NOUNS = {
    "allocator": "PyTorch's allocator",
    "cuda_module_loading": "a choice of how modules are loaded",
    "deepspeed_version": "DeepSpeed",
    "eval_batch_size": "an evaluation",
    "generation_batch_size": "a generation",
    "generation_length": "a generation",
    "litgpt_version": "LitGPT",
    "pytorch_version": "PyTorch",
    "transformers_version": "Transformers",
}
"""What a value stands for that says nothing by itself."""

NOTHING = ("none", "estimate")  # words that ask for no code
WORDS = ("precision", "optimizer", "attention", "activation_checkpointing")  # keys whose words decide much else
RESOLVED = ("auto", "sdpa")  # words that stand for others
FAMILY, FAMILY_KEY = "family", "model"
KEY_OF = {FAMILY: FAMILY_KEY, "quantized_precision": "precision"}
"""The key of a job behind a word that is called differently in a runtime profile."""


def refuse(fields: Fields, key: str, given: str, runtime: Runtime, hint: str, note: str | None = None) -> None:
    """The refusal of a value that a runtime's program has no code for, at its key."""
    because = f": {note}" if note else ""
    fields.refuse(key, f"{given} is not in {runtime.name}{because}", hint=hint)


def refuse_lacking(resolver: Resolver, runtime: Runtime) -> None:
    """Refuse the keys that the program knows nothing of.

    Each is left out from there on, so that nothing else refuses it a second time.
    """
    raw = resolver.raw
    for key, hint in under(runtime).lacks.items():
        given = _given(raw, key)
        if given is not None:
            refuse(resolver.fields, key, given, runtime, hint)
            setattr(raw, key, table.absent().get(key))
            if key == "offload":
                raw.offload_activations = False


def _given(raw: RawJob, key: str) -> str | None:
    """What a job says at a key, as a message shows it; None where it says nothing, or what needs no code."""
    value: Any = getattr(raw, key)
    if isinstance(value, Fields):
        value = value.text("kind") or "lora"
    if not value or value in NOTHING:
        return None
    if key in NOUNS:
        return NOUNS[key]
    if isinstance(value, bool):
        return "true"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def refuse_given_words(resolver: Resolver, runtime: Runtime) -> None:
    """Refuse the words of a job file that the program does not know, before anything follows from them.

    As with keys, each is left out from there on. A precision beside element types of its own is another one, and is
    looked at when that is known.
    """
    raw = resolver.raw
    for key in WORDS:
        word: str | None = getattr(raw, key)
        if key == "precision":
            word = None if raw.cells else words.PRECISIONS.get(word or "")
        if word is not None and word not in RESOLVED and _refuse_word(resolver, runtime, key, word):
            setattr(raw, key, None)


def refuse_words(resolver: Resolver, job: ResolvedJob) -> None:
    """Refuse the words of a resolved job that its program does not know."""
    runtime, fields = job.runtime, resolver.raw.fields
    if runtime.only.get("one_device") and job.data_parallel_size > 1:
        note = runtime.notes.get("only_one_device")
        message = f"{runtime.name} trains on one device, not on {job.data_parallel_size}"
        parallel = fields.fields("parallel") or fields
        parallel.refuse("data", f"{message}: {note}" if note else message, hint="leave it out")
    for key, has in words_of(job).items():
        for word in has:
            _refuse_word(resolver, runtime, key, word, has_experts=job.model.experts is not None)


def _refuse_word(resolver: Resolver, runtime: Runtime, key: str, word: str, *, has_experts: bool = False) -> bool:
    """Whether the program does not know a word, which is refused with those that it knows."""
    known: tuple[str, ...] = runtime.only.get(key) or under(runtime).accepts.get(key, ())
    if not known or word in known or words.pattern_word(word) in known:
        return False
    fields = resolver.raw.fields
    at = (fields.fields("parallel") or fields) if key == "sharding" else fields
    hint = "leave it out" if known == ("none",) else f"it has {', '.join(known)}"
    note = runtime.notes.get(f"only_{key}")
    if key == FAMILY and not note:  # nothing says that the program lacks it: it was never looked at there
        message = f"{word} is not modelled under {runtime.name}"
        hint = f"modelled there are {', '.join(known)}; or another --runtime"
        if has_experts and resolver.raw.quantization is not None:
            hint += ", with --quantized-experts where they are in few bits too"
        at.refuse(FAMILY_KEY, message, hint=hint)
        return True
    refuse(at, KEY_OF.get(key, key), word, runtime, f"{hint}; or another --runtime", note)
    return True


def words_of(job: ResolvedJob) -> dict[str, tuple[str, ...]]:
    """The words of a job that a program may not have, by the key."""
    return {
        FAMILY: (job.model.published_family or job.model.family,),
        "precision": (job.precision,),
        "optimizer": (job.optimizer,),
        "adapter": ("none" if job.adapter is None else job.adapter.kind,),
        "quantization": (job.quantization or "none",),
        "sharding": ("none" if job.sharding is None else job.sharding.kind,),
        "activation_checkpointing": () if job.activation_checkpointing is None else (job.activation_checkpointing,),
        "attention": (job.attention,),
        "loss": (job.loss,),
        "quantized_precision": () if job.quantization is None else (job.precision,),
        "offload": ("activations",) if job.offload_activations else (),
    }
