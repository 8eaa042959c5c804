"""Adapters and quantized weights of a file for TRL.

Source: huggingface/trl 1.16.0, trl/trainer/utils.py, get_peft_config and get_quantization_config.
"""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.configs.checkpoints import quantized_by_name
from vramplan.configs.own_arguments import WRAPPING, Wrapping
from vramplan.configs.programs import expert_tensors
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.configs.programs.arguments.keys import FREEZES_SOUND, MADE_ELSEWHERE, OF_PEFT, SETS_GRADIENTS
from vramplan.configs.programs.arguments.peft_kinds import bias_of, other_adapter, say_tokens


def adapter(file: TrainingFile) -> bool:
    """Say the adapter; whether there is one."""
    sheet, meaning = file.sheet, file.meaning
    if other_adapter(file):
        return True
    if sheet.flag(SETS_GRADIENTS):
        meaning.ask("frozen", "the script sets requires_grad itself (--frozen NAMES, or --frozen none)")
    _of_a_file(file)
    wanted = bool(sheet.flag("use_peft"))
    rank, alpha, dropout = sheet.count("lora_r"), sheet.number("lora_alpha"), sheet.number("lora_dropout")
    targets, saved, dora = (
        sheet.texts("lora_target_modules"),
        sheet.texts("lora_modules_to_save"),
        sheet.flag("use_dora"),
    )
    if not wanted and _always(file):
        wanted = True
        meaning.note("lora_r: the script has no switch for its adapter here, and one is counted (--adapter null)")
    wrapping: Wrapping | None = file.sheet.declared.get(WRAPPING)
    if not wanted and wrapping is not None and not (wrapping.idle and not any(map(sheet.given, wrapping.by))):
        what = f"{wrapping.what} may put an adapter around the model; --adapter null says that it does not"
        meaning.ask("adapter.kind", f"{what} (--adapter lora)")
        return False
    if sheet.flag(MADE_ELSEWHERE) and not wanted:
        what = "the model comes to the trainer ready made, and an adapter may be around it; --adapter null says of none"
        meaning.ask("adapter.kind", f"{what} (--adapter lora)")
        return False
    if not wanted:
        if rank != 0 and any(sheet.given(key) for key in ("lora_r", "lora_alpha", "lora_target_modules")):
            meaning.note("lora_*: without use_peft TRL makes no adapter")
        return False
    meaning.say("adapter.kind", "dora" if dora else "lora", "use_dora" if dora else "use_peft")
    if rank is not None:
        meaning.say("adapter.rank", rank, "lora_r")
    else:
        meaning.ask("adapter.rank", "it is the script's own default")
    if targets == ["auto"]:  # the name of no module: the script finds them by the model
        meaning.ask("adapter.targets", "lora_target_modules is auto, by which the script chooses (--targets NAMES)")
    elif targets:
        everything = len(targets) == 1 and targets[0] in ("all-linear", "all")
        meaning.say("adapter.targets", "all-linear" if everything else targets, "lora_target_modules")
    elif any(sheet.given(key) for key in ("lora_namespan_exclude", "num_lora_modules")):
        meaning.say("adapter.targets", "all-linear", "num_lora_modules")  # of 2U1/Qwen2-VL-Finetune
    expert_tensors.add(sheet, meaning, sheet.shape_of(sheet.text("model_name_or_path") or ""))
    meaning.say("adapter.dropout", dropout, "lora_dropout")
    meaning.say("adapter.alpha", _whole(alpha), "lora_alpha")
    if saved:
        meaning.say("adapter.modules_to_save", saved, "lora_modules_to_save")
    say_tokens(sheet, meaning, "trainable_token_indices")
    if bias := bias_of(sheet.text("lora_bias")):
        meaning.say("adapter.bias", bias, "lora_bias")
    return True


def _of_a_file(file: TrainingFile) -> None:
    """Take the settings of the adapter out of the file that `lora_config` names, as BELLE's scripts do.

    Source: LianjiaTech/BELLE, train/src/sft_train.py.
    """
    sheet, path = file.sheet, file.sheet.text("lora_config")
    if path is None:
        return
    found = sheet.opened(path)
    if found is None:
        file.meaning.ask("adapter.rank", f"lora_config: {path} is not here; give that file too")
    for key in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"):
        if found is not None and key in found:
            sheet.written.setdefault(key, found[key])


def _always(file: TrainingFile) -> bool:
    """Whether a script of somebody's own has a rank in its command and no switch for adapters, so that it makes one.

    So has a flat file with the words of PEFT's LoraConfig. A rank of 0 is none.
    """
    sheet = file.sheet
    command = sheet.given("program") and not file.is_trl
    flat = file.is_of_peft and not sheet.given("program")
    if not (command or flat) or not sheet.given("lora_r") or sheet.count("lora_r") == 0:
        return False
    switches = ("use_peft", *(name for name, ours in OF_PEFT.items() if ours == "use_peft"))
    return not any(sheet.given(name) or name in sheet.declared for name in switches)


