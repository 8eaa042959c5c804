"""Wav2Vec2 and HuBERT (models/wav2vec2/configuration_wav2vec2.py, models/hubert/configuration_hubert.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import (
    COUNT,
    COUNTS,
    FLAG,
    RATIO,
    TEXT,
    Keys,
    ModelType,
    hidden_dropout,
    same_heads,
)
from vramplan.catalog.fields import Fields

NOT_MODELLED = {
    "add_adapter": "convolutions behind the blocks are not modelled",
    "conv_pos_batch_norm": "a batch normalisation before the convolution for places is not modelled",
}
DEFAULTS: dict[str, Any] = {
    "vocabulary_size": 32,
    "hidden_size": 768,
    "layers": 12,
    "attention_heads": 12,
    "key_value_heads": same_heads,
    "intermediate_size": 3072,
    "activation": "gelu",
    "pre_norm": False,  # do_stable_layer_norm
    "hidden_dropout": 0.1,
    "embedding_dropout": hidden_dropout,  # one setting for both
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "waveform.widths": (512,) * 7,
    "waveform.kernels": (10, 3, 3, 3, 3, 2, 2),
    "waveform.strides": (5, 2, 2, 2, 2, 2, 2),
    "waveform.bias": False,
    "waveform.norm": "group",
    "waveform.projection_dropout": 0.0,
    "waveform.final_dropout": 0.1,
    "waveform.masks": True,
    "waveform.masked_share": 0.05,
    "waveform.masked_length": 10,
    "waveform.least_masks": 2,
    "waveform.place_kernel": 128,
    "waveform.place_groups": 16,
}
FIXED: dict[str, Any] = {
    "max_positions": 0,  # any length will do
    "positions": "convolutional",
    "tied_embeddings": False,
    "gated_mlp": False,
    "qkv_bias": True,
    "output_bias": True,
    "mlp_bias": True,
    "token_types": 0,
    "sliding_window": None,
}
KEYS: Keys = {
    "vocab_size": ("vocabulary_size", COUNT),
    "hidden_size": ("hidden_size", COUNT),
    "num_hidden_layers": ("layers", COUNT),
    "num_attention_heads": ("attention_heads", COUNT),
    "intermediate_size": ("intermediate_size", COUNT),
    "hidden_act": ("activation", TEXT),
    "do_stable_layer_norm": ("pre_norm", FLAG),
    "hidden_dropout": ("hidden_dropout", RATIO),
    "attention_dropout": ("attention_dropout", RATIO),
    "activation_dropout": ("activation_dropout", RATIO),
    "conv_dim": ("waveform.widths", COUNTS),
    "conv_kernel": ("waveform.kernels", COUNTS),
    "conv_stride": ("waveform.strides", COUNTS),
    "conv_bias": ("waveform.bias", FLAG),
    "feat_extract_norm": ("waveform.norm", TEXT),
    "feat_proj_dropout": ("waveform.projection_dropout", RATIO),
    "final_dropout": ("waveform.final_dropout", RATIO),
    "apply_spec_augment": ("waveform.masks", FLAG),
    "mask_time_prob": ("waveform.masked_share", RATIO),
    "mask_time_length": ("waveform.masked_length", COUNT),
    "mask_time_min_masks": ("waveform.least_masks", COUNT),
    "num_conv_pos_embeddings": ("waveform.place_kernel", COUNT),
    "num_conv_pos_embedding_groups": ("waveform.place_groups", COUNT),
}


def _sound(fields: Fields, values: dict[str, Any]) -> None:
    """What of the keys changes the forward pass in a way that is not modelled.

    `layerdrop` says how often a block is left out; a step that leaves none out comes soon, and its peak is the run's.
    """
    for key, why in NOT_MODELLED.items():
        if fields.given(key) and fields.boolean(key):
            fields.refuse(key, why)
    if fields.given("adapter_attn_dim"):
        fields.refuse("adapter_attn_dim", "adapters of single languages in each block are not modelled")
    if fields.given("mask_feature_prob") and fields.number("mask_feature_prob", minimum=0, below=1):
        fields.refuse("mask_feature_prob", "features that are masked are not modelled", hint="set it to 0")
    if fields.given("feat_extract_activation") and fields.text("feat_extract_activation") != "gelu":
        fields.refuse("feat_extract_activation", "gelu alone is modelled")


TYPES = {
    "wav2vec2": ModelType(
        config="Wav2Vec2Config",
        family="wav2vec2",
        tasks=("ctc",),
        defaults=DEFAULTS,
        fixed={**FIXED, "waveform.projection_norm": True},
        keys=KEYS,
        adjust=_sound,
    ),
    "hubert": ModelType(
        config="HubertConfig",
        family="wav2vec2",
        tasks=("ctc",),
        defaults={**DEFAULTS, "waveform.projection_norm": True},
        fixed=FIXED,
        keys={**KEYS, "feat_proj_layer_norm": ("waveform.projection_norm", FLAG)},
        adjust=_sound,
    ),
}
