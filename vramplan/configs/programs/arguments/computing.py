"""How a file computes a step: checkpoints, number formats, the kernel of attention.

Source: huggingface/transformers 5.23.0, src/transformers/training_args.py; huggingface/trl 1.16.0,
trl/trainer/model_config.py; huggingface/alignment-handbook (0d3df220), recipes/*/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import accelerate, trainer
from vramplan.configs.programs.arguments import devices, losses
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.configs.programs.arguments.keys import HANDBOOK, KBIT
from vramplan.configs.programs.arguments.releases import UNSAID, loads_fp32
from vramplan.configs.sheet import Sheet

HALVES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"}

DTYPES = {**HALVES, "float32": "fp32", "fp32": "fp32", "float": "fp32", "auto": "auto"}


def checkpointing(file: TrainingFile) -> None:
    """Say what is recomputed, and what is offloaded with it."""
    sheet, meaning = file.sheet, file.meaning
    key = "activation_checkpointing" if sheet.given("activation_checkpointing") else "gradient_checkpointing"
    checkpoints = sheet.flag(key)
    sheet.get("gradient_checkpointing")
    of_fsdp = meaning.job.get("activation_checkpointing")
    beside = sheet.beside.get("activation_checkpointing")
    if checkpoints and (of_fsdp or beside == "full") and sheet.given(key):
        message = "is on beside activation_checkpointing of FSDP, which the Trainer refuses"
        sheet.problem(key, message, "leave one of the two out")
    how: dict[str, Any] = {}
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        below, whole = sheet.under(name), sheet.get(name)
        if isinstance(whole, str):  # of a command line
            whole = _mapping(sheet, name, whole)
        how |= whole if isinstance(whole, Mapping) else below
    offload = list(meaning.job["offload"].value) if "offload" in meaning.job else []
    if not of_fsdp and not (beside == "full" and not checkpoints):
        apart = file.whole(f"{key}_kwargs", how.get("every_n_layers"), 1)
        word = "none" if not checkpoints else "full" if apart == 1 else f"selective-layer:{apart}"
        meaning.say("activation_checkpointing", word, key)
    if checkpoints and devices.true(how.get("use_reentrant")):
        meaning.say("checkpoint_reentrant", True, f"{key}_kwargs.use_reentrant")
    if checkpoints and devices.true(how.get("offload")):
        meaning.say("offload", [*offload, "activations"], f"{key}_kwargs.offload")
    if sheet.flag("activation_offloading"):
        meaning.say("offload", [*offload, "activations"], "activation_offloading")


def loaded_type(file: TrainingFile, *, quantized: bool) -> tuple[str | None, str]:
    """The element type in which the weights are loaded, None for the checkpoint's, and the key that says it.

    Before Transformers 5 it was fp32 where a script names none, and fp16 beside weights that bitsandbytes quantizes.
    Source: transformers 4.53.3, modeling_utils.py and quantizers/quantizer_bnb_4bit.py, update_torch_dtype.
    """
    sheet = file.sheet
    for key in ("torch_dtype", "model_init_kwargs.torch_dtype", "model_init_kwargs.dtype", "dtype"):
        sheet.taken.add(key)
    for key in ("torch_dtype", "model_init_kwargs.torch_dtype", "model_init_kwargs.dtype", "dtype"):
        if sheet.given(key) or sheet.release.defaults.get(key):
            word = str(sheet.get(key)).removeprefix("torch.").lower()
            if word == UNSAID:
                return (("fp16" if quantized else "fp32") if loads_fp32(sheet.release) else None), key
            if word not in DTYPES:
                sheet.problem(key, f"{word!r} is not understood", "bfloat16, float16, float32 or auto")
                return None, key
            return (None if word == "auto" else DTYPES[word]), key
    if not file.is_trl and loads_fp32(sheet.release):  # of TRL's own scripts some name a type
        return ("fp16" if quantized else "fp32"), "dtype"
    return None, "dtype"


def precision(file: TrainingFile, peft: bool, quantized: bool) -> None:
    """What bf16 and fp16 mean, by how the weights are loaded and how the devices share the model.

    Unsloth's copies of TRL's configurations have neither on, and take the type of the model, which without a `dtype` is
    bf16 where the GPU has it: both are left to the GPU.
    Source: unslothai/unsloth (0050c73e), unsloth/models/rl.py, `mixed_precision` and `replacements`; llama.py,
    FastLlamaModel.from_pretrained.
    """
    sheet, meaning = file.sheet, file.meaning
    loaded, loaded_by = loaded_type(file, quantized=quantized)
    if "precision" in meaning.job:
        return  # of a loop of its own
    is_said = sheet.flag("fp16") or sheet.flag("bf16") or "mixed_precision" in sheet.beside
    if sheet.flag("use_unsloth") and peft and not is_said and loaded is None:
        sheet.taken.update(("fp16", "bf16", "tf32"))
        return
    fp16, bf16 = sheet.flag("fp16"), sheet.flag("bf16")
    key = "fp16" if fp16 else "bf16"
    if bf16 is None:
        bf16 = not fp16 if file.is_trl and "mixed_precision" not in sheet.beside else False
    if fp16 and bf16:
        sheet.problem("fp16", "is on beside bf16, which TrainingArguments refuses", "leave one of the two out")
    half = "bf16" if bf16 else "fp16" if fp16 else None
    if half is None and not sheet.given("bf16") and not sheet.given("fp16"):
        half = sheet.beside.get("mixed_precision")  # accelerate launch sets ACCELERATE_MIXED_PRECISION
        if half is not None and half not in ("bf16", "fp16"):
            meaning.note(f"mixed_precision: {half} of Accelerate holds")
            return
    of_zero, is_given = file.half_of_zero, sheet.given("bf16") or sheet.given("fp16")
    if of_zero is not None and not is_given and "mixed_precision" not in sheet.beside:
        place = f"deepspeed:{of_zero}.enabled"
        half, key = of_zero, key if sheet.place(place) is None else place
    if of_zero is not None and half is not None and half != of_zero:
        sheet.problem(
            key, f"is {half}, and the DeepSpeed file says {of_zero}", "the Trainer refuses that: write auto there"
        )
    half = half or of_zero
    row = "zero" if file.by_deepspeed else accelerate.strategy_of(file.sharding)
    tf32 = sheet.flag("tf32")
    sharded = row in ("zero", "fsdp")
    widened = bool(sheet.flag(KBIT))  # whatever is not quantized, be it all of the model
    if half is None and widened and str(sheet.get("dtype")) == UNSAID:
        loaded = None  # nothing stays in the type that was loaded
    if half is None and loaded is None and not widened and str(sheet.get("dtype")) in (UNSAID, "auto"):
        shape = sheet.shape_of(sheet.text("model_name_or_path") or "")
        loaded = None if shape is None else shape.dtype  # nothing casts what is loaded
    if widened and (sharded or half is None):
        meaning.lack(KBIT, "norms, embeddings and head in fp32 beside quantized weights")
    if half is None and loaded in ("bf16", "fp16") and str(file.sharding).startswith("zero"):
        # Nothing casts them, and ZeRO has an fp32 copy and fp32 states of whatever it steps.
        # Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py, master_weights_and_grads_dtype.
        meaning.say("precision", f"mixed-{loaded}", loaded_by, *file.sharding_of)
        return
    if half is None:
        word = {"bf16": "pure-bf16", "fp16": "pure-fp16"}.get(loaded or "", "tf32" if tf32 else "fp32")
        meaning.say(
            "precision", word, loaded_by if loaded in ("bf16", "fp16") else "bf16", *(("tf32",) if tf32 else ())
        )
        return
    if sharded:
        meaning.say("precision", accelerate.PRECISIONS[row][half], key, *file.sharding_of)
        if row == "fsdp":
            trainer.scaled_loss(meaning, half, key)
        if row == "fsdp" and (peft or quantized) and loaded:
            meaning.say("weight_dtype", loaded, loaded_by)
        return
    if peft or quantized:
        meaning.say("precision", f"amp-{half}", key)
        trainer.scaled_loss(meaning, half, key)
        if widened:
            meaning.say("weight_dtype", "fp32", KBIT)
        elif loaded in ("bf16", "fp16") and loaded != half:
            meaning.say("weight_dtype", half, loaded_by, key)
            meaning.lack(
                loaded_by, f"{loaded} of weights that do not change, which are counted in {half} as the products"
            )
        elif loaded:
            meaning.say("weight_dtype", loaded, loaded_by)
        return
    if HANDBOOK & {name.split(".", 1)[0] for name in sheet.written} and not file.sharding:
        orpo = losses.task_of(file) == "orpo"
        meaning.say("precision", f"fsdp-{half}" if orpo else f"mixed-{half}", key)
        name, option = ("fsdp.yaml", "fsdp --fsdp-version 1") if orpo else ("zero3.yaml", "zero3")
        what = "ORPO" if orpo else "full training"
        meaning.note(
            f"the README of the alignment handbook launches {what} with its {name} on 8 GPUs a node; that is where "
            f"the precision comes from (--sharding {option} --gpus 8, or the file of accelerate launch)"
        )
        meaning.ask("parallel.sharding", f"the README launches it with {name} (--sharding {option.split()[0]})")
        return
    if loaded == half:
        meaning.say("precision", f"pure-{half}", loaded_by, key)
        return
    meaning.say("precision", f"amp-{half}", key)
    trainer.scaled_loss(meaning, half, key)
    if loaded:
        meaning.say("weight_dtype", loaded, loaded_by)


def attention(file: TrainingFile) -> None:
    """Say the kernel of attention."""
    sheet, meaning = file.sheet, file.meaning
    key = (
        "model_init_kwargs.attn_implementation"
        if sheet.given("model_init_kwargs.attn_implementation")
        else "attn_implementation"
    )
    word = sheet.word(key, {**trainer.ATTENTIONS, "flex_attention": "flash"})
    sheet.get("model_init_kwargs")
    without = sheet.flag("disable_flash_attn2")  # of 2U1/Qwen2-VL-Finetune, which takes FlashAttention or SDPA
    if without is not None:
        word, key = "sdpa" if without else "flash", "disable_flash_attn2"
    if word == "flash" and sheet.text(key) == "flex_attention":
        meaning.lack(key, "FlexAttention's own kernels, and those of FlashAttention are counted")
    own = "use_flash_attention_2"
    if sheet.text(own) in trainer.ATTENTIONS:  # scripts with an argument of this name hand its text on
        word, key = trainer.ATTENTIONS[sheet.text(own) or ""], own
    elif sheet.flag(own):
        word, key = "flash", own
    if word:
        meaning.say("attention", word, key)


def _mapping(sheet: Sheet, key: str, text: str) -> Mapping[str, Any]:
    """A mapping in JSON, as HfArgumentParser takes it on a command line."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        sheet.problem(key, f"{text!r} is no mapping in JSON", '{"use_reentrant": false}')
        return {}
    return found
