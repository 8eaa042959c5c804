"""The defaults of Transformers' configuration classes, in the words of the job format.

Source: huggingface/transformers 5.23.0, src/transformers/models/<type>/configuration_<type>.py, and for what cannot be
chosen modeling_<type>.py beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ModelType(NamedTuple):
    """One Transformers model type: its configuration class, its defaults and what cannot be chosen."""

    config: str
    family: str
    tasks: tuple[str, ...]  # the first is the default
    defaults: dict[str, Any]  # a callable computes from the fields that are known by then
    fixed: dict[str, Any]


def _same_heads(fields: Mapping[str, Any]) -> Any:
    return fields["attention_heads"]


def _four_times(fields: Mapping[str, Any]) -> Any:
    return 4 * fields["hidden_size"]


def _hidden_dropout(fields: Mapping[str, Any]) -> Any:
    return fields["hidden_dropout"]


_LLAMA_FIXED = {
    "positions": "rope",
    "gated_mlp": True,
    "token_types": 0,
    "embedding_dropout": 0.0,
    "hidden_dropout": 0.0,
}
_LLAMA_DEFAULTS = {
    "vocabulary_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "layers": 32,
    "attention_heads": 32,
    "key_value_heads": _same_heads,
    "max_positions": 2048,
    "activation": "silu",
    "tied_embeddings": False,
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": None,
}
_ALL_BIASED = {"gated_mlp": False, "qkv_bias": True, "output_bias": True, "mlp_bias": True, "positions": "learned"}

MODEL_TYPES: dict[str, ModelType] = {
    "gpt2": ModelType(
        "GPT2Config",
        "gpt2",
        ("lm",),
        {
            "vocabulary_size": 50257,
            "max_positions": 1024,
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 12,
            "key_value_heads": _same_heads,
            "intermediate_size": _four_times,  # n_inner is None
            "activation": "gelu_new",
            "tied_embeddings": True,
            "embedding_dropout": 0.1,
            "attention_dropout": 0.1,
            "hidden_dropout": 0.1,
            "sliding_window": None,
        },
        {**_ALL_BIASED, "token_types": 0},
    ),
    "llama": ModelType("LlamaConfig", "llama", ("lm",), _LLAMA_DEFAULTS, _LLAMA_FIXED),
    "mistral": ModelType(
        "MistralConfig",
        "llama",
        ("lm",),
        {
            **_LLAMA_DEFAULTS,
            "intermediate_size": 14336,
            "key_value_heads": 8,
            "max_positions": 4096 * 32,
            "sliding_window": 4096,
        },
        _LLAMA_FIXED,
    ),
    "qwen2": ModelType(
        "Qwen2Config",
        "llama",
        ("lm",),
        {
            **_LLAMA_DEFAULTS,
            "vocabulary_size": 151936,
            "intermediate_size": 22016,
            "key_value_heads": 32,
            "max_positions": 32768,
            "qkv_bias": True,
        },
        _LLAMA_FIXED,
    ),
    "bert": ModelType(
        "BertConfig",
        "bert",
        ("mlm", "cls"),
        {
            "vocabulary_size": 30522,
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 12,
            "key_value_heads": _same_heads,
            "intermediate_size": 3072,
            "activation": "gelu",
            "hidden_dropout": 0.1,
            "embedding_dropout": _hidden_dropout,  # one setting, hidden_dropout_prob, for both
            "attention_dropout": 0.1,
            "max_positions": 512,
            "token_types": 2,
            "tied_embeddings": True,
            "sliding_window": None,
        },
        _ALL_BIASED,
    ),
}
