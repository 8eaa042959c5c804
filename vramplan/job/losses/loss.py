"""Which of the losses that replace a causal language model's own a job can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.catalog import shapes
from vramplan.engines import engine_of
from vramplan.job.behaviour import under
from vramplan.options import words
from vramplan.replay.models import splits_of
from vramplan.replay.models.capable import (
    evaluates,
    generates,
    head_losses,
    no_generation,
    no_head_losses,
    own_loss,
    smooths,
)
from vramplan.replay.techniques.losses import fused_on

if TYPE_CHECKING:
    from vramplan.job.given.read import RawJob
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu, Runtime
    from vramplan.values.model import ModelShape


MOST_CHUNKS = 1024  # of the logits
RESIDENT = "model"  # the reference model lies beside the one that trains
ADAPTER_OFF = "adapter-off"  # it is the one that trains, without its adapter
GENERATING_TASKS = ("lm", "seq2seq")
SMOOTHED_HEADS = ("chunked:N", "fused", words.TILED)  # words of losses whose parts can be smoothed
UPCAST = "fp32-logits"
PADDED_TASKS = ("lm", "mlm", "cls", "seq2seq")
SMOOTHED_TASKS = ("lm", "mlm", "cls", "seq2seq", "image")


def loss_of(
    resolver: Resolver, loss: str, model: ModelShape, gpu: Gpu | None, runtime: Runtime | None, precision: str
) -> str:
    """The loss that the job names; `standard` where the word means what the runtime does anyway."""
    if loss == "vocab-parallel" and under(runtime).splits_loss_anyway:
        return "standard"
    if loss == "classification" and model.task in shapes.CLASSIFIERS:
        return "standard"
    if loss == "fp32-logits" and model.task == "contrastive":
        resolver.fields.refuse("loss", f"{loss} means nothing to a contrastive loss", hint="use standard")
        return "standard"
    if loss == "fp32-logits" and own_loss(model.family) is not None:
        return "standard"  # its code casts the logits, and hands them out as they were
    if loss == "fp32-logits":
        upcasts = runtime is not None and runtime.loss == "causal-lm-fp32"  # its code's own loss does
        if upcasts and _holds_logits(resolver.raw, model, precision):
            return loss  # what is held is in fp32 then
        return "standard" if precision == "fp32" or (upcasts and model.task == "lm") else loss
    word = words.pattern_word(loss)
    if word == words.REWARD and model.task == "cls":
        _check_preference(resolver, loss)
        return loss
    if word in words.LM_LOSSES:
        check_head_loss(resolver, loss, model, gpu, precision)
        return loss
    if loss == "vocab-parallel" and splits_of(model.family):
        return loss
    if loss in ("classification", words.REWARD):
        message = f"{loss} needs a model with a classification head, and the task of {model.name} is {model.task}"
        resolver.fields.refuse("loss", message, hint="use standard")
    else:
        hint = "--runtime megatron" if loss == "vocab-parallel" else None
        modelled = ", ".join(one for one in words.LOSSES if one != loss)
        resolver.fields.refuse("loss", f"{loss} is not modelled (modelled: {modelled})", hint=hint)
    return "standard"


def _holds_logits(raw: RawJob, model: ModelShape, precision: str) -> bool:
    """Whether the loop keeps logits that the model, as Transformers has it, could have cast itself."""
    return bool(raw.hold_outputs) and model.task == "lm" and model.published_family is None and precision != "fp32"


def check_head_loss(resolver: Resolver, loss: str, model: ModelShape, gpu: Gpu | None, precision: str) -> None:
    """Refuse a loss over the head of a causal language model where the model or the GPU has none such."""
    fields, word = resolver.fields, words.pattern_word(loss)
    known = head_losses(model.family)
    refused = under(resolver.runtime).no_head_loss(resolver, model, loss)
    if model.task != "lm":
        message = f"{loss} is modelled for causal language models, not for the task {model.task}"
        fields.refuse("loss", message, hint="use standard")
    elif not (_has_head(model, word, known) or _is_smoothed_instead(resolver, word)):
        has_bias = word == "fused" and known and model.published_family is None
        reason = no_head_losses(model.family)
        reason = reason or ("its head has a bias, which Liger's loss does not take" if has_bias else None)
        why = f": {reason}" if reason else ""
        fields.refuse("loss", f"{loss} is not modelled for {model.code}{why}", hint="use standard")
    elif refused is not None:
        fields.refuse("loss", refused[0], hint=refused[1])
    elif word == "fused" and gpu is not None:
        _check_fused(resolver, gpu)
    elif word in words.PREFERENCE_LOSSES:
        _check_preference(resolver, word)
    elif word == words.TILED:
        _check_tiled(resolver)
    elif word == words.BY_SIZE:
        _check_by_size(resolver, loss)
    elif word == words.HALF_LOGITS and precision == "fp32":
        fields.refuse("loss", f"{loss} means nothing in fp32, where no logits have 16 bits", hint="use standard")


def _has_head(model: ModelShape, word: str, known: tuple[str, ...]) -> bool:
    """Whether the family's head can have a loss: KTO's is that of DPO, and pairs need logits, as smoothed labels do."""
    if word in (words.OVER_LOGITS, *words.PAIR_LOSSES):
        return smooths(model.family) and not model.takes_images  # of which the replay of pairs has none
    if word in (words.TILED, words.BY_SIZE):
        return "chunked:N" in known and (word != words.BY_SIZE or model.engine is None)
    return word in known or (word in (*words.REFERENCED_LOSSES, words.POLICY) and "dpo" in known)


def _is_smoothed_instead(resolver: Resolver, word: str) -> bool:
    """Whether the Trainer computes smoothed labels over whole logits, and the loss that the job names never runs."""
    outside = resolver.runtime is not None and engine_of(resolver.runtime.engine).smooths_outside
    return bool(resolver.raw.label_smoothing) and outside and word in SMOOTHED_HEADS


def check_chunks(resolver: Resolver, loss: str, sequence_length: int) -> str:
    """The loss with as many chunks as there can be: a sequence is not cut into more than it has tokens.

    Each chunk is replayed, so their number is bounded. The logits of all of them are alive together, and only what one
    chunk needs beside them grows smaller: with the bound it is a thousandth of the logits.
    """
    word, _, number = loss.partition(":")
    chunks = int(number)
    if chunks > sequence_length:
        most = f"{word}:{sequence_length}"
        resolver.assume("loss", most, f"{loss}, but no chunk has less than a token")
        chunks = sequence_length
    if chunks > MOST_CHUNKS:
        message = (
            f"more than {MOST_CHUNKS} chunks are not modelled, and would save less than a thousandth of the logits"
        )
        resolver.fields.refuse("loss", message, hint=f"use {word}:{MOST_CHUNKS}, or a shorter sequence")
    return f"{word}:{min(chunks, MOST_CHUNKS)}"


def _check_preference(resolver: Resolver, loss: str) -> None:
    """Preference training is that of TRL, over the Trainer and without dropout, or of recipes of the program."""
    raw, fields = resolver.raw, resolver.fields
    _check_outside(resolver, loss)
    if not under(resolver.runtime).has_preference_training:
        fields.refuse("loss", f"{loss} is TRL's, over the Trainer of transformers", hint="runtime: transformers")
    elif loss != "dpo" and under(resolver.runtime).preferences_by != "TRL":
        program = under(resolver.runtime).preferences_by
        message = f"{loss} is modelled as TRL computes it, not as {program} does"
        fields.refuse("loss", message, hint="runtime: transformers; or dpo")
    if loss == words.POLICY:
        resolver.warnings.append(
            f"loss {loss}: the step of the policy is counted; sampling completions takes time and memory of its own "
            "(--generation-batch-size and --generation-length; --reserve for vLLM on the same GPUs)"
        )
    if raw.sequence_length == 1:
        fields.refuse("sequence_length", "1 leaves no token to predict", hint="use 2 or more")
    if raw.hold_outputs:
        message = f"true contradicts {loss}, whose trainer returns the loss alone"
        fields.refuse("hold_outputs", message, hint="leave it out")
    if not fields.present("dropout") and under(resolver.runtime).preferences_by == "TRL" and loss != words.POLICY:
        raw.dropout = 0.0
        resolver.assume("dropout", 0.0, f"{loss}: TRL turns dropout off")
    if loss in (*words.REFERENCED_LOSSES, words.POLICY):
        why = f"{loss}: a prompt, whose tokens are masked, needs less of the head"
        resolver.assume("completion_tokens", "all", why)


def _check_tiled(resolver: Resolver) -> None:
    """The head is that of preference training, over plain sequences, and dropout stays what it is."""
    raw, fields, under_trl = resolver.raw, resolver.fields, under(resolver.runtime)
    _check_outside(resolver, words.TILED)
    if not under_trl.has_preference_training or under_trl.preferences_by != "TRL":
        message = f"{words.TILED} is TRL's, over the Trainer of transformers"
        fields.refuse("loss", message, hint="runtime: transformers")
    if raw.compile:
        fields.refuse("loss", f"{words.TILED} is not modelled in a compiled model", hint="leave compile out")
    if raw.sequence_length == 1:
        fields.refuse("sequence_length", "1 leaves no token to predict", hint="use 2 or more")
    if raw.hold_outputs:
        message = f"true contradicts {words.TILED}, whose trainer returns the loss alone"
        fields.refuse("hold_outputs", message, hint="leave it out")


def _check_by_size(resolver: Resolver, loss: str) -> None:
    """Unsloth's head and loss are functions of their own, on one device or replicas of it."""
    raw, fields = resolver.raw, resolver.fields
    if raw.compile:
        fields.refuse("loss", f"{loss} is not modelled in a compiled model", hint="leave compile out")
    if (raw.sharding or "none") not in ("none", "ddp"):
        fields.refuse("loss", f"{loss} is not modelled where devices share the weights", hint="use fused")


