"""How a LLaMA-Factory file computes a step: precision, checkpoints, and what its stage of training adds.

Source: hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), src/llamafactory/model/{adapter,patcher}.py,
model/model_utils/{checkpointing,attention,liger_kernel}.py, train/*/workflow.py.
"""

from __future__ import annotations

from vramplan.configs.programs import sampling, trainer
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.errors import Problem

ATTENTIONS = {"auto": "sdpa", "sdpa": "sdpa", "fa2": "flash", "fa3": "flash", "disabled": "eager"}
ATTENTIONS |= {"true": "flash", "false": "sdpa"}  # of releases up to 0.6, where it is a switch

STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto", "orpo")
"""The last is 0.7's; later releases have `stage: dpo` and `pref_loss: orpo`."""

DPO_LOSSES = ("sigmoid", "hinge", "ipo", "kto_pair")


def precision(sheet: Sheet, meaning: Meaning, kind: str | None, quantized: bool, stage: int | None, fsdp: bool) -> None:
    """What bf16 and fp16 mean, by what is trained and how the devices share the model."""
    pure, bf16, fp16 = sheet.flag("pure_bf16"), sheet.flag("bf16"), sheet.flag("fp16")
    fp8 = sheet.flag("fp8")
    sheet.flag("upcast_layernorm")
    half = "bf16" if bf16 else "fp16" if fp16 else None
    adapter = kind in ("lora", "oft")
    if stage is not None:
        _matches_deepspeed(sheet, bool(bf16), bool(fp16))
        pure = pure and half is None  # DeepSpeed's own master copy is there with bf16, whatever pure_bf16 says
    of = ("pure_bf16",) if pure else ("bf16", "fp16")
    if pure:
        meaning.say("precision", "pure-bf16", *of)
    elif fp8:
        meaning.say("precision", "fsdp-fp8" if fsdp else "fp8", "fp8")
    elif half is None and (adapter or sheet.flag("use_badam")):
        # no autocast; weights that nobody upcasts stay in the type of the checkpoint (patcher.py, infer_optim_dtype)
        meaning.say("precision", "pure-bf16", *of)
        meaning.note("bf16, fp16: neither is on; the model stays in the type of its checkpoint, counted as bf16")
    elif half is None:
        meaning.say("precision", "fp32", *of)
        meaning.say("weight_dtype", "fp32", *of)
    elif fsdp:
        meaning.say("precision", f"fsdp-{half}", *of)
        trainer.scaled_loss(meaning, half, *of)
        if adapter:
            meaning.say("weight_dtype", half, *of)
    elif stage is not None:
        meaning.say("precision", f"mixed-{half}", *of, "deepspeed")
    else:
        meaning.say("precision", f"amp-{half}", *of)
        if adapter:
            meaning.say("weight_dtype", half, *of)  # the base model stays half; adapters are upcast to fp32
        elif kind == "freeze":
            meaning.lack("finetuning_type", "trained weights in fp32 beside frozen ones in 16 bits, counted alike")
        elif kind == "full" and sheet.flag("use_badam"):
            meaning.say("weight_dtype", half, "use_badam")  # which upcasts what it trains by itself
        elif kind == "full":
            meaning.say("weight_dtype", "fp32", "finetuning_type")  # trainable weights are upcast (model/adapter.py)
        if not sheet.flag("use_badam"):
            trainer.scaled_loss(meaning, half, "fp16")
    if kind == "lora" and meaning.job["precision"].value == "pure-bf16":
        meaning.say("adapter.dtype", "fp32", *of)  # PEFT upcasts adapters of half weights, whatever pure_bf16 says


def _matches_deepspeed(sheet: Sheet, bf16: bool, fp16: bool) -> None:
    """Hold bf16 and fp16 against the DeepSpeed file, where that has more than `auto`.

    Source: huggingface/transformers 5.23.0, src/transformers/integrations/deepspeed.py, trainer_config_process.
    """
    for name, told in (("bf16", bf16), ("fp16", fp16)):
        key = f"deepspeed:{name}.enabled"
        place = sheet.place(key)
        if place is not None and isinstance(place.value, bool) and place.value != told:
            says, other = ("true", "false") if place.value else ("false", "true")
            message = f"is {says}, and {name} is {other}, which the Trainer refuses"
            hint = f'write "auto" there, or {name}: {says}'
            sheet.problems.append(Problem(message, key, hint, place.file, place.line, place.column))


