"""Llama and its kin: Mistral, Qwen2, Qwen3, SmolLM3, InternLM3 (models/<type>/configuration_<type>.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, Keys, ModelType, Peft, same_heads
from vramplan.catalog.fields import Fields

KEYS: Keys = {
    "num_hidden_layers": ("layers", COUNT),
    "hidden_size": ("hidden_size", COUNT),
    "num_attention_heads": ("attention_heads", COUNT),
    "num_key_value_heads": ("key_value_heads", COUNT),
    "head_dim": ("head_size", COUNT),
    "intermediate_size": ("intermediate_size", COUNT),
    "vocab_size": ("vocabulary_size", COUNT),
    "max_position_embeddings": ("max_positions", COUNT),
    "tie_word_embeddings": ("tied_embeddings", FLAG),
    "hidden_act": ("activation", TEXT),
    "attention_dropout": ("attention_dropout", RATIO),
}
"""The keys that most decoders have."""

FIXED = {
    "positions": "rope",
    "gated_mlp": True,
    "token_types": 0,
    "embedding_dropout": 0.0,
    "hidden_dropout": 0.0,
}
DEFAULTS: dict[str, Any] = {
    "vocabulary_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "layers": 32,
    "attention_heads": 32,
    "key_value_heads": same_heads,
    "max_positions": 2048,
    "activation": "silu",
    "tied_embeddings": False,
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": None,
    "rope_scaling": None,
}

FULL, SLIDING = "full_attention", "sliding_attention"
QWEN_WINDOW = 4096
SMOLLM3_LAYERS = 36
QWEN_KEYS: Keys = {"sliding_window": ("sliding_window", COUNT), "max_window_layers": ("sliding_window_start", COUNT)}


def all_projections(fields: Fields, values: dict[str, Any]) -> None:
    """`attention_bias`: a bias of all four projections of attention."""
    values["output_bias"] = values.get("qkv_bias")


def _llama(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    if (fields.integer("pretraining_tp") or 1) > 1:
        fields.refuse("pretraining_tp", "sliced projections are not modelled", hint="set it to 1: it trains the same")


def _internlm3(fields: Fields, values: dict[str, Any]) -> None:
    """`qkv_bias` and `bias` are the names of both switches in its files, and one may not be without the other."""
    for key, field in (("qkv_bias", "qkv_bias"), ("bias", "mlp_bias")):
        if fields.given(key):
            values[field] = fields.boolean(key)
    all_projections(fields, values)
    if bool(values.get("qkv_bias")) != bool(values.get("mlp_bias")):
        fields.refuse("qkv_bias", "is not the same as bias, which Transformers refuses")


def _mistral(fields: Fields, values: dict[str, Any]) -> None:
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        values["sliding_window"] = None


def _qwen2(fields: Fields, values: dict[str, Any]) -> None:
    used = fields.boolean("use_sliding_window")
    null = fields.present("sliding_window") and not fields.given("sliding_window")
    values["sliding_window"] = values.get("sliding_window", QWEN_WINDOW) if used and not null else None
    types = fields.texts("layer_types") if fields.given("layer_types") else None
    if types is not None:
        _layer_types(fields, values, types)


def _layer_types(fields: Fields, values: dict[str, Any], types: list[str]) -> None:
    """The kinds of the blocks one by one: from some block on they have a window."""
    start = types.index(SLIDING) if SLIDING in types else len(types)
    if types != [FULL] * start + [SLIDING] * (len(types) - start):
        fields.refuse("layer_types", f"only blocks of {FULL} before those of {SLIDING} are modelled")
    elif len(types) != values.get("layers", len(types)):
        fields.refuse("layer_types", f"{len(types)} entries for {values['layers']} blocks")
    elif values["sliding_window"] is None and start < len(types):
        fields.refuse("layer_types", f"{SLIDING} without use_sliding_window is not modelled")
    values["sliding_window_start"] = start


def _qwen3(fields: Fields, values: dict[str, Any]) -> None:
    _qwen2(fields, values)
    values["output_bias"] = values.get("qkv_bias")  # attention_bias: of all four projections


def every_fourth(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """Blocks without rotary positions where nothing says which."""
    return tuple(range(3, fields["layers"], 4))


def _smollm3(fields: Fields, values: dict[str, Any]) -> None:
    values["output_bias"] = values.get("qkv_bias")  # attention_bias: of all four projections
    if fields.boolean("use_sliding_window"):
        message = "true is not modelled (windows in the blocks without rotary positions)"
        fields.refuse("use_sliding_window", message, hint="set it to false where no sequence reaches the window")
    unrotated_of(fields, values, values.get("layers") or SMOLLM3_LAYERS)


def unrotated_of(fields: Fields, values: dict[str, Any], layers: int) -> None:
    """Blocks without rotary positions: those with 0 in the list, or every so many."""
    if fields.given("no_rope_layers") and fields.value("no_rope_layers"):
        turned = fields.value("no_rope_layers")
        if not isinstance(turned, list) or len(turned) < layers or not {*turned} <= {0, 1}:
            fields.refuse("no_rope_layers", f"expected a list of 0 or 1 for each of {layers} blocks")
            return
        values["unrotated_layers"] = tuple(i for i, one in enumerate(turned[:layers]) if not one)
    elif fields.given("no_rope_layer_interval"):
        every = fields.integer("no_rope_layer_interval", minimum=1) or 4
        values["unrotated_layers"] = tuple(range(every - 1, layers, every))


TYPES = {
    "llama": ModelType(
        config="LlamaConfig",
        family="llama",
        tasks=("lm", "cls"),
        peft=Peft(
            norms=("input_layernorm", "post_attention_layernorm", "norm"),
            lora=("q_proj", "v_proj"),
            ia3=("k_proj", "v_proj", "down_proj"),
            ia3_feedforward=("down_proj",),
            made_fused=True,
        ),
        defaults=DEFAULTS,
        fixed=FIXED,
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)},
        adjust=_llama,
        grouped=True,
        own_head_size=True,
        rotary_given_since=(4, 43),
    ),
    "mistral": ModelType(
        config="MistralConfig",
        family="llama",
        tasks=("lm", "cls"),
        peft=Peft(
            norms=("input_layernorm", "post_attention_layernorm", "norm"),
            of_kind={"adalora": ()},
            lora=("q_proj", "v_proj"),
            ia3=("k_proj", "v_proj", "down_proj"),
            ia3_feedforward=("down_proj",),
            made_fused=True,
        ),
        defaults={
            **DEFAULTS,
            "intermediate_size": 14336,
            "key_value_heads": 8,
            "max_positions": 4096 * 32,
            "sliding_window": 4096,
        },
        fixed=FIXED,
        keys={**KEYS, "sliding_window": ("sliding_window", COUNT)},
        adjust=_mistral,
        grouped=True,
        own_head_size=True,
    ),
    "qwen2": ModelType(
        config="Qwen2Config",
        family="llama",
        tasks=("lm", "cls"),
        peft=Peft(
            norms=("post_attention_layernorm",),
            lora=("q_proj", "v_proj"),
            ia3=("q_proj", "v_proj", "down_proj"),
            ia3_feedforward=("down_proj",),
            made_fused=True,
        ),
        defaults={
            **DEFAULTS,
            "vocabulary_size": 151936,
            "intermediate_size": 22016,
            "key_value_heads": 32,
            "max_positions": 32768,
            "qkv_bias": True,
            "sliding_window_start": 28,  # max_window_layers
        },
        fixed=FIXED,
        keys={**KEYS, **QWEN_KEYS},
        adjust=_qwen2,
        grouped=True,
        own_head_size=True,
        rotary_given_since=(4, 45),
    ),
    "qwen3": ModelType(
        config="Qwen3Config",
        family="llama",
        tasks=("lm", "cls"),
        peft=Peft(
            norms=("post_attention_layernorm",),
            lora=("q_proj", "v_proj"),
            ia3=("q_proj", "v_proj", "down_proj"),
            ia3_feedforward=("down_proj",),
        ),
        defaults={
            **DEFAULTS,
            "vocabulary_size": 151936,
            "intermediate_size": 22016,
            "key_value_heads": 32,
            "head_size": 128,
            "max_positions": 32768,
            "sliding_window_start": 28,  # max_window_layers
        },
        fixed={**FIXED, "mlp_bias": False, "qk_norm": True},
        keys={**KEYS, **QWEN_KEYS, "attention_bias": ("qkv_bias", FLAG)},
        adjust=_qwen3,
        grouped=True,
        own_head_size=True,
    ),
    "smollm3": ModelType(
        config="SmolLM3Config",
        family="llama",
        tasks=("lm", "cls"),
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key != "sliding_window"},
            "vocabulary_size": 128256,
            "hidden_size": 2048,
            "layers": SMOLLM3_LAYERS,
            "attention_heads": 16,
            "key_value_heads": 4,
            "max_positions": 32768,
            "tied_embeddings": True,
            "unrotated_layers": every_fourth,
        },
        fixed={**FIXED, "sliding_window": None},
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)},
        adjust=_smollm3,
        grouped=True,
        own_head_size=True,
    ),
    "internlm3": ModelType(
        config="InternLM3Config",
        family="llama",
        tasks=("lm",),
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key != "sliding_window"},
            "vocabulary_size": 128512,
            "intermediate_size": 10240,
            "layers": 48,
            "key_value_heads": 2,
            "head_size": 128,
            "max_positions": 32768,
        },
        fixed={**FIXED, "sliding_window": None},
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)},
        adjust=_internlm3,
        grouped=True,
        own_head_size=True,
    ),
}
