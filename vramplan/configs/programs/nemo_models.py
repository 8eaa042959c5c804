"""Which model a YAML file of NeMo describes: its sizes, and the family that its switches make of them.

Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), examples/nlp/language_modeling/conf/megatron_*_config.yaml and
megatron_model_base_config.yaml (what an encoder and a decoder of T5 have, 512 tokens of the decoder's 128 counted).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.configs.programs.megatron.kinds import (
    ANY,
    BERT,
    CHATGLM,
    FALCON,
    GEMMA,
    GEMMA_2,
    GPT,
    LLAMA,
    MIXTRAL,
    NEMOTRON,
    STARCODER,
    T5,
    Kind,
    tell_vocabulary,
    vocabulary_of_size,
)
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.table import names

UNDERSTOOD = names(
    """
    model.num_layers model.hidden_size model.ffn_hidden_size model.num_attention_heads model.num_query_groups
    model.kv_channels model.num_moe_experts model.moe_router_topk model.normalization model.activation model.bias
    model.position_embedding_type model.share_embeddings_and_output_weights model.tokenizer.library
    model.tokenizer.type model.tokenizer.vocab_size model.tokenizer.model model.restore_from_path
    model.restore_from_ckpt model.qkv_bias model.override_vocab_size model.padded_vocab_size
    model.apply_embedding_scaling
    model.mcore_bert model.bert_binary_head model.mcore_t5 model.mcore_customization_config.attn_logit_softcapping
    model.mcore_customization_config.final_logit_softcapping model.mcore_customization_config.query_pre_attn_scalar
    model.mcore_customization_config.new_decoder_architecture model.mcore_customization_config.parallel_attention
    model.encoder.num_layers model.encoder.hidden_size model.encoder.ffn_hidden_size
    model.encoder.num_attention_heads model.decoder.num_layers model.vocab_size model.share_token_embeddings
    model.share_decoder_tokens_head_embeddings model.tokenizer.num_sentinel_tokens model.max_position_embeddings
    model.pipeline_model_parallel_split_rank
    """
)
VOCABULARIES = {"GPT2BPETokenizer": 50257, "BertWordPieceLowerCase": 30522, "BertWordPieceCase": 28996}
RECURRENT = ("model.hybrid_override_pattern", "model.mamba_ssm_ngroups", "model.activations_checkpoint_recurrent")
SIZES = ("layers", "hidden_size", "intermediate_size", "attention_heads")
ENCODER = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")
BASE = (12, 768, 3072, 12)
"""Sizes of an encoder by megatron_model_base_config.yaml, which `defaults` of T5's files name."""

DECODER_TOKENS = 128
"""By megatron_t5_config.yaml, model.data.seq_length_dec."""


