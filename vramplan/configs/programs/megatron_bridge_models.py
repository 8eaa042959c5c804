"""Which model a recipe of Megatron-Bridge trains: the checkpoint that it is made from, or the sizes that it gives.

Source: NVIDIA-NeMo/Megatron-Bridge 0.7.0 (067f987d), src/megatron/bridge/models/conversion/auto_bridge.py
(`from_hf_pretrained`), models/gpt_provider.py (defaults), models/olmoe/olmoe_provider.py.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.constructed import CLASS, OWNER
from vramplan.configs.programs.megatron import hybrid
from vramplan.configs.programs.megatron.kinds import GPT, LLAMA, MIXTRAL
from vramplan.configs.sheet import Meaning, Sheet

PROVIDERS = {"OlMoEModelProvider": "olmoe-1b-7b"}
"""Classes with the sizes of one model."""

LANGUAGE_MODELS = {
    "glm-4.5v": "glm-4.5-air",
    "kimi-k2.5": "kimi-k2",
    "nemotron-3-nano-omni-30b-a3b": "nemotron-3-nano-30b-a3b",
    "nvidia-nemotron-nano-12b-v2-vl": "nemotron-nano-12b-v2",
    "qwen3-omni-30b-a3b": "qwen3-30b-a3b",
}
"""Models that take images or sound, by how their names begin, with the one of text that each is built on.

Source: NVIDIA-NeMo/Megatron-Bridge 0.7.0 (067f987d), docs/models/{glm/glm-45v,kimi/kimi-k25-vl,qwen/qwen3-omni}.md,
docs/models/nemotron/{nemotron-3-omni,nemotron-nano-v2-vl}.md.
"""

FAMILIES = {"Gemma3": "gemma3", "Gemma2": "gemma2", "Gemma": "gemma", "Llama": "llama", "Mistral": "llama"}
"""What stands at the beginning of a class that is given sizes, and whose blocks it has."""

SIZES = {
    "layers": "model.num_layers",
    "hidden_size": "model.hidden_size",
    "attention_heads": "model.num_attention_heads",
    "intermediate_size": "model.ffn_hidden_size",
    "key_value_heads": "model.num_query_groups",
    "head_size": "model.kv_channels",
}


def model_of(sheet: Sheet, meaning: Meaning) -> None:
    """Say which model is trained."""
    kind = (sheet.text(f"model.{CLASS}") or "").rpartition(".")[2]
    for key in ("model.hybrid_layer_pattern", "model.hybrid_override_pattern"):
        if sheet.given(key):
            _hybrid(sheet, meaning, key)
            return
    name = sheet.text(f"model.{OWNER}.0") or sheet.text("model.0")
    sheet.under(f"model.{OWNER}")
    if name and "/" in name:
        meaning.say("model", _language_model(sheet, meaning, name), f"model.{OWNER}.0")
    elif kind in PROVIDERS:
        meaning.say("model", PROVIDERS[kind], f"model.{CLASS}")
    elif all(sheet.count(SIZES[part]) for part in ("layers", "hidden_size", "attention_heads")):
        _own(sheet, meaning)
    else:
        _by_tokenizer(sheet, meaning)


def _by_tokenizer(sheet: Sheet, meaning: Meaning) -> None:
    """The model whose tokenizer a recipe takes, where the recipe makes its model of what another file has."""
    name = sheet.text("tokenizer.tokenizer_model") or ""
    if "/" not in name or sheet.shape_of(name) is None:
        meaning.ask("model", "the recipe's model is made in another file (--model NAME)")
        return
    key = "tokenizer.tokenizer_model"
    meaning.say("model", _language_model(sheet, meaning, name), key)
    meaning.lack(key, f"the model is made in another file, and that of its tokenizer is counted: {name}")


def _language_model(sheet: Sheet, meaning: Meaning, name: str) -> str:
    """The model of text with the sizes of one that takes images, whose encoder Megatron's models here do not have."""
    shape, last = sheet.shape_of(name), name.rpartition("/")[2].lower()
    built_on = next((text for start, text in LANGUAGE_MODELS.items() if last.startswith(start)), None)
    if shape is None and built_on is not None:
        meaning.lack(f"model.{OWNER}.0", f"images or sound beside the text: {built_on} is counted, without encoders")
        return built_on
    if shape is None or not shape.takes_images:
        return name
    sizes = {part: getattr(shape, part) for part in (*SIZES, "vocabulary_size")}
    found = sheet.shape_named({**sizes, "takes_images": False})
    if found is None:
        return name
    meaning.lack(f"model.{OWNER}.0", f"images beside the text: {found} is counted, without the encoder")
    return found


