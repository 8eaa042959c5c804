"""What a LLaMA-Factory file trains and with which optimizer: adapters, quantized weights, frozen blocks.

Source: hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), src/llamafactory/model/adapter.py,
model/model_utils/quantization.py, train/trainer_utils.py.
"""

from __future__ import annotations

from vramplan.configs.checkpoints import quantized_by_name
from vramplan.configs.programs import trainer
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.errors import near_matches

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a block of Llama and its kin."""

OVER_GALORE = {
    "adamw_torch": "galore-adamw",
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"), "galore-adamw-8bit"),
    "adafactor": "galore-adafactor",
}
"""By `optim`: what `use_galore` is made over (trainer_utils.py, _create_galore_optimizer)."""


def optimizer(sheet: Sheet, meaning: Meaning) -> None:
    """The optimizer: that of a switch of LLaMA-Factory, else of `optim`."""
    sheet.get("optim_args")
    if sheet.flag("use_galore"):
        rank = sheet.count("galore_rank")
        name = (sheet.text("optim") or "adamw_torch").lower()
        if sheet.given("optim") and name not in OVER_GALORE:
            sheet.problem("optim", f"{name} is none that GaLore is made over", near_matches(name, OVER_GALORE))
        meaning.say(
            "optimizer", f"{OVER_GALORE.get(name, 'galore-adamw')}:{rank}", "use_galore", "galore_rank", "optim"
        )
        sheet.text("galore_target")
        if sheet.flag("galore_layerwise"):
            meaning.say("optimizer_in_backward", True, "galore_layerwise")
        return
    if sheet.flag("use_apollo"):
        meaning.say("optimizer", f"apollo-adamw:{sheet.count('apollo_rank') or 16}", "use_apollo", "apollo_rank")
        if sheet.flag("apollo_layerwise"):
            meaning.say("optimizer_in_backward", True, "apollo_layerwise")
        sheet.text("apollo_target"), sheet.text("optim")
        return
    if sheet.flag("use_adam_mini"):
        meaning.say("optimizer", "adam-mini", "use_adam_mini")
        sheet.text("optim")
        return
    if sheet.flag("use_badam"):
        if (sheet.text("badam_mode") or "layer") == "layer":
            meaning.say("trained_blocks", "badam", "use_badam", "badam_mode")
        else:
            meaning.lack("badam_mode", "it trains a part of each weight, and AdamW of whole weights is counted")
    if sheet.flag("use_muon"):
        meaning.say("optimizer", "muon", "use_muon")
        sheet.text("optim")
        return
    trainer.optimizer(sheet, meaning, "optim")
    if not sheet.given("optim") and sheet.release.defaults["optim"] == "adamw_torch":
        meaning.say("optimizer_implementation", "foreach", "optim")


def quantization(sheet: Sheet, meaning: Meaning, model: str) -> bool:
    """Whether the weights are quantized, by the file or by the name of the checkpoint."""
    if quantized_by_name(meaning, model, "model_name_or_path"):
        return True
    bits = sheet.count("quantization_bit")
    if bits is None:
        return False
    method = (sheet.text("quantization_method") or "bnb").lower()
    if method in ("bnb", "bitsandbytes"):
        double = sheet.flag("double_quantization")
        if bits == 4:
            meaning.say("quantization", "nf4-double" if double else "nf4", "quantization_bit", "double_quantization")
        elif bits == 8:
            meaning.say("quantization", "int8", "quantization_bit")
        else:
            sheet.problem("quantization_bit", f"bitsandbytes has no {bits} bits", "4 or 8")
    elif method in ("hqq", "eetq"):
        word = "int8" if bits == 8 else "nf4"
        meaning.say("quantization", word, "quantization_method", "quantization_bit")
        meaning.lack("quantization_method", f"{method} with {bits} bits is counted as {word}")
    else:
        sheet.problem("quantization_method", f"{method!r} is not understood", "bnb, hqq or eetq")
    return True


def adapter(sheet: Sheet, meaning: Meaning, kind: str | None) -> None:
    """The adapter that is trained beside the model."""
    if kind == "oft":
        meaning.say("adapter.kind", "oft", "finetuning_type")
        meaning.say("adapter.rank", sheet.count("oft_block_size"), "oft_block_size")
        _targets(sheet, meaning, "oft_target")
        if sheet.count("oft_rank"):
            meaning.lack("oft_rank", "so many blocks of each layer, and blocks of one size in all are counted")
        if sheet.number("module_dropout"):
            meaning.lack("module_dropout", "blocks that are left out at random, and none is counted as such")
        return
    if kind != "lora":
        for key in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target"):
            sheet.get(key)
        return
    for key in ("use_galore", "use_apollo", "use_badam"):  # hparams/finetuning_args.py, __post_init__
        if sheet.flag(key):
            sheet.problem(key, "is on beside LoRA, which LLaMA-Factory refuses", "leave one of the two out")
    if sheet.text("adapter_name_or_path") and not sheet.flag("create_new_adapter"):  # model/adapter.py
        what = "that adapter is trained on, whose own rank, factor and layers hold: those of these settings are counted"
        meaning.lack("adapter_name_or_path", what)
    rank = sheet.count("lora_rank")
    meaning.say("adapter.kind", "dora" if sheet.flag("use_dora") else "lora", "finetuning_type", "use_dora")
    meaning.say("adapter.rank", rank, "lora_rank")
    _targets(sheet, meaning, "lora_target")
    meaning.say("adapter.dropout", sheet.number("lora_dropout"), "lora_dropout")
    alpha = sheet.count("lora_alpha", 2 * rank if rank else None)
    meaning.say("adapter.alpha", alpha, "lora_alpha")
    saved = sheet.texts("additional_target")
    if saved:
        meaning.say("adapter.modules_to_save", saved, "additional_target")


def _targets(sheet: Sheet, meaning: Meaning, key: str) -> None:
    targets = sheet.texts(key) or ["all"]
    stored = "quantization" in meaning.job and meaning.job["quantization"].of == ("model_name_or_path",)
    if targets == ["all"] and stored:
        # find_all_linear_modules takes names of layers, which PEFT's all-linear does not see in such checkpoints
        meaning.say("adapter.targets", list(PROJECTIONS), key, "model_name_or_path")
    elif targets == ["all"]:
        # of experts that are one tensor it finds none; PEFT's word would take them too
        layers = sheet.linears_of(sheet.text("model_name_or_path") or "")
        meaning.say("adapter.targets", layers or "all-linear", key)
    elif any(sign in target for target in targets for sign in "*+()|[\\^"):
        meaning.say("adapter.targets", "all-linear", key)
        meaning.lack(key, "it is a regular expression, and every linear layer is counted")
    else:
        meaning.say("adapter.targets", targets, key)


OF_IMAGES = {
    "vision_encoder": "freeze_vision_tower",
    "projector": "freeze_multi_modal_projector",
    "language_model": "freeze_language_model",
}
"""Parts of a model of images and text, and the settings that freeze them: the first two where a file says nothing.

