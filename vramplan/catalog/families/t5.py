"""T5, T5 v1.1 and Flan-T5 (models/t5/configuration_t5.py), and mT5 (models/mt5/configuration_mt5.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import (
    COUNT,
    FLAG,
    RATIO,
    ModelType,
    Peft,
    as_many_layers,
    hidden_dropout,
    same_heads,
)
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

BUCKETS = 32


def _t5(fields: Fields, values: dict[str, Any]) -> None:
    given = fields.text("feed_forward_proj")
    if given is not None:
        gate, _, activation = given.rpartition("-")
        if gate not in {"", "gated"}:
            fields.refuse("feed_forward_proj", f"{given} is neither ACTIVATION nor gated-ACTIVATION")
        values["gated_mlp"] = gate == "gated"
        values["activation"] = "gelu_new" if given == "gated-gelu" else activation
    names = fields.texts("architectures") if fields.given("architectures") else None
    if names and names[0].endswith("EncoderModel"):
        fields.refuse("architectures", "an encoder alone is not modelled")
    found = fields.integer("relative_attention_num_buckets", minimum=1)
    if found not in {None, BUCKETS}:
        fields.refuse("relative_attention_num_buckets", f"{found} is not modelled (modelled: {BUCKETS})")


def _written(shape: ModelShape) -> dict[str, Any]:
    gated, activation = shape.gated_mlp, shape.activation
    word = "gated-gelu" if gated and activation == "gelu_new" else f"{'gated-' * gated}{activation}"
    return {"feed_forward_proj": word, "decoder_start_token_id": 0, "pad_token_id": 0}


_T5 = ModelType(
    config="T5Config",
    family="t5",
    tasks=("seq2seq",),
    written=_written,
    ties_head=True,
    peft=Peft(
        norms=("layer_norm", "final_layer_norm"),
        of_kind={"adalora": ("q", "k", "v", "o", "wi", "wo")},
        lora=("q", "v"),
        ia3=("k", "v", "wo"),
        ia3_feedforward=("wo",),
    ),
    defaults={
        "vocabulary_size": 32128,
        "hidden_size": 512,
        "layers": 6,
        "decoder_layers": as_many_layers,
        "attention_heads": 8,
        "key_value_heads": same_heads,
        "head_size": 64,  # d_kv
        "intermediate_size": 2048,
        "activation": "relu",
        "gated_mlp": False,
        "hidden_dropout": 0.1,
        "embedding_dropout": hidden_dropout,  # one setting, dropout_rate, for all three
        "attention_dropout": hidden_dropout,
        "activation_dropout": hidden_dropout,
        "max_positions": 512,  # n_positions of the checkpoints; the class bounds nothing
        "tied_embeddings": True,
    },
    fixed={
        "positions": "relative",
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "token_types": 0,
        "sliding_window": None,
    },
    keys={
        "num_layers": ("layers", COUNT),
        "num_decoder_layers": ("decoder_layers", COUNT),
        "d_model": ("hidden_size", COUNT),
        "num_heads": ("attention_heads", COUNT),
        "d_kv": ("head_size", COUNT),
        "d_ff": ("intermediate_size", COUNT),
        "vocab_size": ("vocabulary_size", COUNT),
        "n_positions": ("max_positions", COUNT),
        "tie_word_embeddings": ("tied_embeddings", FLAG),
        "dropout_rate": ("hidden_dropout", RATIO),
    },
    refused=("is_decoder",),
    adjust=_t5,
    own_head_size=True,
)

TYPES = {
    "t5": _T5,
    "mt5": _T5._replace(
        config="MT5Config",
        peft=Peft(
            norms=("layer_norm", "final_layer_norm"),
            of_kind={"adalora": ("q", "k", "v", "o", "wi_0", "wi_1", "wo")},
            lora=("q", "v"),
            ia3=("k", "v", "wi_1"),
        ),
        defaults={
            **_T5.defaults,
            "vocabulary_size": 250112,
            "layers": 8,
            "attention_heads": 6,
            "intermediate_size": 1024,
            "activation": "gelu_new",
            "gated_mlp": True,
        },
    ),
}