FREEZES: Mapping[str, tuple[str, ...]] = {
    "freeze_vision_tower": ("vision_encoder",),
    "freeze_merger": ("projector",),
    "freeze_llm": ("language_model", "lm_head"),
}
"""Arguments of 2U1/Qwen2-VL-Finetune, src/params.py and src/train, which are off by default."""

TUNES: Mapping[str, tuple[str, ...]] = {
    "tune_mm_vision": ("vision_encoder",),
    "tune_mm_mlp": ("projector",),
    "tune_mm_llm": ("language_model", "lm_head"),
}
"""Arguments of QwenLM/Qwen3-VL, qwen-vl-finetune/qwenvl/train, which are off by default: parts are frozen then."""


def frozen(file: TrainingFile, *, peft: bool) -> None:
    """Say which parts of a model of images and text a script leaves untrained."""
    sheet, meaning = file.sheet, file.meaning
    for key in FREEZES_SOUND:
        if sheet.flag(key):
            meaning.say("frozen", ["feature_extractor"], key)
    shape = sheet.shape_of(sheet.text("model_name_or_path") or "")
    if "frozen" in meaning.job or shape is None or not (shape.takes_images and shape.takes_text):
        return
    parts: dict[str, str] = {}
    for key, of in FREEZES.items():
        if sheet.given(key) and sheet.flag(key):
            parts |= dict.fromkeys(of, key)
    tuned = [key for key in TUNES if sheet.given(key)]
    for key, of in TUNES.items():
        if tuned and not sheet.flag(key, False):
            parts |= dict.fromkeys(of, key if sheet.given(key) else tuned[0])
    if sheet.flag("tune_merger") is False:  # of earlier releases of Qwen2-VL-Finetune
        parts["projector"] = "tune_merger"
    if shape.tied_embeddings and "lm_head" in parts:
        key = parts.pop("lm_head")
        parts |= {"embeddings": key, "head": key}
    if parts and peft:
        meaning.lack(next(iter(parts.values())), "parts without an adapter, and adapters are counted by their targets")
    elif parts:
        meaning.say("frozen", list(parts), *dict.fromkeys(parts.values()))


def quantization(file: TrainingFile, *, peft: bool) -> bool:
    """Say how the weights are quantized, by the file or by the checkpoint; whether they are.

    `peft`: beside an adapter.
    """
    sheet, meaning = file.sheet, file.meaning
    four, eight = sheet.flag("load_in_4bit"), sheet.flag("load_in_8bit")
    kind, nested = sheet.text("bnb_4bit_quant_type"), sheet.flag("use_bnb_nested_quant")
    if four and eight:
        sheet.problem("load_in_8bit", "is on beside load_in_4bit", "TRL takes one of them")
    if four:
        if kind not in (None, "nf4"):
            meaning.note(f"bnb_4bit_quant_type: {kind} takes what nf4 takes")
        meaning.say(
            "quantization",
            "nf4-double" if nested else "nf4",
            "load_in_4bit",
            *(("use_bnb_nested_quant",) if nested else ()),
        )
    elif eight:
        meaning.say("quantization", "int8", "load_in_8bit")
    by_name = peft and quantized_by_name(meaning, sheet.text("model_name_or_path"), "model_name_or_path")
    return bool(four or eight or by_name)


def adapter_type(file: TrainingFile, task: str) -> None:
    """Say the element type of an adapter where it is neither that of a job by itself nor that of its precision.

    TRL's SFTTrainer turns adapters over quantized weights to bf16; a job has that of preferences by itself. Until 0.25
    so it did over 4 bits alone, under bf16, and where nothing shares the weights. Under FSDP Accelerate makes fp32 of
    them again. Others PEFT has in fp32, also without autocast. Source: huggingface/trl 1.16.0,
    trl/trainer/sft_trainer.py, SFTTrainer.__init__; 0.22.0, trl/models/utils.py, prepare_peft_model; 0.15.2,
    sft_trainer.py, _prepare_peft_model; huggingface/peft 0.21.2, src/peft/tuners/tuners_utils.py, cast_adapter_dtype.
    """
    sheet, meaning = file.sheet, file.meaning
    told = {key: item.value for key, item in meaning.job.items()}
    precision, word = str(told.get("precision")), str(told.get("quantization"))
    if told.get("adapter.kind") not in ("lora", "dora") or told.get("runtime") == "unsloth" or "adapter.dtype" in told:
        return
    quantized = word.startswith(("nf4", "int8"))
    of_v4 = sheet.release.defaults.get("fsdp_config.version") == 1
    casts = file.is_trl and quantized and (not of_v4 or (word.startswith("nf4") and sheet.flag("bf16")))
    if casts and task == "sft" and precision in ("amp-bf16", "pure-bf16"):
        meaning.say("adapter.dtype", "bf16", "SFTTrainer turns adapters over quantized weights to it")
    elif precision.startswith("pure-") and not (quantized and file.is_trl and task != "sft"):
        meaning.say("adapter.dtype", "fp32", "PEFT keeps adapters in fp32")


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value