def checkpointing(sheet: Sheet, meaning: Meaning, fsdp: bool) -> None:
    """Checkpoints, which are on by default, and reentrant."""
    off = sheet.flag("disable_gradient_checkpointing")
    again = sheet.flag("gradient_checkpointing")
    told_by_trainer = trainer.checkpointing_kwargs(sheet)
    sheet.flag("use_unsloth_gc")
    meaning.say("activation_checkpointing", "none" if off else "full", "disable_gradient_checkpointing")
    reentrant = sheet.flag("use_reentrant_gc")
    told = meaning.job.get("parallel.fsdp_version")
    if (told.value if fsdp and told else sheet.beside.get("parallel.fsdp_version")) == 2:
        reentrant = False
    if again and told_by_trainer is not None:  # the Trainer turns them on after LLaMA-Factory did, as its arguments say
        reentrant = told_by_trainer
    if not off and reentrant:
        meaning.say("checkpoint_reentrant", True, "use_reentrant_gc")
    cached = sheet.flag("use_cache") and sheet.text("stage") in ("pt", "sft")
    if cached and off and not again:  # the Trainer sets it; checkpoints and the losses of preferences turn it off
        meaning.say("use_cache", True, "use_cache")
    if sheet.flag("use_unsloth_gc") and not off:
        meaning.say("offload", ["activations"], "use_unsloth_gc")


OF_PREFERENCES = ("dpo", "orpo", "kto", "rm")
"""Stages that are not counted with Unsloth's own kernels."""


def stage(sheet: Sheet, meaning: Meaning, kind: str | None) -> None:
    """Packing and the loss of the stage, with its reference model."""
    stage = sheet.word("stage", {name: name for name in STAGES})
    neat, packing = sheet.flag("neat_packing"), sheet.flag("packing")
    meaning.say("packing", bool(neat), "neat_packing")
    if (packing and not neat) or (stage == "pt" and packing is not False):
        meaning.note("packing: samples stand one behind the other without a mask between them")
    trainer.renamed(sheet, {"dpo_loss": "pref_loss"})  # as releases up to 0.8 call it
    loss = (sheet.text("pref_loss") or "").lower()
    if sheet.flag("enable_liger_kernel") or sheet.flag("use_liger_kernel"):
        trainer.liger(sheet, meaning, "enable_liger_kernel", loss=stage in ("pt", "sft"))
    if stage in ("dpo", "orpo"):
        meaning.say("padding", "right", "stage")
        loss = "orpo" if stage == "orpo" else loss
        if loss in ("orpo", "simpo"):
            meaning.say("loss", loss, "pref_loss")
            return
        meaning.say("loss", "dpo", "stage", "pref_loss")
        if loss not in DPO_LOSSES:
            sheet.problem("pref_loss", f"{loss!r} is not understood", "sigmoid, hinge, ipo, kto_pair, orpo or simpo")
        adapter = kind in ("lora", "oft") and not sheet.text("ref_model")
        meaning.say("dpo_reference", "adapter-off" if adapter else "model", "finetuning_type", "ref_model")
        trainer.other_reference(sheet, meaning, "ref_model")
        return
    if stage in ("kto", "rm"):
        meaning.say("padding", "right", "stage")
        meaning.say("loss", "kto" if stage == "kto" else "reward", "stage")
        if stage == "kto":
            adapter = kind in ("lora", "oft") and not sheet.text("ref_model")
            meaning.say("dpo_reference", "adapter-off" if adapter else "model", "finetuning_type", "ref_model")
            trainer.other_reference(sheet, meaning, "ref_model")
    elif stage == "ppo":
        meaning.say("padding", "right", "stage")
        sampling.ask_loss(meaning, "PPO", more="the reward model")
