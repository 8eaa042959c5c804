"""ChatGLM2 and ChatGLM3, whose code lies with their weights (THUDM/chatglm3-6b, configuration_chatglm.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, ModelType, Peft
from vramplan.catalog.fields import Fields

GLM_4_VOCABULARY = 151552

GLM = "the checkpoints for Transformers, such as glm-4-9b-hf, are of the type glm"


def _chatglm(fields: Fields, values: dict[str, Any]) -> None:
    if fields.given("position_encoding_2d") or fields.given("inner_hidden_size"):
        fields.refuse("model_type", "the first ChatGLM is not modelled (modelled: ChatGLM2 and ChatGLM3)", hint=GLM)
    elif values.get("vocabulary_size") == GLM_4_VOCABULARY:
        fields.refuse("padded_vocab_size", "the code that came with GLM-4 is not modelled", hint=GLM)
    elif not fields.boolean("multi_query_attention"):
        fields.refuse("multi_query_attention", "only true is modelled")
    for key in ("rmsnorm", "post_layer_norm"):
        if fields.boolean(key) is False:
            fields.refuse(key, "false is not modelled")
    if fields.given("pre_seq_len"):
        fields.refuse("pre_seq_len", "prefixes are not modelled", hint="set it to null")
    if fields.integer("quantization_bit", minimum=0):
        fields.refuse("quantization_bit", "quantised weights are not modelled", hint="set it to 0")


def _contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    if values["head_size"] % 4 == 0:
        return []
    return [("head_size", f"half of a head of {values['head_size']} elements is no whole number of pairs to turn")]


TYPES = {
    "chatglm": ModelType(
        config="ChatGLMConfig",
        family="chatglm",
        tasks=("lm",),
        remote=True,
        peft=Peft(of_kind={"adalora": ()}, lora=("query_key_value",), fused="query_key_value"),
        defaults={
            "vocabulary_size": 65024,
            "hidden_size": 4096,
            "layers": 28,
            "attention_heads": 32,
            "key_value_heads": 1,
            "head_size": 128,
            "intermediate_size": 13696,
            "qkv_bias": False,
            "hidden_dropout": 0.0,
            "max_positions": 2048,
        },
        fixed={
            "activation": "silu",
            "tied_embeddings": False,
            "positions": "rope",
            "gated_mlp": True,
            "output_bias": False,
            "mlp_bias": False,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,  # attention_dropout is in the configuration, and not handed to the fused kernel
            "sliding_window": None,
        },
        keys={
            "num_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "multi_query_group_num": ("key_value_heads", COUNT),
            "kv_channels": ("head_size", COUNT),
            "ffn_hidden_size": ("intermediate_size", COUNT),
            "padded_vocab_size": ("vocabulary_size", COUNT),
            "seq_length": ("max_positions", COUNT),
            "hidden_dropout": ("hidden_dropout", RATIO),
            "add_qkv_bias": ("qkv_bias", FLAG),
        },
        refused=("add_bias_linear", "apply_residual_connection_post_layernorm", "fp32_residual_connection"),
        adjust=_chatglm,
        contradictions=_contradictions,
        grouped=True,
        own_head_size=True,
    ),
}
