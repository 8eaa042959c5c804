"""The model that the sizes of a Megatron command mean.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py, validate_args; megatron/training/
tokenizer/*.py; pretrain_{gpt,bert,t5}.py.
"""

from __future__ import annotations

import re
from typing import Any

from vramplan.configs import shell
from vramplan.configs.programs import megatron_beside as beside
from vramplan.configs.programs.megatron import experts, hybrid
from vramplan.configs.programs.megatron.asked import MegatronMeaning
from vramplan.configs.programs.megatron.kinds import (
    ANY,
    BERT,
    BLOOM,
    GPT,
    GPT_OSS,
    LLAMA,
    MIXTRAL,
    NEMOTRON,
    STARCODER,
    T5,
    Kind,
    tell_vocabulary,
    vocabulary_of_size,
)
from vramplan.configs.sheet import Sheet
from vramplan.values.model import ModelShape

VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
}

ROTARY = ("rope", "mrope", "rotary")
"""Words of `--position-embedding-type`; the last is that of BigScience's fork."""

PATTERNS = ("hybrid_layer_pattern", "hybrid_override_pattern")
DELTA_PROGRAM = "pretrain_qwen3_next.py"
"""Pai-Megatron-Patch's, in whose pattern M is a gated delta net and - are experts."""


def kind_of(asked: MegatronMeaning, program: str) -> Kind:
    """The kind of models that the program and the arguments make."""
    sheet = asked.sheet
    images = beside.reads_images(sheet)
    if "t5" in program or (sheet.given("decoder_seq_length") and not images):
        return T5
    pieces = str(sheet.get("tokenizer_type")).startswith("BertWordPiece")
    if "bert" in program or pieces or str(sheet.get("vocab_file")).endswith("vocab.txt"):
        return BERT
    sheet.text("vocab_extra_ids")
    if sheet.flag("enable_gpt_oss"):
        return GPT_OSS
    roots = (sheet.text("normalization") or "").lower() == "rmsnorm"
    rotary = positions_of(sheet) == "rope"
    sheet.flag("group_query_attention")
    turning = NEMOTRON if sheet.flag("squared_relu") else STARCODER
    gated, normed = is_gated(sheet), bool(sheet.flag("qk_layernorm"))
    mixed = (experts.count_of(asked) or 0) > 1
    if not (gated or mixed) and sheet.text("position_embedding_type") == "alibi":
        return BLOOM
    usual = gated and roots and (rotary or not sheet.given("position_embedding_type"))
    if mixed:
        kind = MIXTRAL if usual and not experts.are_deepspeeds(asked) else ANY
    elif gated:
        kind = LLAMA if usual else ANY
    else:
        kind = ANY if normed or positions_of(sheet) == "none" else turning if rotary else GPT
    if any(sheet.given(key) for key in PATTERNS):
        rotary = gated = True  # RMSNorm, as all blocks of a pattern have it
        usual = roots
    if roots != (gated and rotary) and not usual:
        counted = "RMSNorm" if gated and rotary else "LayerNorm"
        asked.meaning.lack("normalization", f"{sheet.text('normalization')}, and {counted} is counted")
    return kind


def positions_of(sheet: Sheet) -> str:
    """The word of a model for its positions."""
    word = sheet.text("position_embedding_type")
    if sheet.flag("use_rotary_position_embeddings") or word in ROTARY:
        return "rope"
    return "none" if word == "none" or sheet.flag("no_position_embedding") else "learned"


def is_gated(sheet: Sheet) -> bool:
    """Whether the feed-forward layer has a gate: BigScience's fork names its activation."""
    return bool(sheet.flag("swiglu")) or sheet.given("glu_activation")


