"""Nemotron-H, Nemotron Nano 2 and Nemotron 3 (models/nemotron_h/configuration_nemotron_h.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, TEXT, Keys, ModelType, Peft
from vramplan.catalog.families.granitemoehybrid import (
    FORMER,
    FULL,
    SPACE,
    every_block,
    missing_of_experts,
    space_input_bias,
)
from vramplan.catalog.families.llama import KEYS
from vramplan.catalog.families.mixtral import router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

MOE, DENSE = "moe", "mlp"
LETTERS = {"M": SPACE, "E": MOE, "*": FULL, "-": DENSE}
"""What `hybrid_override_pattern` calls the blocks (_pattern_to_list)."""

USUAL = (SPACE, MOE, FULL, DENSE)  # the blocks where nothing says what they are
OF_EXPERTS: dict[str, Any] = {
    "experts.count": 8,
    "experts.active": 2,
    "experts.intermediate_size": 7688,
    "experts.shared_intermediate_size": 7688,
    "experts.normalized": True,
    "experts.groups": 1,
    "experts.active_groups": 1,
}
"""The defaults of the configuration class for a model with experts."""

_FORMER_KEYS: Keys = {
    "mamba_n_groups": ("state_space.groups", COUNT),
    "mamba_d_conv": ("state_space.kernel", COUNT),
    "mamba_conv_bias": ("state_space.conv_bias", FLAG),
    "mamba_chunk_size": ("state_space.chunk", COUNT),
}
"""Names of earlier configurations, which go before the others (NemotronHConfig.__post_init__)."""


def _types(fields: Fields) -> list[str] | None:
    """What the blocks are, one by one."""
    for name in ("layers_block_type", "layer_types"):
        if fields.given(name):
            types = [FORMER.get(one, one) for one in fields.texts(name) or ()]
            unknown = next((one for one in types if one not in USUAL), None)
            if unknown is not None:
                fields.refuse(name, f"{unknown} is not modelled (modelled: {', '.join(USUAL)})")
                return None
            return types
    if not fields.given("hybrid_override_pattern"):
        return list(USUAL)
    pattern = fields.text("hybrid_override_pattern") or ""
    wrong = next((one for one in pattern if one not in LETTERS), None)
    if wrong is not None:
        fields.refuse("hybrid_override_pattern", f"{wrong} is none of {' '.join(LETTERS)}")
        return None
    return [LETTERS[one] for one in pattern]


def _nemotron(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    values["state_space.output_bias"] = values.get("state_space.input_bias")
    if fields.given("mamba_hidden_act") and fields.text("mamba_hidden_act") not in ("silu", "swish"):
        fields.refuse("mamba_hidden_act", f"{fields.text('mamba_hidden_act')} is not modelled (modelled: silu)")
    types = _types(fields)
    if types is None:
        return
    values["layers"] = len(types)
    values["state_space.layers"] = tuple(i for i, one in enumerate(types) if one == SPACE)
    values["state_space.feedforward_layers"] = tuple(i for i, one in enumerate(types) if one in (MOE, DENSE))
    if MOE in types:
        for field, otherwise in OF_EXPERTS.items():
            values[field] = otherwise if values.get(field) is None else values[field]
        values["experts.dense_layers"] = tuple(i for i, one in enumerate(types) if one != MOE)
    else:
        values["experts.count"] = None


def _written(shape: ModelShape) -> dict[str, Any]:
    space, experts = shape.state_space, shape.experts
    assert space is not None

    def kind(i: int) -> str:
        if i in space.layers:
            return SPACE
        if i not in space.feedforward_layers:
            return FULL
        return DENSE if experts is None or i in experts.dense_layers else MOE

    return {"layers_block_type": [kind(i) for i in range(shape.layers)]}


def _contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = missing_of_experts(values, ("experts.dense_layers", *OF_EXPERTS))
    if values["experts.count"] is None or found:
        return found
    alone, dense = {*values["state_space.feedforward_layers"]}, {*values["experts.dense_layers"]}
    outside = sorted({*range(values["layers"])} - alone - dense)
    if outside:
        what = "a state space" if outside[0] in values["state_space.layers"] else "attention"
        found = [("experts.dense_layers", f"block {outside[0]} is {what}, and has no experts: name it here")]
    return found


TYPES = {
    "nemotron_h": ModelType(
        config="NemotronHConfig",
        family="nemotron_h",
        tasks=("lm",),
        peft=Peft(lora=("q_proj", "k_proj", "v_proj", "o_proj")),
        written=_written,
        defaults={
            "vocabulary_size": 131072,
            "hidden_size": 4096,
            "intermediate_size": 21504,
            "layers": len(USUAL),
            "attention_heads": 32,
            "key_value_heads": 8,
            "head_size": 128,
            "max_positions": 4096,
            "activation": "relu2",
            "tied_embeddings": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "state_space.heads": 128,
            "state_space.head_size": 64,
            "state_space.state_size": 128,
            "state_space.groups": 8,
            "state_space.kernel": 4,
            "state_space.chunk": 128,
            "state_space.layers": every_block,
            "state_space.feedforward_layers": (),
            "state_space.conv_bias": True,
            "state_space.input_bias": False,
            "state_space.output_bias": space_input_bias,
            **dict.fromkeys(OF_EXPERTS),
            "experts.dense_layers": None,
            "experts.latent_size": None,
        },
        fixed={
            "positions": "none",
            "gated_mlp": False,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "hidden_dropout": 0.0,
            "qkv_bias": False,
            "output_bias": False,
            "sliding_window": None,
            "experts.shared": 1,
            "state_space.norm": "gate-first",
        },
        keys={
            **{key: value for key, value in KEYS.items() if key not in {"num_hidden_layers", "hidden_act"}},
            "mlp_hidden_act": ("activation", TEXT),
            "mlp_bias": ("mlp_bias", FLAG),
            "mamba_num_heads": ("state_space.heads", COUNT),
            "mamba_head_dim": ("state_space.head_size", COUNT),
            "ssm_state_size": ("state_space.state_size", COUNT),
            "n_groups": ("state_space.groups", COUNT),
            "conv_kernel": ("state_space.kernel", COUNT),
            "chunk_size": ("state_space.chunk", COUNT),
            "use_conv_bias": ("state_space.conv_bias", FLAG),
            "use_bias": ("state_space.input_bias", FLAG),
            "n_routed_experts": ("experts.count", COUNT),
            "num_experts_per_tok": ("experts.active", COUNT),
            "moe_intermediate_size": ("experts.intermediate_size", COUNT),
            "moe_shared_expert_intermediate_size": ("experts.shared_intermediate_size", COUNT),
            "moe_latent_size": ("experts.latent_size", COUNT),
            "norm_topk_prob": ("experts.normalized", FLAG),
            "n_group": ("experts.groups", COUNT),
            "topk_group": ("experts.active_groups", COUNT),
            **_FORMER_KEYS,
        },
        adjust=_nemotron,
        grouped=True,
        own_head_size=True,
        contradictions=_contradictions,
    ),
}
