"""The models of modded-nanogpt's records of December 2024 (KellerJordan/modded-nanogpt, GPTConfig of train_gpt2.py).

What differs from record to record is in `model.unet`, and has no default.
"""

from __future__ import annotations

from vramplan.catalog.config_classes import ModelType, four_times, same_heads
from vramplan.catalog.unet import wrong_unet

TYPES = {
    "modded_nanogpt": ModelType(
        config="GPTConfig of modded-nanogpt",
        family="modded_nanogpt",
        tasks=("lm",),
        defaults={
            "vocabulary_size": 50304,
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 6,
            "max_positions": 65536,
            "unet.value_embeddings": None,
            "unet.mirrored": None,
            "unet.embedding_rows": None,
            "unet.fp32_rotary": None,
            "unet.attention_free": None,
        },
        fixed={
            "key_value_heads": same_heads,
            "intermediate_size": four_times,
            "tied_embeddings": False,
            "positions": "rope",
            "activation": "relu2",
            "gated_mlp": False,
            "qk_norm": True,
            "logit_softcap": True,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "sliding_window": None,
        },
        keys={},
        contradictions=lambda values: list(wrong_unet(values)),
    ),
}
