"""Mamba and Falcon-Mamba (models/<type>/configuration_<type>.py): a state space of Mamba-1 in each block, and nothing
else."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, TEXT, Keys, ModelType
from vramplan.catalog.families.granitemoehybrid import every_block
from vramplan.catalog.families.jamba import (
    SPACE_DEFAULTS,
    SPACE_FIXED,
    refuse_other_scan,
    step_rank,
    whole_expansion,
)
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

HIDDEN = 768
UNBOUNDED = 2**20
"""Tokens of a sequence, of which the class has no bound."""

KEYS: Keys = {
    "num_hidden_layers": ("layers", COUNT),
    "hidden_size": ("hidden_size", COUNT),
    "vocab_size": ("vocabulary_size", COUNT),
    "tie_word_embeddings": ("tied_embeddings", FLAG),
    "hidden_act": ("activation", TEXT),
    "state_size": ("state_space.state_size", COUNT),
    "conv_kernel": ("state_space.kernel", COUNT),
    "use_conv_bias": ("state_space.conv_bias", FLAG),
    "use_bias": ("state_space.input_bias", FLAG),
}


def _mamba(fields: Fields, values: dict[str, Any]) -> None:
    refuse_other_scan(fields)
    hidden = values.get("hidden_size") or HIDDEN
    given = fields.integer("intermediate_size", minimum=1)  # which the class takes, whatever it expands by
    values["state_space.heads"] = given or (fields.integer("expand", minimum=1) or 2) * hidden
    values["state_space.output_bias"] = values.get("state_space.input_bias")
    step_rank(fields, values, "time_step_rank", hidden)
    if fields.given("residual_in_fp32") and not fields.boolean("residual_in_fp32"):
        fields.refuse("residual_in_fp32", "false is not modelled", hint="set it to true, as published models have it")


def _written(shape: ModelShape) -> dict[str, Any]:
    space = shape.state_space
    assert space is not None
    return {"expand": space.values // shape.hidden_size, "time_step_rank": space.step_rank}


def _of(name: str) -> ModelType:
    return ModelType(
        config=f"{name}Config",
        family="mamba",
        tasks=("lm",),
        written=_written,
        defaults={
            "vocabulary_size": 50280,
            "hidden_size": HIDDEN,
            "layers": 32,
            "activation": "silu",
            "tied_embeddings": True,
            **SPACE_DEFAULTS,
        },
        fixed={
            **SPACE_FIXED,
            "attention_heads": 0,
            "key_value_heads": 0,
            "head_size": 0,
            "intermediate_size": 0,
            "max_positions": UNBOUNDED,
            "positions": "none",
            "gated_mlp": False,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "sliding_window": None,
            "state_space.layers": every_block,
        },
        keys=KEYS,
        adjust=_mamba,
        contradictions=whole_expansion,
    )


TYPES = {"mamba": _of("Mamba"), "falcon_mamba": _of("FalconMamba")}
