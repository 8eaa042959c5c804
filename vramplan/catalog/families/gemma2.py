"""Gemma 2 (models/gemma2/configuration_gemma2.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import BOUND, COUNT, TEXT, ModelType, Peft
from vramplan.catalog.families.gemma import FIXED, attention_bias
from vramplan.catalog.families.gemma import KEYS as GEMMA_KEYS
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

KEYS = {
    **{key: value for key, value in GEMMA_KEYS.items() if key != "hidden_act"},
    "hidden_activation": ("activation", TEXT),
}


def softcaps(fields: Fields, values: dict[str, Any]) -> None:
    """Bounds of scores and logits: their size does not matter here, only whether there are any."""
    for key, field in (("attn_logit_softcapping", "attention_softcap"), ("final_logit_softcapping", "logit_softcap")):
        if fields.present(key):
            values[field] = fields.number(key) is not None


def _gemma2(fields: Fields, values: dict[str, Any]) -> None:
    attention_bias(fields, values)
    softcaps(fields, values)
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        values["sliding_window"] = None


def _written(shape: ModelShape) -> dict[str, Any]:
    return {
        "final_logit_softcapping": BOUND if shape.logit_softcap else None,
        "attn_logit_softcapping": BOUND if shape.attention_softcap else None,
    }


PEFT = Peft(
    norms=(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "norm",
    ),
    lora=("q_proj", "v_proj"),
    ia3=("q_proj", "v_proj", "down_proj"),
    ia3_feedforward=("down_proj",),
)
"""What adapters sit on in Gemma 2 and 3, whose blocks have four norms."""

TYPES = {
    "gemma2": ModelType(
        config="Gemma2Config",
        family="gemma2",
        tasks=("lm", "cls"),
        written=_written,
        peft=PEFT,
        defaults={
            "vocabulary_size": 256000,
            "hidden_size": 2304,
            "layers": 26,
            "attention_heads": 8,
            "key_value_heads": 4,
            "head_size": 256,
            "intermediate_size": 9216,
            "activation": "gelu_pytorch_tanh",
            "qkv_bias": False,
            "output_bias": False,
            "attention_dropout": 0.0,
            "max_positions": 8192,
            "tied_embeddings": True,
            "rope_scaling": None,
            "sliding_window": 4096,
            "attention_softcap": True,
            "logit_softcap": True,
        },
        fixed=FIXED,
        keys={
            **KEYS,
            "sliding_window": ("sliding_window", COUNT),
        },
        refused=("use_bidirectional_attention",),
        adjust=_gemma2,
        grouped=True,
        own_head_size=True,
    ),
}
