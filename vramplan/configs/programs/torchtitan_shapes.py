"""The models that torchtitan's flavors are.

Source: pytorch/torchtitan 0.2.2 (238fa995) and main (b5bcd76c), torchtitan/models/*/__init__.py.
"""

from __future__ import annotations

from typing import Any

FOLDERS = {"kimi_k2_7": "kimi_k2"}
"""Folders of torchtitan/models whose models have another name here."""

FLAVORS = {
    ("llama3", "1B"): "llama-3.2-1b",
    ("llama3", "3B"): "llama-3.2-3b",
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("llama2", "7B"): "llama-2-7b",
    ("llama2", "13B"): "llama-2-13b",
    ("llama2", "70B"): "llama-2-70b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("llama4", "17bx16e"): "llama-4-scout-17b-16e",
    ("llama4", "17bx128e"): "llama-4-maverick-17b-128e",
    ("kimi_k2", "moonlight-16B-A3B"): "moonlight-16b-a3b",
    ("kimi_k2", "Kimi-VL-A3B"): "moonlight-16b-a3b",
    ("kimi_k2", "Kimi-K2.5"): "kimi-k2",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}

SHAPES: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "debugmodel"): {
        "name": "torchtitan llama3 debugmodel",
        "family": "llama",
        "layers": 6,
        "hidden_size": 256,
        "attention_heads": 16,
        "intermediate_size": 768,
        "vocabulary_size": 2048,
        "max_positions": 131072,
        "tied_embeddings": False,
    },
    ("qwen3", "debugmodel"): {
        "name": "torchtitan qwen3 debugmodel",
        "family": "qwen3",
        "layers": 8,
        "hidden_size": 256,
        "attention_heads": 16,
        "key_value_heads": 8,
        "head_size": 128,
        "intermediate_size": 3072,
        "vocabulary_size": 2048,
        "max_positions": 4096,
        "tied_embeddings": True,
    },
    ("qwen3", "debugmodel_moe"): {
        "name": "torchtitan qwen3 debugmodel_moe",
        "family": "qwen_moe",
        "transformers_model_type": "qwen3_moe",
        "layers": 8,
        "hidden_size": 256,
        "attention_heads": 16,
        "key_value_heads": 8,
        "head_size": 128,
        "intermediate_size": 3072,
        "vocabulary_size": 2048,
        "max_positions": 4096,
        "tied_embeddings": False,
        "qk_norm": True,
        "experts": {"count": 64, "active": 8, "intermediate_size": 768, "normalized": True},
    },
    ("deepseek_v3", "debugmodel"): {
        "name": "torchtitan deepseek_v3 debugmodel",
        "family": "deepseek",
        "transformers_model_type": "deepseek_v2",
        "layers": 6,
        "hidden_size": 256,
        "attention_heads": 16,
        "intermediate_size": 1024,
        "vocabulary_size": 2048,
        "max_positions": 16384,
        "tied_embeddings": False,
        "experts": {"count": 8, "active": 3, "shared": 2, "intermediate_size": 256, "dense_layers": [0]},
        "latent_attention": {"key_value_rank": 512, "plain_size": 128, "rotary_size": 64, "value_size": 128},
    },
    ("gpt_oss", "debugmodel"): {
        "name": "torchtitan gpt_oss debugmodel",
        "family": "gpt_oss",
        "layers": 4,
        "hidden_size": 256,
        "attention_heads": 64,
        "key_value_heads": 8,
        "head_size": 64,
        "intermediate_size": 2880,
        "vocabulary_size": 201088,
        "max_positions": 131072,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "experts": {"count": 8, "active": 4},
    },
}
"""Flavors that no checkpoint has, by torchtitan/models/*/__init__.py."""

SHAPES["qwen3", "debugmodel_non_fused_qkv"] = SHAPES["qwen3", "debugmodel"]
SHAPES["kimi_k2", "debugmodel"] = SHAPES["deepseek_v3", "debugmodel"] | {"name": "torchtitan kimi_k2_5 debugmodel"}