def _hybrid(sheet: Sheet, meaning: Meaning, pattern: str) -> None:
    """A model whose blocks are of several kinds, by their pattern."""
    text = sheet.text(pattern) or ""
    blocks = hybrid.blocks_of(text)
    space = {name: sheet.count(f"model.{key}") for name, key in hybrid.KEYS.items()}
    mixture = {name: sheet.count(f"model.{key}") for name, key in hybrid.MIXTURE.items()}
    mixture["count"] = sheet.count("model.num_moe_experts")
    sizes: dict[str, Any] = {part: sheet.count(key) for part, key in SIZES.items() if sheet.given(key)}
    sizes.pop("layers", None)
    vocabulary = sheet.count("model.vocab_size") or sheet.count("tokenizer.vocab_size")
    tied = sheet.flag("model.share_embeddings_and_output_weights")
    if blocks is None or "hidden_size" not in sizes or "attention_heads" not in sizes:
        meaning.ask("model", f"{pattern} has blocks that are not modelled there (--model NAME)")
        return
    if blocks is not None and hybrid.EXPERTS in blocks and not mixture["shared_intermediate_size"]:
        meaning.lack("model.num_moe_experts", "no experts that every token passes, and one as wide as each is counted")
    if hybrid.BEHIND in text:
        meaning.lack(pattern, "blocks behind the model that predict further tokens, which are not counted")
    sizes.setdefault("intermediate_size", 4 * sizes["hidden_size"])
    sizes.setdefault("key_value_heads", sizes["attention_heads"])
    sizes.setdefault("head_size", sizes["hidden_size"] // sizes["attention_heads"])
    of = (pattern, "model.hidden_size", "model.num_attention_heads")
    known = sheet.shape_named({"family": hybrid.FAMILY, "layers": len(blocks), **sizes, "vocabulary_size": vocabulary})
    if known:
        meaning.say("model", known, *of)
        return
    if vocabulary is None:
        meaning.note(f"the tokenizer says how many tokens there are, and {hybrid.USUAL_VOCABULARY_SIZE} are counted")
    sizes |= {"vocabulary_size": vocabulary or hybrid.USUAL_VOCABULARY_SIZE, "tied_embeddings": bool(tied)}
    meaning.say("model", hybrid.shape_of(blocks, sizes, space, mixture), *of)


def _own(sheet: Sheet, meaning: Meaning) -> None:
    """A model by its sizes; without a gate it is GPT's."""
    provider = (sheet.text(f"model.{CLASS}") or "").rpartition(".")[2]
    family = next((family for name, family in FAMILIES.items() if provider.startswith(name)), None)
    gated = bool(sheet.flag("model.gated_linear_unit"))
    experts = sheet.count("model.num_moe_experts") or 0
    kind = MIXTRAL if experts > 1 else LLAMA if gated else GPT
    sizes: dict[str, Any] = {part: sheet.count(key) for part, key in SIZES.items() if sheet.given(key)}
    sizes.setdefault("intermediate_size", 4 * sizes["hidden_size"])
    vocabulary = sheet.count("model.vocab_size") or sheet.count("tokenizer.vocab_size")
    sizes["max_positions"] = sheet.count("dataset.seq_length") or sheet.count("model.seq_length")
    of = ("model.num_layers", "model.hidden_size", "model.num_attention_heads")
    if kind.is_in_catalogue or family is not None:
        known = sheet.shape_named({"family": family or kind.family, **sizes, "vocabulary_size": vocabulary})
        if known:
            meaning.say("model", known, *of)
            return
    if vocabulary is None:
        meaning.note(f"the tokenizer says how many tokens there are, and {kind.usual_vocabulary_size} are counted")
        vocabulary = kind.usual_vocabulary_size
    sizes["vocabulary_size"] = vocabulary
    billions = 12 * sizes["layers"] * sizes["hidden_size"] ** 2 / 1e9
    shape: dict[str, Any] = {"name": f"{kind.family}-{billions:.1f}b", "family": kind.family, **sizes}
    if kind.says_tied:
        shape["tied_embeddings"] = bool(sheet.flag("model.share_embeddings_and_output_weights"))
    if kind.has_experts:
        shape["experts"] = {"count": experts, "active": sheet.count("model.moe_router_topk", 2)}
    meaning.say("model", shape, *of)