Source: hiyouga/LLaMA-Factory ff6d4d12, src/llamafactory/model/model_utils/visual.py, get_forbidden_modules.
"""


def _of_images(sheet: Sheet, meaning: Meaning) -> dict[str, str]:
    """The parts that stay untrained, each with its setting; none of a model that takes text alone."""
    asked = {part: key for part, key in OF_IMAGES.items() if sheet.flag(key, part != "language_model")}
    if sheet.flag("train_mm_proj_only"):  # up to 0.9.1
        asked = {"vision_encoder": "train_mm_proj_only", "language_model": "train_mm_proj_only"}
    shape = sheet.shape_of(sheet.text("model_name_or_path") or "")
    return asked if shape is not None and shape.takes_images and shape.takes_text else {}


def frozen(sheet: Sheet, meaning: Meaning, kind: str | None) -> None:
    """The parts that `finetuning_type: freeze` leaves untrained, and those of a model of images and text."""
    apart = _of_images(sheet, meaning)
    if kind == "full" and apart:
        meaning.say("frozen", list(apart), *apart.values())
    elif kind == "lora" and apart:
        meaning.lack(OF_IMAGES["vision_encoder"], "the encoder has no adapters, and all-linear counts some there")
    count = sheet.count("freeze_trainable_layers")
    modules = sheet.texts("freeze_trainable_modules")
    extra = sheet.texts("freeze_extra_modules") or []
    if kind != "freeze" or count is None:
        return
    frozen = []
    if not any("embed" in name or name == "wte" for name in extra):
        frozen.append("embeddings")
    if "lm_head" not in extra:
        frozen.append("head")
    if "norm" not in extra:
        frozen.append("norms")
    if count > 0:
        frozen.append(f"layers:-{count}")  # all but the last: the number of blocks is the model's
    else:
        frozen.append(f"layers:{-count}-")
    layers = sheet.layers_of(sheet.text("model_name_or_path") or "")
    meaning.say("frozen", resolve_frozen(frozen, layers), "freeze_trainable_layers", "freeze_extra_modules")
    if modules and modules != ["all"]:
        meaning.lack("freeze_trainable_modules", "parts of blocks, and whole blocks are counted")
    if sheet.flag("use_llama_pro"):
        what = "blocks that were added to the model are trained, and are counted where it has as many, as its last ones"
        meaning.lack("use_llama_pro", what)


def resolve_frozen(frozen: list[str], layers: int | None) -> list[str]:
    """`layers:-8` of a model of 32 blocks: all but the last 8, `layers.0-23`; `layers:2-`: all but the first 2.

    Where the number of blocks is not known, `layers:` words are left out: everything in a block counts as trained.
    """
    result: list[str] = []
    for item in frozen:
        if not item.startswith("layers:"):
            result.append(item)
            continue
        if layers is None:
            continue
        text = item.removeprefix("layers:")
        first, last = (0, layers + int(text) - 1) if text.startswith("-") else (int(text.rstrip("-")), layers - 1)
        if last >= first:
            result.append(f"layers.{first}-{last}" if last > first else f"layers.{first}")
    return result
