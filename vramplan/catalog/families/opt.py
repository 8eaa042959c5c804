"""OPT (models/opt/configuration_opt.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType, Peft, hidden_size, same_heads
from vramplan.catalog.fields import Fields


def _opt(fields: Fields, values: dict[str, Any]) -> None:
    for key in ("enable_bias", "layer_norm_elementwise_affine"):
        if fields.boolean(key) is False:
            fields.refuse(key, "false is not modelled")
    if fields.number("layerdrop", minimum=0, maximum=1):
        fields.refuse("layerdrop", "blocks that are skipped at random are not modelled", hint="set it to 0")


TYPES = {
    "opt": ModelType(
        config="OPTConfig",
        family="opt",
        tasks=("lm", "cls"),
        peft=Peft(
            of_kind={"adalora": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")},
            lora=("q_proj", "v_proj"),
            ia3=("q_proj", "k_proj", "fc2"),
            ia3_feedforward=("fc2",),
        ),
        defaults={
            "vocabulary_size": 50272,
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 12,
            "key_value_heads": same_heads,
            "intermediate_size": 3072,
            "activation": "relu",
            "attention_dropout": 0.0,
            "hidden_dropout": 0.1,
            "max_positions": 2048,
            "tied_embeddings": True,
            "pre_norm": True,  # do_layer_norm_before
            "embedding_size": hidden_size,  # word_embed_proj_dim
        },
        fixed={
            "positions": "learned",
            "gated_mlp": False,
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "sliding_window": None,
        },
        keys={
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "ffn_dim": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "activation_function": ("activation", TEXT),
            "attention_dropout": ("attention_dropout", RATIO),
            "dropout": ("hidden_dropout", RATIO),
            "do_layer_norm_before": ("pre_norm", FLAG),
            "word_embed_proj_dim": ("embedding_size", COUNT),
        },
        refused=("_remove_final_layer_norm",),
        adjust=_opt,
    ),
}
