"""Mistral Small 4 for text (models/mistral4/configuration_mistral4.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, ModelType, same_heads
from vramplan.catalog.families import deepseek
from vramplan.catalog.fields import Fields

LAYERS = 36


def _mistral4(fields: Fields, values: dict[str, Any]) -> None:
    deepseek.of_latents(fields, values)
    deepseek.first_dense(fields, values, 0, LAYERS)
    deepseek.groups(fields, values)
    if fields.given("rope_interleave"):
        values["latent_attention.interleaved"] = fields.boolean("rope_interleave")


TYPES = {
    "mistral4": ModelType(
        config="Mistral4Config",
        family="mistral4",
        tasks=("lm", "cls"),
        written=deepseek.written_v3,
        defaults={
            **deepseek.DEFAULTS,
            "vocabulary_size": 131072,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "layers": LAYERS,
            "attention_heads": 32,
            "key_value_heads": same_heads,
            "max_positions": 1048576,
            "experts.count": 128,
            "experts.active": 4,
            "experts.shared": 1,
            "experts.intermediate_size": 2048,
            "experts.normalized": True,
            "experts.dense_layers": (),
            "experts.groups": 1,
            "experts.active_groups": 1,
            "latent_attention.query_rank": 1024,
            "latent_attention.key_value_rank": 256,
            "latent_attention.plain_size": 64,
            "latent_attention.interleaved": True,
        },
        fixed={**deepseek.FIXED_SIZES, "mlp_bias": False, "scaled_queries": True},
        keys={**deepseek.KEYS_OF_LATENTS, "norm_topk_prob": ("experts.normalized", FLAG)},
        adjust=_mistral4,
        own_head_size=True,
    ),
}
