"""LLaVA's own training scripts: a language model behind a CLIP encoder, with a projector between them.

The model is counted as Transformers computes it (`LlavaForConditionalGeneration`).

Source: haotian-liu/LLaVA (c121f043), llava/train/train.py (ModelArguments, DataArguments, TrainingArguments, train,
find_all_linear_names), train_mem.py and train_xformers.py, llava/model/llava_arch.py,
llava/model/multimodal_encoder/clip_encoder.py (`@torch.no_grad`); LLaVA-VL/LLaVA-NeXT, llava/train/train.py
(`mm_tunable_parts`).
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.shell import shown
from vramplan.configs.table import names
from vramplan.configs.written import Written
from vramplan.values.model import ModelShape

KEY = "vision_tower"


def _tower_of(blocks: int, width: int, heads: int, inner: int, pixels: int) -> dict[str, Any]:
    """The sizes of an encoder of patches of 14 pixels, by the keys of a model."""
    return {
        "vision_layers": blocks,
        "vision_hidden_size": width,
        "vision_attention_heads": heads,
        "vision_intermediate_size": inner,
        "image_size": pixels,
        "patch_size": 14,
    }


OWN = names(
    """
    version image_folder pretrain_mm_mlp_adapter mm_use_im_start_end mm_use_im_patch_token image_aspect_ratio
    group_by_modality_length mm_projector_lr mm_vision_select_layer mm_vision_select_feature is_multimodal
    mpt_attn_impl video_folder mm_vision_tower_lr image_grid_pinpoints image_crop_resolution image_split_resolution
    frames_upbound video_fps mm_newline_position add_time_instruction force_sample
    """
)
"""Arguments that change neither memory nor time of a step; which layer's result is selected changes the last one."""

CLIP_336 = "clip-vit-large-patch14-336"

TOWERS: dict[str, dict[str, Any]] = {
    CLIP_336: _tower_of(24, 1024, 16, 4096, 336),
    "clip-vit-large-patch14": _tower_of(24, 1024, 16, 4096, 224),
    "siglip-so400m-patch14-384": _tower_of(27, 1152, 16, 4304, 384),
}
"""Encoders that are modelled as CLIP's beside a Llama, by the ends of their names.

Source: the config.json of openai/clip-vit-large-patch14-336 and of google/siglip-so400m-patch14-384.
"""

MODELS = {(32, 4096): "llava-1.5-7b", (40, 5120): "llava-1.5-13b"}
"""Vicuna behind the first of these, by its blocks and its width."""

LANGUAGES = ("llama", "mistral", "qwen2")
"""Language models whose blocks are Llama's, with biases or without."""

