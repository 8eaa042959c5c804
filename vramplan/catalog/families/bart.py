"""BART (models/bart/configuration_bart.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.catalog.config_classes import COUNT, RATIO, TEXT, ModelType, Peft, hidden_dropout, same_heads
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape


def stacks_alike(
    attention_heads: int, ffn_dim: int, layerdrop: float = 0.0
) -> Callable[[Fields, dict[str, Any]], None]:
    """What refuses a decoder that is not as wide as its encoder; the class has these numbers of both."""

    def adjust(fields: Fields, values: dict[str, Any]) -> None:
        for part, default in (("attention_heads", attention_heads), ("ffn_dim", ffn_dim)):
            encoder, decoder = f"encoder_{part}", f"decoder_{part}"
            theirs, own = fields.integer(encoder, minimum=1), fields.integer(decoder, minimum=1)
            if (own or default) != (theirs or default):
                fields.refuse(decoder, f"{own or default} beside an encoder of {theirs or default} is not modelled")
        if fields.boolean("tie_word_embeddings") is False:
            fields.refuse("tie_word_embeddings", "false is not modelled")
        for key in ("encoder_layerdrop", "decoder_layerdrop"):
            given = fields.number(key, minimum=0, maximum=1)
            if layerdrop if given is None else given:
                fields.refuse(key, "blocks that are skipped at random are not modelled", hint="set it to 0")

    return adjust


def decoder_keys(shape: ModelShape) -> dict[str, Any]:
    """What `config.json` says of the decoder again."""
    return {"decoder_attention_heads": shape.attention_heads, "decoder_ffn_dim": shape.intermediate_size}


TYPES = {
    "bart": ModelType(
        config="BartConfig",
        family="bart",
        tasks=("seq2seq",),
        written=decoder_keys,
        peft=Peft(
            norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
            of_kind={"adalora": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")},
            lora=("q_proj", "v_proj"),
            ia3=("q_proj", "v_proj", "fc2"),
            ia3_feedforward=("fc2",),
        ),
        defaults={
            "vocabulary_size": 50265,
            "hidden_size": 1024,
            "layers": 12,
            "decoder_layers": 12,
            "attention_heads": 16,
            "key_value_heads": same_heads,
            "intermediate_size": 4096,
            "activation": "gelu",
            "hidden_dropout": 0.1,
            "embedding_dropout": hidden_dropout,  # one setting, dropout, for both
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "max_positions": 1024,
        },
        fixed={
            "positions": "learned",
            "gated_mlp": False,
            "qkv_bias": True,
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
            "max_position_embeddings": ("max_positions", COUNT),
            "activation_function": ("activation", TEXT),
            "dropout": ("hidden_dropout", RATIO),
            "attention_dropout": ("attention_dropout", RATIO),
            "activation_dropout": ("activation_dropout", RATIO),
        },
        refused=("is_decoder",),
        adjust=stacks_alike(16, 4096),
    ),
}

RELATIVE = TYPES["bart"]._replace(peft=Peft())
"""What the types that are built like it have of its description; PEFT knows no targets of theirs."""