def model_of(asked: MegatronMeaning, kind: Kind) -> None:
    """Say the model: a profile of these sizes, else the sizes."""
    sheet, meaning = asked.sheet, asked.meaning
    provider = sheet.text("model_provider")  # of examples/mimo/train.py
    if provider not in (None, "gpt", "mamba"):
        meaning.ask("model", f"model_provider: {provider} makes a model with sizes of its own (--model NAME)")
    key = "encoder_num_layers" if sheet.given("encoder_num_layers") else "num_layers"
    layers, width = asked.count(key, "model"), asked.count("hidden_size", "model")
    heads = asked.count("num_attention_heads", "model")
    asked.count("decoder_num_layers")
    gated = is_gated(sheet)
    inner = asked.count("ffn_hidden_size") or asked.count("intermediate_size")
    pattern = next((word for word in PATTERNS if sheet.given(word)), None)
    if pattern is not None and (sheet.text("program") or "").endswith(DELTA_PROGRAM):
        _delta(asked, layers, width, heads)
        return
    if pattern is not None:
        _hybrid(asked, pattern, width, heads, inner)
        return
    if "model" in meaning.open:
        return
    if layers is None or width is None or heads is None:
        meaning.ask("model", "the sizes of the model are not in the arguments (--model NAME)")
        return
    if inner is None:
        inner = int((4 * width * 2 / 3) / 64) * 64 if sheet.flag("swiglu") else 4 * width
    positions = asked.count("max_position_embeddings")
    grouped = sheet.flag("group_query_attention") or sheet.given("num_key_value_heads")
    groups = asked.count("num_key_value_heads") or asked.count("num_query_groups")
    head_size = asked.count("kv_channels")
    count = experts.count_of(asked) if kind.has_experts else None
    vocabulary = vocabulary_of(asked, kind)
    sheet.text("position_embedding_type")
    sheet.flag("disable_bias_linear")
    normed = sheet.flag("qk_layernorm")
    untied = sheet.flag("untie_embeddings_and_output_weights")
    if kind is GPT and untied:
        kind = ANY  # GPT-2 has no output layer of its own
    mixture = experts.mixture_of(asked, count, inner, layers) if count and count > 1 else {}
    if "model" in meaning.open:
        return
    sizes: dict[str, Any] = {
        "family": kind.family,
        "layers": layers,
        "hidden_size": width,
        "attention_heads": heads,
        "intermediate_size": inner,
        "vocabulary_size": vocabulary,
        "max_positions": positions,
    }
    if grouped and groups:
        sizes["key_value_heads"] = groups
    elif kind is STARCODER:
        sizes["key_value_heads"] = heads
    if head_size and head_size * heads != width:
        sizes["head_size"] = head_size
    if kind.says_biases and sheet.flag("disable_bias_linear"):
        sizes["qkv_bias"] = False
    if kind.says_tied:
        sizes["tied_embeddings"] = not untied
    known = None
    is_own = vocabulary is None and _is_another(sheet)
    if kind.is_in_catalogue and not is_own:
        left_out = ("vocabulary_size",) if kind.own_vocabulary else ()
        exact = sizes
        if kind.counts_heads:  # without groups each head has keys of its own
            exact = {"key_value_heads": heads, **sizes, "head_size": head_size or width // heads}
        if vocabulary is None:  # sizes alone, which models of other biases have too
            exact = {**exact, **_biased(sheet, kind)}
        known = sheet.shape_named({name: value for name, value in exact.items() if name not in left_out})
    if kind.other_experts and not known and not is_own:
        latent = sheet.given("multi_latent_attention")  # whose heads have sizes of their own
        others = {name: value for name, value in sizes.items() if not (latent and name.startswith("head_"))}
        known = sheet.shape_named({**others, "family": kind.other_experts[0 if latent else 1]})
    if known:
        meaning.say("model", known, key, "hidden_size", "num_attention_heads")
        if vocabulary is None and not sheet.given("patch_tokenizer_type"):
            tell_vocabulary(sheet, meaning, known)
        return
    if vocabulary is None and kind.is_in_catalogue and not is_own:
        alike = {name: value for name, value in sizes.items() if name not in ("vocabulary_size", "tied_embeddings")}
        alike.setdefault("key_value_heads", heads)
        alike |= _biased(sheet, kind)
        vocabulary = sizes["vocabulary_size"] = vocabulary_of_size(sheet, meaning, alike)
    if vocabulary is None:
        of = "--vocab-file" if is_own else "the tokenizer of --tokenizer-model"
        meaning.ask("model.vocabulary_size", f"{of} says how many tokens there are")
        vocabulary = sizes["vocabulary_size"] = kind.usual_vocabulary_size
    own = {*mixture} & {"shared", "dense_layers"}
    if own and kind is MIXTRAL:
        kind = ANY
        sizes |= {"family": kind.family, "qkv_bias": not sheet.flag("disable_bias_linear")}
    elif kind is MIXTRAL:
        sizes["intermediate_size"] = inner = mixture["intermediate_size"]
    attention = (2 * heads + 2 * (groups if grouped and groups else heads)) * (head_size or width // heads)
    matrices, plain = 3 if gated else 2, len(mixture.get("dense_layers", ())) if mixture else layers
    of_experts = (count or 1) * mixture.get("intermediate_size", 0) + mixture.get("shared_intermediate_size", 0)
    feedforward = matrices * (plain * inner + (layers - plain) * of_experts)
    billions = width * (layers * attention + feedforward) / 1e9
    if normed and kind.norms_heads:
        sizes["qk_norm"] = True
    elif normed:
        meaning.lack("qk_layernorm", "norms of queries and keys, which are not counted")
    if kind.biases_queries and sheet.flag("add_qkv_bias"):
        sizes["qkv_bias"] = True
    if kind is ANY:
        sizes |= {"positions": positions_of(sheet), "gated_mlp": gated}
        if sizes.get("qkv_bias") and sheet.flag("disable_bias_linear"):
            sizes |= {"output_bias": False, "mlp_bias": False}
    shape = {"name": f"{kind.family}-{billions:.1f}b", **{name: v for name, v in sizes.items() if v is not None}}
    if mixture:
        shape.setdefault("key_value_heads", heads)
        shape["experts"] = mixture if kind is ANY else {"count": count, "active": mixture["active"]}
    meaning.say("model", shape, key, "hidden_size", "num_attention_heads")


def _biased(sheet: Sheet, kind: Kind) -> dict[str, bool]:
    """Whether queries and keys have biases, of a kind whose scripts say so."""
    return {"qkv_bias": bool(sheet.flag("add_qkv_bias"))} if kind.biases_queries else {}


def _delta(asked: MegatronMeaning, layers: int | None, width: int | None, heads: int | None) -> None:
    """The Qwen3-Next of these sizes: half of the pattern are mixers, delta nets and attention, and half are experts."""
    sheet, meaning = asked.sheet, asked.meaning
    for key in (*PATTERNS, *hybrid.KEYS.values(), *hybrid.MIXTURE.values(), "num_query_groups", "kv_channels"):
        sheet.get(key)
    for key in ("group_query_attention", "untie_embeddings_and_output_weights", "disable_bias_linear", "qk_layernorm"):
        sheet.flag(key)
    vocabulary = vocabulary_of(asked, LLAMA)
    if "model" in meaning.open:
        return
    sizes = {
        "layers": (layers or 0) // 2,
        "hidden_size": width,
        "attention_heads": heads,
        "vocabulary_size": vocabulary,
    }
    known = sheet.shape_named({"family": "qwen3_next", **sizes})
    if known is None:
        meaning.ask("model", "no Qwen3-Next of the catalogue has the sizes (--model NAME)")
    else:
        meaning.say("model", known, "num_layers", "hidden_size", "num_attention_heads")


def _hybrid(asked: MegatronMeaning, pattern: str, width: int | None, heads: int | None, inner: int | None) -> None:
    """A model whose blocks are of several kinds, by their pattern."""
    sheet, meaning = asked.sheet, asked.meaning
    text = sheet.text(pattern) or ""
    blocks = hybrid.blocks_of(text)
    space = {name: asked.count(key, "model") for name, key in hybrid.KEYS.items()}
    groups = (asked.count("num_query_groups") if sheet.flag("group_query_attention") else None) or heads
    for key in ("squared_relu", "disable_bias_linear", "untie_embeddings_and_output_weights"):
        sheet.flag(key)
    mixture = {name: asked.count(key, "model") for name, key in hybrid.MIXTURE.items()}
    if blocks is not None and hybrid.EXPERTS in blocks and not mixture["shared_intermediate_size"]:
        meaning.lack(hybrid.MIXTURE["count"], "no experts that every token passes, and one as wide as each is counted")
    if hybrid.BEHIND in text:
        meaning.lack(pattern, "blocks behind the model that predict further tokens, which are not counted")
    if blocks is not None and hybrid.EXPERTS in blocks and not mixture["count"]:
        blocks = None
    if blocks is None and "model" not in meaning.open:
        what = "has experts" if hybrid.EXPERTS in text else "has blocks that are not modelled there"
        what = f"is {shell.shown(text)}, which only the caller gives" if shell.unknowns(text) else what
        meaning.ask("model", f"--{pattern.replace('_', '-')} {what} (--model NAME)")
    if "model" in meaning.open or blocks is None:
        return
    if width is None or heads is None:
        meaning.ask("model", "the sizes of the model are not in the arguments (--model NAME)")
        return
    inner = inner or 4 * width
    sizes: dict[str, Any] = {
        "hidden_size": width,
        "attention_heads": heads,
        "key_value_heads": groups,
        "intermediate_size": inner,
        "head_size": asked.count("kv_channels") or width // heads,
    }
    vocabulary, of = vocabulary_of(asked, LLAMA), (pattern, "hidden_size", "num_attention_heads")
    known = sheet.shape_named({"family": hybrid.FAMILY, "layers": len(blocks), **sizes, "vocabulary_size": vocabulary})
    if known:
        meaning.say("model", known, *of)
        return
    if vocabulary is None:
        meaning.ask("model.vocabulary_size", "the tokenizer of --tokenizer-model says how many tokens there are")
        vocabulary = hybrid.USUAL_VOCABULARY_SIZE
    sizes["vocabulary_size"] = vocabulary
    if positions := asked.count("max_position_embeddings"):
        sizes["max_positions"] = positions
    sizes["tied_embeddings"] = not sheet.flag("untie_embeddings_and_output_weights")
    meaning.say("model", hybrid.shape_of(blocks, sizes, space, mixture), *of)


def _named_by_folder(sheet: Sheet, path: str) -> ModelShape | None:
    """The model that the path of a tokenizer names: a name on the hub, or a folder, `llama-7b/tokenizer.model`."""
    folders = (part for part in reversed(path.split("/")) if any(sign.isdigit() for sign in part))
    return sheet.shape_of(path) or next(filter(None, map(sheet.shape_of, folders)), None)


def _is_another(sheet: Sheet) -> bool:
    """Whether a vocabulary of GPT-2's form is one that somebody has made: its path does not say that it is GPT-2's."""
    file = (sheet.text("vocab_file") or "").strip()
    if sheet.text("tokenizer_type") not in (None, "GPT2BPETokenizer") or shell.unknowns(file):
        return False
    return file.endswith(".json") and re.search(r"<|(?i:gpt|your|path.?to)", file) is None


def vocabulary_of(asked: MegatronMeaning, kind: Kind) -> int | None:
    """How many tokens there are, None where only the tokenizer knows."""
    sheet = asked.sheet
    given = asked.count("vocab_size") or asked.count("padded_vocab_size") or asked.count("pad_vocab_size_to")
    tokens = sheet.text("tokenizer_type")
    file = sheet.text("vocab_file") or ""
    tokenizer = sheet.text("tokenizer_model") or ""
    if given:
        return given
    patched = beside.vocabulary(sheet)
    if patched is not None:
        return patched
    named = _named_by_folder(sheet, tokenizer) if "/" in tokenizer and not shell.unknowns(tokenizer) else None
    beside_images = beside.language_model(sheet)
    if named is None and beside_images is not None:
        named = sheet.shape_of(beside_images)
    if named is not None:
        return named.vocabulary_size
    if _is_another(sheet):
        folder = _named_by_folder(sheet, file)
        return None if folder is None else folder.vocabulary_size
    if tokens in VOCABULARIES:
        return VOCABULARIES[tokens]
    if file.endswith("vocab.txt"):
        return BERT.vocabulary_size
    if kind.vocabulary_size is not None:
        return kind.vocabulary_size
    if tokens is None and (file or kind is GPT):
        return VOCABULARIES["GPT2BPETokenizer"]
    return None
