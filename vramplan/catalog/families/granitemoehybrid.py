"""Granite 4 (models/granitemoehybrid/configuration_granitemoehybrid.py): with and without state spaces and experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType, intermediate_size
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.families.mixtral import router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

SPACE, FULL = "linear_attention", "full_attention"
FORMER = {"mamba": SPACE, "attention": FULL}
"""What `layer_types` called them before Transformers 5 (configuration_utils.py, _LEGACY_LAYER_TYPE_REMAP)."""

LAYERS, EXPERTS = 32, 8
OF_EXPERTS = {"num_experts_per_tok": ("experts.active", 2), "intermediate_size": ("experts.intermediate_size", 11008)}
"""The keys of a model with experts, and the defaults of the configuration class."""

SPACE_KEYS: Keys = {
    "mamba_n_heads": ("state_space.heads", COUNT),
    "mamba_d_state": ("state_space.state_size", COUNT),
    "mamba_n_groups": ("state_space.groups", COUNT),
    "mamba_d_conv": ("state_space.kernel", COUNT),
    "mamba_chunk_size": ("state_space.chunk", COUNT),
    "mamba_conv_bias": ("state_space.conv_bias", FLAG),
    "mamba_proj_bias": ("state_space.input_bias", FLAG),
}
"""The keys of state spaces that Granite 4, Falcon-H1 and Bamba have."""


def space_head_size(fields: Mapping[str, Any]) -> int:
    """Elements of a head: those of all heads are twice the hidden state."""
    return max(1, 2 * int(fields["hidden_size"]) // int(fields["state_space.heads"]))


def every_block(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """All blocks have a state space."""
    return tuple(range(fields["layers"]))


def space_input_bias(fields: Mapping[str, Any]) -> Any:
    """One setting for the biases of both projections of a state space."""
    return fields["state_space.input_bias"]


SPACE_DEFAULTS: dict[str, Any] = {
    "state_space.heads": 128,
    "state_space.head_size": space_head_size,
    "state_space.state_size": 256,
    "state_space.groups": 1,
    "state_space.kernel": 4,
    "state_space.chunk": 256,
    "state_space.layers": every_block,
    "state_space.conv_bias": True,
    "state_space.input_bias": False,
    "state_space.output_bias": space_input_bias,
}


def space_size(fields: Fields, values: dict[str, Any], heads: int, hidden: int) -> None:
    """`mamba_d_head`, or "auto": the elements of all heads are `mamba_expand` times the hidden state."""
    heads, hidden = values.get("state_space.heads") or heads, values.get("hidden_size") or hidden
    wide = (fields.integer("mamba_expand", minimum=1) or 2) * hidden
    text = fields.value("mamba_d_head") if fields.given("mamba_d_head") else "auto"
    size = wide // heads if text == "auto" else fields.integer("mamba_d_head", minimum=1)
    if size is not None and size * heads != wide:
        fields.refuse("mamba_n_heads", f"{heads} heads of {size} elements are not the {wide} of mamba_expand")
    values["state_space.head_size"] = size


def layer_kinds(fields: Fields, name: str, layers: int, allowed: tuple[str, ...]) -> list[str] | None:
    """What the blocks are, by the names of Transformers 5; None where the key is absent, or wrong."""
    types = fields.texts(name) if fields.given(name) else None
    if types is None:
        return None
    types = [FORMER.get(one, one) for one in types]
    unknown = next((one for one in types if one not in allowed), None)
    if unknown is not None:
        fields.refuse(name, f"{unknown} is not modelled (modelled: {', '.join(allowed)})")
    elif len(types) != layers:
        fields.refuse(name, f"{len(types)} entries for {layers} blocks")
    else:
        return types
    return None


def _granite(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    router_losses(fields, values)
    space_size(fields, values, 128, 4096)
    values["state_space.output_bias"] = values.get("state_space.input_bias")
    name = "layer_types" if fields.given("layer_types") else "layers_block_type"
    types = layer_kinds(fields, name, values.get("layers") or LAYERS, (SPACE, FULL))
    if types is not None:
        values["state_space.layers"] = tuple(i for i, one in enumerate(types) if one == SPACE)
    experts = fields.integer("num_local_experts", minimum=0) if fields.given("num_local_experts") else EXPERTS
    if experts:  # a model without has other numbers in these keys
        values["experts.count"] = experts
        for key, (field, otherwise) in OF_EXPERTS.items():
            values[field] = fields.integer(key) if fields.given(key) else otherwise
    rotary = fields.text("position_embedding_type") if fields.given("position_embedding_type") else None
    if rotary not in (None, "rope", "nope"):
        fields.refuse("position_embedding_type", f"{rotary} is not modelled (modelled: rope, or null)")
    values["positions"] = "rope" if rotary == "rope" else "none"


def _written(shape: ModelShape) -> dict[str, Any]:
    space = shape.state_space
    assert space is not None
    return {
        "layer_types": [SPACE if i in space.layers else FULL for i in range(shape.layers)],
        "mamba_d_head": space.head_size,
        "mamba_expand": space.values // shape.hidden_size,
        "num_local_experts": 0 if shape.experts is None else shape.experts.routed,
        "num_experts_per_tok": 0 if shape.experts is None else shape.experts.active,
        "intermediate_size": shape.intermediate_size if shape.experts is None else shape.experts.intermediate_size,
        "position_embedding_type": "rope" if shape.positions == "rope" else None,
    }


def wide_heads(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whether the elements of all heads are some hidden states, as `mamba_expand` says how many."""
    wide = values["state_space.heads"] * values["state_space.head_size"]
    if wide % values["hidden_size"]:
        message = f"{values['state_space.heads']} heads of {values['state_space.head_size']} elements are no multiple "
        return [("state_space.head_size", f"{message}of the hidden state, as mamba_expand has it")]
    return []


def missing_of_experts(values: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[str, str]]:
    """What a model with experts has to say of them."""
    if values["experts.count"] is None:
        return []
    message = "required key is missing: a model of this type may have no experts, so there is no default"
    return [(key, message) for key in keys if values[key] is None]


def _contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [*wide_heads(values), *missing_of_experts(values, ("experts.intermediate_size",))]
    if values["positions"] not in ("rope", "none"):
        found.append(("positions", f"{values['positions']} is not modelled (modelled: rope, none)"))
    return found


TYPES = {
    "granitemoehybrid": ModelType(
        config="GraniteMoeHybridConfig",
        family="granitemoehybrid",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key not in {"sliding_window", "mlp_bias"}},
            **SPACE_DEFAULTS,
            "intermediate_size": 1024,
            "positions": "none",
            "experts.count": None,
            "experts.active": None,
            "experts.intermediate_size": None,
        },
        fixed={
            **{key: value for key, value in FIXED.items() if key != "positions"},
            "mlp_bias": False,
            "sliding_window": None,
            "experts.shared": 1,
            "experts.shared_intermediate_size": intermediate_size,
            "experts.normalized": True,
            "experts.dense_layers": (),
            "state_space.norm": "gate-first",
        },
        keys={
            **{key: value for key, value in KEYS.items() if key != "intermediate_size"},
            **SPACE_KEYS,
            "shared_intermediate_size": ("intermediate_size", COUNT),
            "attention_bias": ("qkv_bias", FLAG),
        },
        adjust=_granite,
        grouped=True,
        own_head_size=True,
        contradictions=_contradictions,
    ),
}