def _check_outside(resolver: Resolver, what: str) -> None:
    """The optimal placement takes a replay apart by blocks, which a loss outside of the model does not stand."""
    if resolver.raw.activation_checkpointing == words.OPTIMAL:
        message = f"{words.OPTIMAL} is not modelled with {what}"
        resolver.fields.refuse("activation_checkpointing", message, hint="use sqrt, full or every:K")


def reference_of(resolver: Resolver, loss: str) -> str | None:
    """Where the reference model of preference training is; None for every other loss, and where a policy has none."""
    key, given = "dpo_reference", resolver.raw.dpo_reference
    compared = (*words.REFERENCED_LOSSES, words.POLICY)
    if loss not in compared:
        if given is not None and resolver.raw.loss not in compared:
            resolver.fields.refuse(key, f"{given} belongs to the losses dpo, kto and grpo", hint="loss: dpo")
        return None
    raw = resolver.raw
    if loss == words.POLICY:
        _check_reference_of_policy(resolver, given)
        return given  # None: its beta is 0
    program = under(resolver.runtime).preferences_by
    if given is None and raw.adapter is not None:
        resolver.assume(key, ADAPTER_OFF, f"the default of {program}: the model with its adapter switched off")
        return ADAPTER_OFF
    if given is None:
        resolver.assume(key, RESIDENT, f"the default of {program}: a copy of the model on the device")
        return RESIDENT
    if given == ADAPTER_OFF and raw.adapter is None:
        message = f"{ADAPTER_OFF} needs an adapter, and there is none"
        resolver.fields.refuse(key, message, hint="use model or precomputed")
    if given == RESIDENT and raw.quantization is not None:
        message = f"a reference model beside one with {raw.quantization} weights is not modelled"
        resolver.fields.refuse(key, message, hint=f"use {ADAPTER_OFF} or precomputed")
    return given


