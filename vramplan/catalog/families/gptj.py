"""GPT-J (models/gptj/configuration_gptj.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType, Peft, four_times, same_heads
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

WIDTH, HEADS, TURNED = 4096, 16, 64


def _gptj(fields: Fields, values: dict[str, Any]) -> None:
    """`rotary_dim`: how many elements of each head rotary positions turn."""
    if fields.present("rotary_dim") and not fields.given("rotary_dim"):
        fields.refuse("rotary_dim", "null is not modelled (positions that turn whole heads)")
        return
    turned = fields.integer("rotary_dim", minimum=2) if fields.given("rotary_dim") else TURNED
    size = (values.get("hidden_size") or WIDTH) // (values.get("attention_heads") or HEADS)
    if turned is not None and (turned > size or turned % 2):
        fields.problem("rotary_dim", f"expected an even number up to {size}, the size of a head")
    elif turned is not None:
        values["partial_rotary_factor"] = turned / size


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"rotary_dim": round(shape.head_size * shape.partial_rotary_factor)}


TYPES = {
    "gptj": ModelType(
        config="GPTJConfig",
        family="gptj",
        tasks=("lm",),
        written=_written,
        peft=Peft(
            norms=("ln_1", "ln_f"),
            lora=("q_proj", "v_proj"),
            ia3=("q_proj", "v_proj", "fc_out"),
            ia3_feedforward=("fc_out",),
        ),
        defaults={
            "vocabulary_size": 50400,
            "max_positions": 2048,
            "hidden_size": WIDTH,
            "layers": 28,
            "attention_heads": HEADS,
            "key_value_heads": same_heads,
            "intermediate_size": four_times,
            "activation": "gelu_new",
            "tied_embeddings": False,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "partial_rotary_factor": TURNED * HEADS / WIDTH,
        },
        fixed={
            "gated_mlp": False,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": True,
            "positions": "rope",
            "parallel_residual": True,
            "token_types": 0,
            "sliding_window": None,
        },
        keys={
            "n_layer": ("layers", COUNT),
            "n_embd": ("hidden_size", COUNT),
            "n_head": ("attention_heads", COUNT),
            "n_inner": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "n_positions": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "activation_function": ("activation", TEXT),
            "embd_pdrop": ("embedding_dropout", RATIO),
            "attn_pdrop": ("attention_dropout", RATIO),
            "resid_pdrop": ("hidden_dropout", RATIO),
            "hidden_size": ("hidden_size", COUNT),
            "num_hidden_layers": ("layers", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
        },
        adjust=_gptj,
    ),
}