RENAMED = {
    "lora_enable": "use_peft",
    "double_quant": "use_bnb_nested_quant",
    "quant_type": "bnb_4bit_quant_type",
}
DEFAULTS: dict[str, Any] = {
    "optim": "adamw_torch",
    "model_max_length": 512,
    "use_bnb_nested_quant": True,
    "lora_r": 64,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTOR = ["linear_1", "linear_2"]
PARTS = {
    "mm_vision_tower": ("vision_encoder",),
    "mm_mlp_adapter": ("projector",),
    "mm_language_model": ("language_model", "lm_head"),
}
"""What LLaVA-NeXT calls the parts of which it trains some."""

FROZEN = {"tune_mm_mlp_adapter": ("language_model", "lm_head"), "freeze_backbone": ("language_model",)}


def is_modelled(sheet: Sheet) -> bool:
    """Whether the encoder is one that is modelled, beside a Llama or a model that the file does not name."""
    shape = sheet.shape_of(sheet.text("model_name_or_path") or "")
    tower = _tower(sheet)
    return tower in TOWERS and (shape is None or _with(shape, tower) is not None)


def _tower(sheet: Sheet) -> str:
    return (sheet.text(KEY) or "").rstrip("/").rsplit("/", 1)[-1].lower()


def _with(shape: ModelShape, tower: str) -> str | dict[str, Any] | None:
    """LLaVA of a language model behind an encoder, or the LLaVA that is named; None for another."""
    if shape.family == "llava":
        return shape.name
    if shape.family != "llama" or shape.transformers_model_type not in LANGUAGES or shape.experts is not None:
        return None
    known = MODELS.get((shape.layers, shape.hidden_size)) if tower == CLIP_336 else None
    if known is not None and shape.transformers_model_type == "llama":
        return known
    return {
        "name": f"{shape.name} behind {tower}",
        "family": "llava",
        **TOWERS[tower],
        "layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "attention_heads": shape.attention_heads,
        "key_value_heads": shape.key_value_heads,
        "head_size": shape.head_size,
        "intermediate_size": shape.intermediate_size,
        "vocabulary_size": shape.vocabulary_size,
        "max_positions": shape.max_positions,
        "tied_embeddings": shape.tied_embeddings,
        "qkv_bias": shape.qkv_bias,
    }


def settle(sheet: Sheet, meaning: Meaning) -> None:
    """The model that both make, what of it is trained, and the kernel that the name of the script stands for."""
    if not is_modelled(sheet):
        return
    tower, program, name = _tower(sheet), sheet.text("program") or "", sheet.text("model_name_or_path")
    shape = sheet.shape_of(name or "")
    place = sheet.written.pop("model_name_or_path", None)
    if shape is not None:
        found = _with(shape, tower)
        meaning.say("model", found, "model_name_or_path", KEY)
        what = found if isinstance(found, str) else "LLaVA of these sizes"
        meaning.note(f"{name} behind {tower} is counted as {what} of Transformers, with the image among the tokens")
        sheet.written["model_name_or_path"] = (place or Written(None))._replace(value=name)
        sheet.get("model_name_or_path")
    else:
        said = f"{shown(name)} behind {tower} is known" if name else "it is known"
        meaning.ask("model", f"{said} to the caller alone (--model llava-1.5-7b)")
    for key in OWN:
        sheet.get(key)
    if tower.startswith("siglip"):
        meaning.lack(KEY, "SigLIP's encoder, and CLIP's of its sizes is counted")
    if (sheet.text("mm_projector_type") or "linear") != "mlp2x_gelu":
        meaning.lack("mm_projector_type", "a projector of one layer, and two are counted")
    if (sheet.text("mm_patch_merge_type") or "flat") != "flat":
        meaning.lack("mm_patch_merge_type", "several patches of an image, and one image is counted")
    bits = sheet.count("bits", 16)
    if bits in (4, 8):
        sheet.written[f"load_in_{bits}bit"] = sheet.written["bits"]._replace(value=True)
    defaults: dict[str, Any] = {"use_flash_attention_2": program.endswith("train_mem.py")}
    if program.endswith("train_xformers.py"):
        defaults["attn_implementation"] = "xformers"
    if sheet.flag("bf16"):
        defaults["dtype"] = "bfloat16"
    if sheet.flag("use_peft", False):
        defaults["lora_target_modules"] = LINEARS
        if bits in (4, 8):
            meaning.lack("bits", "a projector in 16 bits that is trained, and it is counted quantized and frozen")
        else:
            defaults["lora_modules_to_save"] = PROJECTOR
        meaning.lack(
            "lora_enable", "adapters of the language model alone; layers of the encoder of these names have one"
        )
        sheet.flag("tune_mm_mlp_adapter"), sheet.flag("freeze_backbone"), sheet.flag("freeze_mm_mlp_adapter")
    else:
        parts = ["vision_encoder"]
        for key, more in FROZEN.items():
            if sheet.flag(key, False):
                parts += [part for part in more if part not in parts]
        if sheet.flag("freeze_mm_mlp_adapter", False):
            parts.append("projector")
        if sheet.flag("unfreeze_mm_vision_tower", False):
            parts.remove("vision_encoder")
        trained = sheet.texts("mm_tunable_parts")
        if trained is not None:
            parts = [part for word, of in PARTS.items() if word not in trained for part in of]
        meaning.say("frozen", parts, KEY, *(key for key in (*FROZEN, "mm_tunable_parts") if sheet.given(key)))
    sheet.release = sheet.release._replace(defaults={**sheet.release.defaults, **defaults})