def _check_reference_of_policy(resolver: Resolver, given: str | None) -> None:
    """Refuse what GRPO has no such reference for."""
    key, has_adapter = "dpo_reference", resolver.raw.adapter is not None
    if given == "precomputed":
        message = f"{given} does not exist for grpo, which samples its completions anew"
        resolver.fields.refuse(key, message, hint=f"use {ADAPTER_OFF if has_adapter else RESIDENT}, or leave it out")
    if given == ADAPTER_OFF and not has_adapter:
        message = f"{ADAPTER_OFF} needs an adapter, and there is none"
        resolver.fields.refuse(key, message, hint=f"use {RESIDENT}, or leave it out")
    if given == RESIDENT and has_adapter:
        message = f"{RESIDENT} is not modelled with an adapter, for which TRL has {ADAPTER_OFF}"
        resolver.fields.refuse(key, message, hint=f"use {ADAPTER_OFF}")


def check_beside(resolver: Resolver, loss: str, model: ModelShape | None) -> None:
    """Refuse what is not modelled of evaluation and generation."""
    raw, fields = resolver.raw, resolver.fields
    key = "eval_batch_size"
    if raw.eval_batch_size and words.pattern_word(loss) == "fused" and raw.label_smoothing:
        message = f"an evaluation with the loss {loss} and smoothed labels is not modelled"
        fields.refuse(key, message, hint="leave it out; training is answered without it")
    if model is not None and raw.eval_batch_size and not evaluates(model.family):
        fields.refuse(key, f"an evaluation is not modelled for {model.code}", hint="leave it out")
    elif raw.eval_batch_size and model is not None and model.task not in SMOOTHED_TASKS:
        fields.refuse(key, f"an evaluation of the task {model.task} is not modelled", hint="leave it out")
    keys = ("generation_batch_size", "generation_length")
    given = [name for name in keys if getattr(raw, name)]
    if len(given) == 1:
        missing = next(name for name in keys if name not in given)
        fields.refuse(missing, f"is missing: {given[0]} alone generates nothing", hint=f"give {missing} too")
    if given and model is not None and model.task in GENERATING_TASKS and not generates(model.family):
        reason = no_generation(model.family)
        why = "" if reason is None else f": {reason}"
        fields.refuse(given[0], f"generating is not modelled for {model.code}{why}", hint="leave it out")
    elif given and model is not None and model.task not in GENERATING_TASKS:
        message = f"a model of the task {model.task} generates nothing"
        fields.refuse(given[0], message, hint="leave it out")
    elif model is not None and model.positions != "relative" and (raw.generation_length or 0) > model.max_positions:
        message = f"{raw.generation_length} is more than the {model.max_positions} positions of {model.name}"
        fields.refuse("generation_length", message, hint=f"use at most {model.max_positions}")


