"""GPT-BigCode, which is StarCoder (models/gpt_bigcode/configuration_gpt_bigcode.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import ModelType
from vramplan.catalog.families import gpt2
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

HEADS = 12
GPT2 = gpt2.TYPES["gpt2"]


def _gpt_bigcode(fields: Fields, values: dict[str, Any]) -> None:
    if fields.given("multi_query") and not fields.boolean("multi_query"):
        values["key_value_heads"] = values.get("attention_heads") or HEADS


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"multi_query": shape.key_value_heads == 1}


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    heads, groups = values["attention_heads"], values["key_value_heads"]
    if groups in (1, heads):
        return []
    return [("key_value_heads", f"a gpt_bigcode model has 1 head of keys and values, or all {heads}, not {groups}")]


TYPES = {
    "gpt_bigcode": ModelType(
        config="GPTBigCodeConfig",
        family="gpt_bigcode",
        tasks=("lm", "cls"),
        written=_written,
        peft=GPT2.peft,
        defaults={**GPT2.defaults, "activation": "gelu_pytorch_tanh", "key_value_heads": 1},
        fixed=GPT2.fixed,
        keys=GPT2.keys,
        adjust=_gpt_bigcode,
        contradictions=contradictions,
        refused=("add_cross_attention",),
        grouped=True,
    ),
}
