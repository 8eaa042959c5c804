"""Whisper (models/whisper/configuration_whisper.py)."""

from __future__ import annotations

from vramplan.catalog.config_classes import COUNT, RATIO, TEXT, ModelType, Peft, hidden_dropout, same_heads
from vramplan.catalog.families.bart import decoder_keys, stacks_alike

TYPES = {
    "whisper": ModelType(
        config="WhisperConfig",
        family="whisper",
        tasks=("seq2seq",),
        written=decoder_keys,
        peft=Peft(lora=("q_proj", "v_proj")),
        defaults={
            "vocabulary_size": 51865,
            "hidden_size": 384,
            "layers": 4,
            "decoder_layers": 4,
            "attention_heads": 6,
            "key_value_heads": same_heads,
            "intermediate_size": 1536,
            "activation": "gelu",
            "hidden_dropout": 0.0,
            "embedding_dropout": hidden_dropout,  # one setting, dropout, for both
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "max_positions": 448,
            "mel_bins": 80,
            "audio_positions": 1500,
        },
        fixed={
            "positions": "learned",
            "gated_mlp": False,
            "qkv_bias": True,  # but for the keys, which have none
            "output_bias": True,
            "mlp_bias": True,
            "token_types": 0,
            "tied_embeddings": True,
            "sliding_window": None,
        },
        keys={
            "encoder_layers": ("layers", COUNT),
            "decoder_layers": ("decoder_layers", COUNT),
            "d_model": ("hidden_size", COUNT),
            "encoder_attention_heads": ("attention_heads", COUNT),
            "encoder_ffn_dim": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_target_positions": ("max_positions", COUNT),
            "max_source_positions": ("audio_positions", COUNT),
            "num_mel_bins": ("mel_bins", COUNT),
            "activation_function": ("activation", TEXT),
            "dropout": ("hidden_dropout", RATIO),
            "attention_dropout": ("attention_dropout", RATIO),
            "activation_dropout": ("activation_dropout", RATIO),
        },
        refused=("apply_spec_augment",),
        adjust=stacks_alike(6, 1536),
    ),
}