NEWER = ("qwen3_5", "kimi_k2")
"""Models that came after the TOML files of 0.2.2."""

UNCOUNTED = {
    ("kimi_k2", "debugmodel"): "the vision encoder (MoonViT, 4 blocks) is not counted",
    ("kimi_k2", "Kimi-VL-A3B"): "the vision encoder (MoonViT, 27 blocks of 1152) is not counted",
    ("kimi_k2", "Kimi-K2.5"): "the vision encoder (MoonViT, 27 blocks of 1152) is not counted",
}
"""What a flavor has beside the model that is answered."""


def _qwen3_5(
    flavor: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    inner: int,
    linear_values: int,
    vision: tuple[int, int, int, int],
    experts: tuple[int, int] | None = None,
    small: bool = False,
) -> None:
    """Add a flavor of Qwen3.5 with images, whose head is not tied to its table.

    `inner`: the width of its MLPs, or of one expert. `vision`: blocks, width, heads and inner width of the encoder.
    `small`: a model for debugging, whose heads and tables of positions are smaller.
    """
    size, keys = (64, 2) if small else (256, 16)
    linear = {"key_heads": keys, "value_heads": linear_values, "kernel": 4}
    linear |= {"key_size": 64, "value_size": 64} if small else {"key_size": 128, "value_size": 128}
    shape: dict[str, Any] = {
        "name": f"torchtitan qwen3_5 {flavor}",
        "family": "qwen3_5",
        "transformers_model_type": "qwen3_5" if experts is None else "qwen3_5_moe",
        "layers": layers,
        "hidden_size": hidden,
        "attention_heads": heads[0],
        "key_value_heads": heads[1],
        "head_size": size,
        "vocabulary_size": 248320,
        "max_positions": 4096 if small else 262144,
        "tied_embeddings": False,
        "partial_rotary_factor": 0.25,
        "linear_attention": {**linear, "layers": [i for i in range(layers) if (i + 1) % 4]},
        "patch_size": 16,
        "vision_merge": 2,
        "vision_frames": 2,
        "vision_positions": 1024 if small else 2304,
        "vision_layers": vision[0],
        "vision_hidden_size": vision[1],
        "vision_attention_heads": vision[2],
        "vision_intermediate_size": vision[3],
    }
    if experts is None:
        shape["intermediate_size"] = inner
    else:
        count, active = experts
        shape["experts"] = {
            "count": count,
            "active": active,
            "intermediate_size": inner,
            "shared_intermediate_size": inner,
        }
    SHAPES["qwen3_5", flavor] = shape


LARGE = (27, 1152, 16, 4304)  # the vision encoder of all but the smaller models
_qwen3_5("debugmodel", 8, 256, (4, 2), 512, 4, (4, 256, 4, 512), small=True)
_qwen3_5("debugmodel_moe", 4, 256, (4, 2), 256, 4, (2, 256, 4, 512), (8, 2), small=True)
_qwen3_5("0.8B", 24, 1024, (8, 2), 3584, 16, (12, 768, 12, 3072))
_qwen3_5("2B", 24, 2048, (8, 2), 6144, 16, (24, 1024, 16, 4096))
_qwen3_5("4B", 32, 2560, (16, 4), 9216, 32, (24, 1024, 16, 4096))
_qwen3_5("9B", 32, 4096, (16, 4), 12288, 32, LARGE)
_qwen3_5("27B", 64, 5120, (24, 4), 17408, 48, LARGE)
_qwen3_5("35B-A3B", 40, 2048, (16, 2), 512, 32, LARGE, (256, 8))
_qwen3_5("122B-A10B", 48, 3072, (32, 2), 1024, 64, LARGE, (256, 8))
_qwen3_5("397B-A17B", 60, 4096, (32, 2), 1024, 64, LARGE, (512, 10))