def read(sheet: Sheet, meaning: Meaning, length: int | None) -> None:
    """Say which model is trained."""
    path = sheet.text("model.restore_from_path") or sheet.text("model.restore_from_ckpt")
    for key in ("model.bias", "model.tokenizer.library", "model.pipeline_model_parallel_split_rank"):
        sheet.get(key)
    if _is_t5(sheet):
        _t5(sheet, meaning)
        return
    layers, width = sheet.count("model.num_layers"), sheet.count("model.hidden_size")
    heads, inner = sheet.count("model.num_attention_heads"), sheet.count("model.ffn_hidden_size")
    tokens = sheet.text("model.tokenizer.type") or sheet.text("model.tokenizer.model") or ""
    if layers is None or width is None or heads is None:
        if path and path != "???":
            meaning.say("model", path.removesuffix(".nemo"), "model.restore_from_path")
        else:
            meaning.ask("model", "model.restore_from_path is given when it is run (--model NAME)")
        return
    other = next((key for key in RECURRENT if key in sheet), None)
    if other is not None:
        meaning.ask("model", f"{other}: a job has no word for blocks that are recurrent (--model NAME)")
        return
    kinds = _kinds(sheet, meaning)
    vocabulary = sheet.count("model.override_vocab_size") or sheet.count("model.vocab_size")
    vocabulary = vocabulary or sheet.count("model.padded_vocab_size")
    vocabulary = vocabulary or sheet.count("model.tokenizer.vocab_size") or VOCABULARIES.get(tokens)
    if vocabulary is None and "/" in tokens:
        named = sheet.shape_of(tokens)
        vocabulary = None if named is None else named.vocabulary_size
    shape: dict[str, Any] = {
        "layers": layers,
        "hidden_size": width,
        "attention_heads": heads,
        "intermediate_size": inner or 4 * width,
        "vocabulary_size": vocabulary,
        "max_positions": sheet.count("model.max_position_embeddings") or length,
    }
    groups, size = sheet.count("model.num_query_groups"), sheet.count("model.kv_channels")
    of = ("model.num_layers", "model.hidden_size", "model.num_attention_heads")
    tied = sheet.flag("model.share_embeddings_and_output_weights", True)
    if kinds[0].is_in_catalogue:
        exact = {**shape, "key_value_heads": groups or heads, "head_size": size or width // heads}
        for kind in kinds:
            shared = {"tied_embeddings": tied} if kind.says_tied else {}
            if vocabulary is None and kind.biases_queries:  # sizes alone, which models of other biases have too
                shared["qkv_bias"] = bool(sheet.flag("model.qkv_bias"))
            known = sheet.shape_named({"family": kind.family, **exact, **shared})
            if known:
                known = _named_by_run(sheet, known, SAME if vocabulary is None else (*SAME, "vocabulary_size"))
                meaning.say("model", known, *of)
                if vocabulary is None:
                    tell_vocabulary(sheet, meaning, known)
                _dropout(sheet, meaning, kind)
                return
            vocabulary = vocabulary or vocabulary_of_size(sheet, meaning, {"family": kind.family, **exact, **shared})
        shape["vocabulary_size"] = vocabulary
    if vocabulary is None:
        meaning.ask("model.vocabulary_size", f"the tokenizer {tokens or '(none)'} says how many tokens there are")
        shape["vocabulary_size"] = kinds[-1].usual_vocabulary_size
    _own(sheet, meaning, kinds[-1], shape, groups, size)


RUN_NAMES = ("run.name", "name")
"""Keys that name a run, as `baichuan2_7b` or `megatron_llama`."""


def _named_by_run(sheet: Sheet, known: str, same: Sequence[str]) -> str:
    """Of models of the same sizes the one that the run is called by, as vocabularies may be open."""
    found = sheet.shape_of(known)
    for key in RUN_NAMES:
        named = sheet.shape_of((sheet.text(key) or "").replace("_", "-"))
        if found and named and all(getattr(named, name) == getattr(found, name) for name in same):
            return named.name
    return known


SAME = (
    "layers",
    "hidden_size",
    "attention_heads",
    "key_value_heads",
    "intermediate_size",
    "tied_embeddings",
    "qkv_bias",
)
"""Sizes that a file tells, besides the vocabulary."""


def _kinds(sheet: Sheet, meaning: Meaning) -> tuple[Kind, ...]:
    """The kinds of models that a file may describe, the likeliest first."""
    norm, activation = sheet.text("model.normalization") or "", sheet.text("model.activation") or ""
    capped = [sheet.get(f"model.mcore_customization_config.{key}_logit_softcapping") for key in ("attn", "final")]
    sheet.under("model.mcore_customization_config")
    scaled, biased = sheet.flag("model.apply_embedding_scaling"), sheet.flag("model.qkv_bias")
    if "model.bert_binary_head" in sheet or sheet.flag("model.mcore_bert"):
        return (BERT,)
    gated, rotary = "glu" in activation.lower(), sheet.text("model.position_embedding_type", "rope") == "rope"
    rotary = rotary if gated else sheet.text("model.position_embedding_type") == "rope"
    if (sheet.count("model.num_moe_experts") or 1) > 1:
        return (MIXTRAL,) if gated and rotary else (ANY,)
    if gated and not ("rms" in norm.lower() and rotary):
        counted = "RMSNorm" if rotary else "LayerNorm"
        if (counted == "RMSNorm") != ("rms" in norm.lower()):
            meaning.lack("model.normalization", f"{norm or 'layernorm'}, and {counted} is counted")
        return (ANY,)
    if gated:
        if scaled:
            return (GEMMA_2,) if any(capped) else (GEMMA,)
        return (CHATGLM, LLAMA) if biased else (LLAMA,)
    if rotary and "squared" in activation.lower():
        return (NEMOTRON,)
    if rotary:
        parallel = bool(sheet.flag("model.mcore_customization_config.parallel_attention"))
        return (FALCON,) if parallel else (STARCODER,)
    return (GPT,) if sheet.flag("model.share_embeddings_and_output_weights", True) else (ANY,)


def _own(
    sheet: Sheet, meaning: Meaning, kind: Kind, sizes: dict[str, Any], groups: int | None, size: int | None
) -> None:
    """A model that the catalogue does not have."""
    heads, width, experts = sizes["attention_heads"], sizes["hidden_size"], sheet.count("model.num_moe_experts")
    billions = 12 * sizes["layers"] * width * width / 1e9
    shape: dict[str, Any] = {"name": f"{kind.family}-{billions:.1f}b", "family": kind.family}
    shape |= {key: value for key, value in sizes.items() if value is not None}
    if (groups and groups != heads) or kind is STARCODER:
        shape["key_value_heads"] = groups or heads
    if size and size * heads != width:
        shape["head_size"] = size
    shared = sheet.flag("model.share_embeddings_and_output_weights", True)
    if kind.says_tied:
        shape["tied_embeddings"] = bool(shared)
    elif not shared:
        meaning.lack("model.share_embeddings_and_output_weights", "an output layer of its own, which is not counted")
    if kind.says_biases and sheet.flag("model.bias") is False:
        shape["qkv_bias"] = False
    if sheet.flag("model.qkv_bias") and kind.biases_queries:
        shape["qkv_bias"] = True
    if kind is FALCON and sheet.flag("model.mcore_customization_config.new_decoder_architecture"):
        shape["new_decoder_architecture"] = True
    if kind is ANY:
        rotary = sheet.text("model.position_embedding_type", "rope") == "rope"
        shape["positions"] = "rope" if rotary else "learned"
        shape["gated_mlp"] = "glu" in (sheet.text("model.activation") or "").lower()
    if kind.has_experts and experts and experts > 1:
        shape["experts"] = {"count": experts, "active": sheet.count("model.moe_router_topk", 2)}
    meaning.say("model", shape, "model.num_layers", "model.hidden_size", "model.num_attention_heads")
    _dropout(sheet, meaning, kind)


def _dropout(sheet: Sheet, meaning: Meaning, kind: Kind) -> None:
    """Say dropout where it is not what the catalogue's models of a kind have anyway."""
    dropout = sheet.number("model.hidden_dropout")
    if dropout is not None and (kind.drops_out or dropout):
        meaning.say("dropout", dropout, "model.hidden_dropout")


def _is_t5(sheet: Sheet) -> bool:
    own = ("model.mcore_t5", "model.share_token_embeddings", "model.encoder.num_layers")
    return any(key in sheet for key in own)


OF_T5 = 32128  # tokens of the T5 and of the Flan-T5 of the catalogue, whatever a file trains one with


def _t5(sheet: Sheet, meaning: Meaning) -> None:
    sheet.under("model.encoder")
    sheet.under("model.decoder")
    counted = [sheet.count(f"model.encoder.{key}") or usual for key, usual in zip(ENCODER, BASE, strict=True)]
    tied = bool(sheet.flag("model.share_decoder_tokens_head_embeddings", True))
    gated = "glu" in (sheet.text("model.encoder.activation") or "").lower()
    sizes: dict[str, Any] = {"family": "t5", **dict(zip(SIZES, counted, strict=True)), "tied_embeddings": tied}
    of = tuple(f"model.encoder.{key}" for key in ENCODER)
    known = sheet.shape_named({**sizes, "gated_mlp": gated, "vocabulary_size": OF_T5})  # and not of mT5
    if known:
        meaning.say("model", known, *of)
    else:
        _own_t5(sheet, meaning, sizes, gated)
    meaning.say("target_length", sheet.count("model.data.seq_length_dec", DECODER_TOKENS), "model.data.seq_length_dec")


def _own_t5(sheet: Sheet, meaning: Meaning, sizes: dict[str, Any], gated: bool) -> None:
    """A T5 that the catalogue does not have, as NeMo's of 220 million parameters: gates beside one shared table."""
    tokens = sheet.text("model.tokenizer.type") or ""
    vocabulary = sheet.count("model.vocab_size") or VOCABULARIES.get(tokens)
    if vocabulary is None:
        meaning.ask("model.vocabulary_size", f"the tokenizer {tokens or '(none)'} says how many tokens there are")
        vocabulary = T5.vocabulary_size or 0
    else:
        vocabulary += sheet.count("model.tokenizer.num_sentinel_tokens") or 0
    layers, width, heads = sizes["layers"], sizes["hidden_size"], sizes["attention_heads"]
    decoder = sheet.count("model.decoder.num_layers") or layers
    head_size = sheet.count("model.encoder.kv_channels") or width // heads
    attention, matrices = 4 * head_size * heads * width, (3 if gated else 2) * width * sizes["intermediate_size"]
    billions = (layers * (attention + matrices) + decoder * (2 * attention + matrices) + vocabulary * width) / 1e9
    shape: dict[str, Any] = {"name": f"t5-{billions:.1f}b", **sizes, "head_size": head_size}
    shape |= {"decoder_layers": decoder, "gated_mlp": gated, "vocabulary_size": vocabulary}
    shape["activation"] = "gelu_new" if gated else "gelu"
    meaning.say("model", shape, *(f"model.encoder.{key}" for key in ENCODER))
