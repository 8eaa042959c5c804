"""GPT-Neo (models/gpt_neo/configuration_gpt_neo.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType, Peft, four_times, same_heads
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

GLOBAL, LOCAL, LAYERS = "global", "local", 24


def _gpt_neo(fields: Fields, values: dict[str, Any]) -> None:
    """Blocks that see everything and blocks with a window compute the same scores, masked by a buffer of one size."""
    given = fields.value("attention_types") if fields.given("attention_types") else None
    if given is None:
        return
    try:
        kinds = [kind for each, times in given for kind in list(each) * times]
    except (TypeError, ValueError):
        fields.problem("attention_types", "expected a list of pairs", hint='[[["global", "local"], 12]]')
        return
    if not {*kinds} <= {GLOBAL, LOCAL}:
        fields.refuse("attention_types", f"only {GLOBAL} and {LOCAL} are known to the code of Transformers")
    elif len(kinds) != (values.get("layers") or LAYERS):
        fields.refuse("attention_types", f"{len(kinds)} kinds of {values.get('layers') or LAYERS} blocks")


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"attention_types": [[[GLOBAL], shape.layers]]}


TYPES = {
    "gpt_neo": ModelType(
        config="GPTNeoConfig",
        family="gpt_neo",
        tasks=("lm",),
        written=_written,
        peft=Peft(lora=("q_proj", "v_proj"), ia3=("q_proj", "v_proj", "c_proj"), ia3_feedforward=("c_proj",)),
        defaults={
            "vocabulary_size": 50257,
            "max_positions": 2048,
            "hidden_size": 2048,
            "layers": LAYERS,
            "attention_heads": 16,
            "key_value_heads": same_heads,
            "intermediate_size": four_times,
            "activation": "gelu_new",
            "tied_embeddings": True,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
        },
        fixed={
            "gated_mlp": False,
            "qkv_bias": False,
            "output_bias": True,
            "mlp_bias": True,
            "positions": "learned",
            "token_types": 0,
            "sliding_window": None,
        },
        keys={
            "num_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_heads": ("attention_heads", COUNT),
            "intermediate_size": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "activation_function": ("activation", TEXT),
            "embed_dropout": ("embedding_dropout", RATIO),
            "attention_dropout": ("attention_dropout", RATIO),
            "resid_dropout": ("hidden_dropout", RATIO),
            "num_hidden_layers": ("layers", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
        },
        adjust=_gpt_neo,
    ),
}
