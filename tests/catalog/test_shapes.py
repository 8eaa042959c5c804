"""Fields of a model to its shape: the defaults of the configuration classes, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramplan.catalog import shapes
from vramplan.catalog.config_classes import FAMILIES, MODEL_TYPES
from vramplan.catalog.shapes import shape_from_fields
from vramplan.errors import InputError
from vramplan.values.model import Experts, LatentAttention

# the dataclass fields of transformers 5.23.0, configuration_<type>.py
CONFIG_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocabulary_size": 50257,
        "max_positions": 1024,
        "hidden_size": 768,
        "layers": 12,
        "attention_heads": 12,
        "key_value_heads": 12,
        "head_size": 64,
        "intermediate_size": 3072,
        "activation": "gelu_new",
        "tied_embeddings": True,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "gated_mlp": False,
        "embedding_dropout": 0.1,
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
        "positions": "learned",
        "token_types": 0,
        "task": "lm",
        "sliding_window": None,
        "classes": 2,
        "family": "gpt2",
    },
    "llama": {
        "vocabulary_size": 32000,
        "max_positions": 2048,
        "hidden_size": 4096,
        "layers": 32,
        "attention_heads": 32,
        "key_value_heads": 32,
        "head_size": 128,
        "intermediate_size": 11008,
        "activation": "silu",
        "tied_embeddings": False,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "gated_mlp": True,
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "positions": "rope",
        "token_types": 0,
        "task": "lm",
        "sliding_window": None,
        "family": "llama",
    },
    "mistral": {
        "key_value_heads": 8,
        "intermediate_size": 14336,
        "max_positions": 131072,
        "sliding_window": 4096,
        "vocabulary_size": 32000,
        "qkv_bias": False,
        "family": "llama",
    },
    "qwen2": {
        "vocabulary_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "key_value_heads": 32,
        "max_positions": 32768,
        "qkv_bias": True,
        "output_bias": False,
        "sliding_window": None,
        "family": "llama",
    },
    "qwen3": {"head_size": 128, "qk_norm": True, "max_positions": 32768, "vocabulary_size": 151936, "layers": 32},
    "gpt_neox": {
        "vocabulary_size": 50432,
        "hidden_size": 6144,
        "layers": 44,
        "attention_heads": 64,
        "intermediate_size": 24576,
        "activation": "gelu",
        "hidden_dropout": 0.0,
        "max_positions": 2048,
        "tied_embeddings": False,
        "parallel_residual": True,
        "partial_rotary_factor": 0.25,
        "qkv_bias": True,
        "family": "neox",
    },
    "opt": {
        "vocabulary_size": 50272,
        "hidden_size": 768,
        "layers": 12,
        "intermediate_size": 3072,
        "attention_heads": 12,
        "max_positions": 2048,
        "pre_norm": True,
        "embedding_size": 768,
        "hidden_dropout": 0.1,
        "activation": "relu",
        "attention_dropout": 0.0,
        "tied_embeddings": True,
        "positions": "learned",
    },
    "phi": {
        "vocabulary_size": 51200,
        "hidden_size": 2048,
        "layers": 24,
        "intermediate_size": 8192,
        "attention_heads": 32,
        "activation": "gelu_new",
        "max_positions": 2048,
        "tied_embeddings": False,
        "partial_rotary_factor": 0.5,
    },
    "phi3": {
        "vocabulary_size": 32064,
        "hidden_size": 3072,
        "layers": 32,
        "intermediate_size": 8192,
        "attention_heads": 32,
        "activation": "silu",
        "max_positions": 4096,
        "tied_embeddings": False,
        "sliding_window": None,
    },
    "gemma": {
        "vocabulary_size": 256000,
        "hidden_size": 3072,
        "layers": 28,
        "intermediate_size": 24576,
        "attention_heads": 16,
        "key_value_heads": 16,
        "head_size": 256,
        "activation": "gelu_pytorch_tanh",
        "max_positions": 8192,
        "tied_embeddings": True,
    },
    "gemma2": {
        "vocabulary_size": 256000,
        "hidden_size": 2304,
        "layers": 26,
        "intermediate_size": 9216,
        "attention_heads": 8,
        "key_value_heads": 4,
        "head_size": 256,
        "sliding_window": 4096,
        "attention_softcap": True,
        "logit_softcap": True,
        "max_positions": 8192,
        "tied_embeddings": True,
    },
    "gemma3_text": {
        "vocabulary_size": 262208,
        "hidden_size": 2304,
        "layers": 26,
        "intermediate_size": 9216,
        "attention_heads": 8,
        "key_value_heads": 4,
        "head_size": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "logit_softcap": False,
        "max_positions": 131072,
        "family": "gemma3",
    },
    "bloom": {
        "vocabulary_size": 250880,
        "hidden_size": 64,
        "layers": 2,
        "attention_heads": 8,
        "intermediate_size": 256,
        "hidden_dropout": 0.0,
        "tied_embeddings": True,
        "positions": "alibi",
    },
    "mpt": {
        "vocabulary_size": 50368,
        "hidden_size": 2048,
        "layers": 24,
        "attention_heads": 16,
        "max_positions": 2048,
        "intermediate_size": 8192,
        "tied_embeddings": True,
        "positions": "alibi",
        "qkv_bias": False,
    },
    "llava": {
        "task": "lm",
        "image_size": 336,
        "patch_size": 14,
        "channels": 3,
        "vision_layers": 24,
        "vision_hidden_size": 1024,
        "vision_attention_heads": 16,
        "vision_intermediate_size": 4096,
        "vision_activation": "quick_gelu",
        "vocabulary_size": 32000,
        "hidden_size": 4096,
        "layers": 32,
        "attention_heads": 32,
        "intermediate_size": 11008,
        "activation": "silu",
        "max_positions": 2048,
        "image_tokens": 576,
        "stacks": (23, 1, 32),
        "family": "llava",
    },
    "qwen2_vl": {
        "task": "lm",
        "family": "qwen2_vl",
        "patch_size": 14,
        "channels": 3,
        "vision_merge": 2,
        "vision_frames": 2,
        "vision_layers": 32,
        "vision_hidden_size": 1280,
        "vision_attention_heads": 16,
        "vision_intermediate_size": 5120,
        "vision_activation": "quick_gelu",
        "vocabulary_size": 152064,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "layers": 80,
        "attention_heads": 64,
        "key_value_heads": 8,
        "max_positions": 32768,
        "tied_embeddings": False,
        "image_tokens": 256,
        "stacks": (32, 80),
    },
    "qwen2_5_vl": {
        "task": "lm",
        "family": "qwen2_5_vl",
        "vision_merge": 2,
        "vision_frames": 2,
        "vision_window": 112,
        "vision_full_layers": (7, 15, 23, 31),
        "vision_layers": 32,
        "vision_hidden_size": 3584,
        "vision_attention_heads": 16,
        "vision_intermediate_size": 3420,
        "vision_activation": "silu",
        "hidden_size": 8192,
        "layers": 80,
        "key_value_heads": 8,
        "stacks": (32, 80),
    },
    "qwen3_vl": {
        "task": "lm",
        "family": "qwen3_vl",
        "patch_size": 16,
        "vision_positions": 2304,
        "vision_layers": 27,
        "vision_hidden_size": 1152,
        "vision_intermediate_size": 4304,
        "vision_activation": "gelu_pytorch_tanh",
        "vision_deepstack_layers": (8, 16, 24),
        "vocabulary_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "layers": 32,
        "head_size": 128,
        "max_positions": 128000,
        "qk_norm": True,
        "stacks": (9, 8, 8, 2, 1, 1, 1, 29),
    },
    "gemma3": {
        "task": "lm",
        "family": "gemma3_images",
        "image_size": 896,
        "vision_merge": 4,
        "vision_layers": 27,
        "vision_hidden_size": 1152,
        "vision_intermediate_size": 4304,
        "hidden_size": 2304,
        "layers": 26,
        "head_size": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "vocabulary_size": 262208,
        "tied_embeddings": True,
        "image_tokens": 256,
        "stacks": (27, 26),
    },
    "clip": {
        "task": "contrastive",
        "image_size": 224,
        "patch_size": 32,
        "channels": 3,
        "vision_layers": 12,
        "vision_hidden_size": 768,
        "vision_attention_heads": 12,
        "vision_intermediate_size": 3072,
        "vision_activation": "quick_gelu",
        "vision_attention_dropout": 0.0,
        "projection_size": 512,
        "vocabulary_size": 49408,
        "max_positions": 77,
        "hidden_size": 512,
        "layers": 12,
        "attention_heads": 8,
        "intermediate_size": 2048,
        "activation": "quick_gelu",
        "attention_dropout": 0.0,
        "stacks": (12, 12),
        "family": "clip",
    },
    "vit": {
        "task": "image",
        "image_size": 224,
        "patch_size": 16,
        "channels": 3,
        "max_positions": 197,
        "hidden_size": 768,
        "layers": 12,
        "attention_heads": 12,
        "intermediate_size": 3072,
        "activation": "gelu",
        "qkv_bias": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "positions": "learned",
        "classes": 1000,  # no default of the class: ImageNet's
        "family": "vit",
    },
    "resnet": {
        "task": "image",
        "depths": (3, 4, 6, 3),
        "widths": (256, 512, 1024, 2048),
        "embedding_size": 64,
        "bottleneck": True,
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
        "channels": 3,
        "activation": "relu",
        "image_size": None,
        "layers": 16,
        "hidden_size": 2048,
        "classes": 1000,  # no default of the class: ImageNet's
        "family": "resnet",
    },
    "roberta": {
        "vocabulary_size": 50265,
        "max_positions": 512,
        "hidden_size": 768,
        "layers": 12,
        "activation": "gelu",
        "token_types": 2,
        "tied_embeddings": True,
        "task": "mlm",
        "hidden_dropout": 0.1,
        "family": "roberta",
    },
    "xlm-roberta": {"vocabulary_size": 30522, "family": "roberta"},
    "t5": {
        "vocabulary_size": 32128,
        "hidden_size": 512,
        "layers": 6,
        "decoder_layers": 6,
        "attention_heads": 8,
        "head_size": 64,
        "intermediate_size": 2048,
        "activation": "relu",
        "gated_mlp": False,
        "positions": "relative",
        "hidden_dropout": 0.1,
        "activation_dropout": 0.1,
        "attention_dropout": 0.1,
        "tied_embeddings": True,
        "task": "seq2seq",
    },
    "bart": {
        "vocabulary_size": 50265,
        "hidden_size": 1024,
        "layers": 12,
        "decoder_layers": 12,
        "attention_heads": 16,
        "intermediate_size": 4096,
        "activation": "gelu",
        "positions": "learned",
        "max_positions": 1024,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "tied_embeddings": True,
        "task": "seq2seq",
    },
    "mixtral": {
        "vocabulary_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "layers": 32,
        "attention_heads": 32,
        "key_value_heads": 8,
        "max_positions": 131072,
        "tied_embeddings": False,
        "sliding_window": None,
        "experts": Experts(8, 2, 0, 14336, None, True, ()),
    },
    "qwen2_moe": {
        "vocabulary_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "layers": 24,
        "attention_heads": 16,
        "key_value_heads": 16,
        "max_positions": 32768,
        "qkv_bias": True,
        "output_bias": False,
        "experts": Experts(60, 4, 1, 1408, 5632, False, ()),
    },
    "qwen3_moe": {
        "vocabulary_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "layers": 24,
        "attention_heads": 32,
        "key_value_heads": 4,
        "head_size": 64,
        "max_positions": 32768,
        "qkv_bias": False,
        "qk_norm": True,
        "experts": Experts(128, 8, 0, 768, None, False, ()),
    },
    "deepseek_v3": {
        "vocabulary_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "layers": 61,
        "attention_heads": 128,
        "key_value_heads": 128,
        "head_size": 192,
        "max_positions": 4096,
        "experts": Experts(256, 8, 1, 2048, 2048, True, (0, 1, 2), 8, 4),
        "latent_attention": LatentAttention(1536, 512, 128, 64, 128, True),
    },
    "deepseek_v2": {
        "vocabulary_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "layers": 32,
        "attention_heads": 32,
        "key_value_heads": 32,
        "max_positions": 2048,
        "mlp_bias": False,
        "experts": Experts(64, 6, 2, 1408, 2816, False, ()),
        "latent_attention": LatentAttention(1536, 512, 128, 64, 128, True),
    },
    "glm": {
        "vocabulary_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "layers": 40,
        "attention_heads": 32,
        "key_value_heads": 2,
        "head_size": 128,
        "partial_rotary_factor": 0.5,
        "max_positions": 131072,
        "qkv_bias": True,
        "output_bias": False,
        "tied_embeddings": False,
        "family": "glm",
    },
    "glm4": {
        "vocabulary_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "layers": 40,
        "attention_heads": 32,
        "key_value_heads": 2,
        "head_size": 128,
        "partial_rotary_factor": 0.5,
        "max_positions": 131072,
        "qkv_bias": True,
        "tied_embeddings": False,
        "family": "glm4",
    },
    "falcon": {
        "vocabulary_size": 65024,
        "hidden_size": 4544,
        "layers": 32,
        "attention_heads": 71,
        "key_value_heads": 1,
        "head_size": 64,
        "intermediate_size": 18176,
        "activation": "gelu",
        "positions": "rope",
        "parallel_residual": True,
        "parallel_norms": 1,
        "new_decoder_architecture": False,
        "qkv_bias": False,
        "mlp_bias": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "max_positions": 2048,
        "tied_embeddings": True,
    },
    "chatglm": {
        "vocabulary_size": 65024,
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "layers": 28,
        "attention_heads": 32,
        "key_value_heads": 1,
        "head_size": 128,
        "max_positions": 2048,
        "qkv_bias": False,
        "tied_embeddings": False,
        "hidden_dropout": 0.0,
    },
    "smollm3": {
        "vocabulary_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "layers": 36,
        "attention_heads": 16,
        "key_value_heads": 4,
        "head_size": 128,
        "max_positions": 32768,
        "tied_embeddings": True,
        "unrotated_layers": (3, 7, 11, 15, 19, 23, 27, 31, 35),
        "family": "llama",
    },
    "olmo2": {
        "vocabulary_size": 50304,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "layers": 32,
        "attention_heads": 32,
        "key_value_heads": 32,
        "max_positions": 2048,
        "tied_embeddings": False,
        "qkv_bias": False,
        "output_bias": False,
        "sliding_window": None,
        "family": "olmo2",
    },
    "olmo3": {
        "vocabulary_size": 50304,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "family": "olmo2",
    },
    "olmoe": {
        "vocabulary_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "layers": 16,
        "attention_heads": 16,
        "key_value_heads": 16,
        "max_positions": 4096,
        "experts": Experts(64, 8, 0, 2048, None, False, ()),
        "family": "olmoe",
    },
    "gpt_oss": {
        "vocabulary_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "layers": 36,
        "attention_heads": 64,
        "key_value_heads": 8,
        "head_size": 64,
        "max_positions": 131072,
        "tied_embeddings": False,
        "qkv_bias": True,
        "output_bias": True,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "experts": Experts(128, 4, 0, 2880, None, True, ()),
        "family": "gpt_oss",
    },
    "llama4_text": {
        "vocabulary_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 16384,
        "layers": 48,
        "attention_heads": 40,
        "key_value_heads": 8,
        "head_size": 128,
        "max_positions": 131072,
        "tied_embeddings": False,
        "qk_norm": True,
        "unrotated_layers": tuple(range(3, 48, 4)),
        "sliding_window": 8192,
        "sliding_window_pattern": 4,
        "experts": Experts(16, 1, 1, 8192, 8192, False, ()),
        "family": "llama4",
    },
    "starcoder2": {
        "vocabulary_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "layers": 30,
        "attention_heads": 24,
        "key_value_heads": 2,
        "max_positions": 4096,
        "activation": "gelu_pytorch_tanh",
        "gated_mlp": False,
        "tied_embeddings": True,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "hidden_dropout": 0.0,
        "sliding_window": None,
        "family": "starcoder2",
    },
    "bert": {
        "vocabulary_size": 30522,
        "max_positions": 512,
        "hidden_size": 768,
        "layers": 12,
        "attention_heads": 12,
        "intermediate_size": 3072,
        "activation": "gelu",
        "token_types": 2,
        "tied_embeddings": True,
        "task": "mlm",
        "embedding_dropout": 0.1,
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
        "qkv_bias": True,
        "family": "bert",
    },
}


def problems_of(**fields: Any) -> str:
    with pytest.raises(InputError) as caught:
        shape_from_fields(fields)
    return str(caught.value)


@pytest.mark.parametrize("model_type", sorted(CONFIG_DEFAULTS))
def test_what_is_absent_has_the_default_of_the_configuration_class(model_type: str) -> None:
    needed = {"experts.active": 6, "experts.intermediate_size": 1408} if model_type == "deepseek_v2" else {}
    shape = shape_from_fields({"transformers_model_type": model_type, **needed})
    for field, value in CONFIG_DEFAULTS[model_type].items():
        assert getattr(shape, field) == value, field


def test_every_type_is_compared_with_its_class() -> None:
    assert set(CONFIG_DEFAULTS) == set(MODEL_TYPES)
    for name in MODEL_TYPES:
        assert MODEL_TYPES[name].family in FAMILIES
        assert set(MODEL_TYPES[name].defaults) | set(MODEL_TYPES[name].fixed) <= set(shapes.FIELDS)
        assert {field for field, _ in MODEL_TYPES[name].keys.values()} <= set(MODEL_TYPES[name].defaults) | {
            "head_size"
        }


def test_a_family_alone_stands_for_its_first_type() -> None:
    assert shape_from_fields({"family": "neox"}).transformers_model_type == "gpt_neox"
    assert shape_from_fields({"family": "gemma3"}).transformers_model_type == "gemma3_text"
    assert shape_from_fields({"family": "llama"}).transformers_model_type == "llama"


def test_a_model_type_is_also_a_family() -> None:
    assert shape_from_fields({"family": "mistral"}).transformers_model_type == "mistral"
    assert shape_from_fields({"family": "llama", "transformers_model_type": "qwen2"}).qkv_bias is True


def test_derived_defaults_follow_what_is_given() -> None:
    assert shape_from_fields({"family": "gpt2", "hidden_size": 1600, "attention_heads": 25}).intermediate_size == 6400
    assert shape_from_fields({"family": "llama", "attention_heads": 16, "hidden_size": 1024}).key_value_heads == 16
    assert shape_from_fields({"family": "bert", "hidden_dropout": 0.2}).embedding_dropout == 0.2
    assert shape_from_fields({"family": "bert", "hidden_size": 1024, "attention_heads": 16}).intermediate_size == 3072
    assert shape_from_fields({"family": "mistral", "sliding_window": None}).sliding_window is None
    assert shape_from_fields({"family": "llama", "head_size": 256}).head_size == 256
    assert shape_from_fields({"family": "llama", "activation": "swish"}).activation == "silu"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "family: required key is missing"),
        ({"parameters": 10**9}, "family: required key is missing"),
        ({"family": "mt5"}, "family: mt5 is not modelled (modelled: gpt2, llama, bert, neox,"),
        ({"family": "lama"}, "did you mean llama"),
        ({"family": "llama", "transformers_model_type": "cohere"}, "transformers_model_type: cohere is not modelled"),
        (
            {"family": "llama", "transformers_model_type": "gemma2"},
            "family: 'llama' contradicts",
        ),
        ({"family": "llama", "transformers_model_type": "gpt2"}, "family: 'llama' contradicts transformers_model_type"),
        ({"family": "llama", "experts.count": 8}, "experts.count: 8 is not modelled (a llama model has null)"),
        (
            {"family": "mixtral", "experts.active": 9},
            "experts.active: 9 experts for each token, but there are 8",
        ),
        ({"family": "mixtral", "experts.shared": 1}, "experts.shared: 1 is not modelled (a mixtral model has 0)"),
        ({"family": "mixtral", "experts.dense_layers": (0,)}, "experts.dense_layers: [0] is not modelled"),
        ({"family": "qwen3_moe", "experts.dense_layers": (3, 24)}, "there is no block 24; the 24 blocks are numbered"),
        ({"family": "qwen3_moe", "experts.intermediate_size": 100}, "100 is no multiple of 8, which PyTorch's grouped"),
        (
            {"family": "mixtral", "hidden_size": 100, "attention_heads": 2, "key_value_heads": 2},
            "hidden_size: 100 is no multiple of 8",
        ),
        ({"family": "deepseek_v2"}, "experts.active: required key is missing: the configuration class has no default"),
        ({"family": "deepseek", "experts.groups": 7}, "experts.groups: 256 experts do not make 7 groups of two"),
        ({"family": "deepseek", "experts.active_groups": 9}, "experts.active_groups: 9 of 8 groups (1 to 8)"),
        ({"family": "deepseek", "latent_attention.rotary_size": 63}, "so an even size, not 63"),
        ({"family": "deepseek", "head_size": 128}, "head_size: 128 is not modelled (a deepseek_v3 model has 192)"),
        ({"family": "llama", "qk_norm": True}, "qk_norm: true is not modelled (a llama model has false)"),
        ({"family": "llama", "decoder_layers": 12}, "decoder_layers: 12 is not modelled (a llama model has null)"),
        ({"family": "llama", "positions": "alibi"}, "positions: alibi is not modelled (a llama model has rope)"),
        ({"family": "gpt2", "gated_mlp": True}, "gated_mlp: true is not modelled (a gpt2 model has false)"),
        ({"family": "gpt2", "qkv_bias": False}, "qkv_bias: false is not modelled"),
        ({"family": "gpt2", "key_value_heads": 4}, "key_value_heads: 4 is not modelled"),
        ({"family": "gpt2", "head_size": 128}, "head_size: 128 is not modelled"),
        (
            {"family": "llama", "partial_rotary_factor": 0.5},
            "partial_rotary_factor: 0.5 is not modelled (a llama",
        ),
        ({"family": "phi", "partial_rotary_factor": 0.05}, "0.05 of a head of 64 elements is 3, and rotary positions"),
        ({"family": "llama", "sliding_window_pattern": 6}, "sliding_window_pattern: 6 is not modelled"),
        ({"family": "qwen3", "qk_norm": False}, "qk_norm: false is not modelled (a qwen3 model has true)"),
        ({"family": "neox", "head_size": 64}, "head_size: 64 is not modelled (a gpt_neox model has hidden_size / att"),
        ({"family": "opt", "embedding_size": 0}, "embedding_size: 0 is out of range"),
        (
            {"family": "bloom", "intermediate_size": 100},
            "intermediate_size: 100 is not modelled (a bloom",
        ),
        ({"family": "mpt", "hidden_dropout": 0.5}, "hidden_dropout: 0.5 is not modelled (a mpt model has 0.0)"),
        ({"family": "gpt2", "task": "mlm"}, "task: mlm is not modelled (modelled for gpt2: lm, cls)"),
        ({"family": "bert", "task": "lm"}, "task: lm is not modelled (modelled for bert: mlm, cls)"),
        ({"family": "bert", "task": "clss"}, "did you mean cls"),
        ({"family": "llama", "activation": "relu2"}, "activation: relu2 is not modelled"),
        ({"family": "llama", "activation": "sliu"}, "did you mean silu"),
        ({"family": "llama", "hidden_size": 100, "attention_heads": 7}, "hidden_size: 100 is not a multiple of the 7"),
        ({"family": "llama", "key_value_heads": 5}, "32 attention heads cannot share 5 key-value heads evenly"),
        ({"family": "llama", "head_size": 127}, "an even head size"),
        ({"family": "llama", "layers": 10_001}, "layers: 10001 is out of range, 1 to 10000"),
        ({"family": "llama", "hidden_size": 2**31 + 1}, "hidden_size: 2147483649 is out of range"),
        ({"family": "llama", "layers": 0}, "layers: 0 is out of range"),
    ],
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], message: str) -> None:
    assert message in problems_of(**fields)


def test_all_problems_come_at_once() -> None:
    text = problems_of(family="llama", qk_norm=True, activation="relu6", layers=0, positions="learned")
    assert len(text.splitlines()) == 4


def test_switches_that_are_off_are_no_technique() -> None:
    assert shape_from_fields({"family": "llama", "qk_norm": False, "experts.count": None, "decoder_layers": None})


counts = st.integers(1, 2**40)


@given(
    st.fixed_dictionaries(
        {"family": st.sampled_from([*MODEL_TYPES, "neox", "mt5", "x"])},
        optional={
            **{key: counts for key, kind in shapes.FIELDS.items() if kind == shapes.COUNT},
            **{key: st.booleans() for key, kind in shapes.FIELDS.items() if kind == shapes.FLAG},
        },
    )
)
def test_a_shape_is_consistent_or_refused(fields: dict[str, Any]) -> None:
    try:
        shape = shape_from_fields(fields)
    except InputError as error:
        refused = {problem.key for problem in error.problems}
    else:
        refused = set()
        if shape.attention_heads:
            assert shape.attention_heads % shape.key_value_heads == 0
            assert shape.head_size >= 1
    assert refused <= set(shapes.FIELDS)


@pytest.mark.parametrize("family", ["smollm3", "llama4_text", "gpt2", "t5"])
def test_a_model_of_too_many_blocks_is_refused_before_they_are_listed(family: str) -> None:
    assert f"{2**40} is out of range, 1 to 10000" in problems_of(family=family, layers=2**40)


def test_the_stages_of_a_convolutional_network_fit_together() -> None:
    assert "3 widths for 4 depths" in problems_of(family="resnet", depths=(1, 1, 1, 1), widths=(4, 8, 16))
    assert "30 is not a multiple of 4" in problems_of(family="resnet", depths=(1,), widths=(30,))
    assert shape_from_fields({"family": "resnet", "depths": (1,), "widths": (30,), "bottleneck": False}).layers == 1
    assert "layers" in problems_of(family="resnet", layers=50)