def check_padding(resolver: Resolver, model: ModelShape, sequence_length: int) -> None:
    """Refuse padded sequences where there is nothing to pad."""
    fields = resolver.fields
    if model.task not in PADDED_TASKS:
        fields.refuse("padding", f"right means nothing to the task {model.task}", hint="none")
    elif model.takes_audio:
        message = f"right has no effect: {model.name} masks no sounds, and its loss leaves padded labels out"
        fields.refuse("padding", message, hint="none")
    elif sequence_length == 1:
        fields.refuse("padding", "right leaves nothing of sequences of 1 token", hint="none")


def smoothed(resolver: Resolver, loss: str, model: ModelShape) -> str:
    """The loss beside smoothed labels; refused where the two do not go together.

    The Trainer takes the labels from the model and smooths over the logits that come back, whatever head the model has.
    In a loop of PyTorch each chunk is smoothed, and Liger's kernel smooths in place.
    """
    fields = resolver.fields
    word = words.pattern_word(loss)
    outside = resolver.runtime is not None and engine_of(resolver.runtime.engine).smooths_outside
    if outside:
        _check_outside(resolver, "the Trainer's smoothed labels")
        prefix_before = model.task == "lm" and resolver.raw.adapter_kind == words.PREFIX
        if resolver.raw.adapter_kind in words.VIRTUAL_TOKENS and not prefix_before:
            kind = resolver.raw.adapter_kind
            message = f"the Trainer's smoothed labels are not modelled with {kind}"
            if model.task == "lm":
                message = f"the Trainer's smoothed labels are those of the text alone, and logits of {kind} are longer"
            fields.refuse("label_smoothing", message, hint="leave it out")
        if resolver.raw.sequence_length == 1 and model.task == "lm":
            fields.refuse("sequence_length", "1 leaves no token to predict", hint="use 2 or more")
        if word in (*SMOOTHED_HEADS, UPCAST, words.HALF_LOGITS):
            resolver.assume("loss", "standard", f"the Trainer smooths over whole logits, and {loss} is not run")
            return "standard"
    if word not in ("standard", *SMOOTHED_HEADS, UPCAST, words.HALF_LOGITS):
        loss = resolver.raw.loss or loss
        message = f"smoothed labels are modelled with the standard loss, not with {loss}"
        if word in (*words.PAIR_LOSSES, words.REWARD):
            message = f"{loss} compares whole answers, and no trainer smooths its labels over the vocabulary"
        elif word in words.PREFERENCE_LOSSES:
            message = f"TRL's trainer of {loss} makes the loss by itself, and reads no label_smoothing_factor"
        fields.refuse("label_smoothing", message, hint="leave one of the two out")
    elif not smooths(model.family) and model.task in SMOOTHED_TASKS:
        fields.refuse("label_smoothing", f"smoothed labels are not modelled for {model.code}", hint="0 for none")
    elif model.task not in SMOOTHED_TASKS:
        message = f"smoothed labels are not modelled for the task {model.task}"
        if model.task == "ctc":
            message = "the loss of sounds without places, torch's ctc_loss, has no smoothed labels"
            if outside:
                message = (
                    "the Trainer compares each label with a row of logits, and the task ctc has one for each frame"
                )
        fields.refuse("label_smoothing", message, hint="0 for none")
    return loss


def _check_fused(resolver: Resolver, gpu: Gpu) -> None:
    """Liger's loss depends on the GPU."""
    if fused_on(gpu) is None:
        message = f"fused is not modelled on AMD GPUs, such as {gpu.name}"
        resolver.fields.refuse("loss", message, hint="use standard")
    elif gpu.compute_capability is None:
        why = f"unknown for {gpu.name}, which counts as recent"
        resolver.assume("gpu.compute_capability", "8.0 or above", why)
