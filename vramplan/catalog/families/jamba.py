"""Jamba (models/jamba/configuration_jamba.py): state spaces of Mamba-1, attention, and experts, in turns."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType, intermediate_size
from vramplan.catalog.families.granitemoehybrid import space_input_bias
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LAYERS, HIDDEN = 32, 4096
TURNS = {"attn_layer": (8, 4), "expert_layer": (2, 1)}
"""Of what some blocks have: every how many blocks one has it, and which is the first."""


def every(period: int, offset: int, layers: int) -> tuple[int, ...]:
    """The blocks whose number leaves `offset` when divided by `period`."""
    return tuple(i for i in range(layers) if i % period == offset)


def others(blocks: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """All blocks but these."""
    return tuple(i for i in range(layers) if i not in blocks)


def usual_space(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """The blocks with a state space where nothing says which."""
    return others(every(*TURNS["attn_layer"], fields["layers"]), fields["layers"])


def usual_dense(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """The blocks without experts where nothing says which."""
    return others(every(*TURNS["expert_layer"], fields["layers"]), fields["layers"])


def twice_as_wide(fields: Mapping[str, Any]) -> int:
    """Channels of a state space: `mamba_expand` of 2."""
    return 2 * int(fields["hidden_size"])


def sixteenth(fields: Mapping[str, Any]) -> int:
    """`mamba_dt_rank` of "auto": the hidden state over 16, rounded up."""
    return ceil(int(fields["hidden_size"]) / 16)


SPACE_KEYS: Keys = {
    "mamba_d_state": ("state_space.state_size", COUNT),
    "mamba_d_conv": ("state_space.kernel", COUNT),
    "mamba_conv_bias": ("state_space.conv_bias", FLAG),
    "mamba_proj_bias": ("state_space.input_bias", FLAG),
}
SPACE_DEFAULTS: dict[str, Any] = {
    "state_space.heads": twice_as_wide,
    "state_space.state_size": 16,
    "state_space.step_rank": sixteenth,
    "state_space.kernel": 4,
    "state_space.conv_bias": True,
    "state_space.input_bias": False,
    "state_space.output_bias": space_input_bias,
}
SPACE_FIXED: dict[str, Any] = {
    "state_space.head_size": 1,
    "state_space.groups": 1,
    "state_space.chunk": 1,
    "state_space.norm": "none",
}
"""Of Mamba-1 each channel is a head of its own, and tokens come one by one."""


def step_rank(fields: Fields, values: dict[str, Any], key: str, hidden: int) -> None:
    """The rank of the projection of the steps: a number, or "auto" as for nothing."""
    if fields.given(key) and fields.value(key) != "auto":
        values["state_space.step_rank"] = fields.integer(key, minimum=1)
    else:
        values["state_space.step_rank"] = sixteenth({"hidden_size": hidden})


def _turn(fields: Fields, name: str, layers: int) -> tuple[int, ...]:
    """`<name>_period` and `<name>_offset`: the blocks that have it."""
    period, offset = TURNS[name]
    if fields.given(f"{name}_period"):
        period = fields.integer(f"{name}_period", minimum=1) or period
    if fields.given(f"{name}_offset"):
        found = fields.integer(f"{name}_offset", minimum=0)
        offset = offset if found is None else found
    if offset >= period:
        fields.problem(f"{name}_offset", f"expected less than the {period} of {name}_period")
    return every(period, offset, layers)


def refuse_other_scan(fields: Fields) -> None:
    """`use_mambapy`: a scan of another package."""
    if fields.boolean("use_mambapy"):
        fields.refuse("use_mambapy", "the scan of mamba.py is not modelled", hint="set it to false")


def _jamba(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    refuse_other_scan(fields)
    layers, hidden = values.get("layers") or LAYERS, values.get("hidden_size") or HIDDEN
    values["state_space.heads"] = (fields.integer("mamba_expand", minimum=1) or 2) * hidden
    values["state_space.output_bias"] = values.get("state_space.input_bias")
    step_rank(fields, values, "mamba_dt_rank", hidden)
    values["state_space.layers"] = others(_turn(fields, "attn_layer", layers), layers)
    if values.get("experts.count") == 1:
        fields.refuse("num_experts", "1 is not modelled (feed-forward layers alone)")
    values["experts.dense_layers"] = others(_turn(fields, "expert_layer", layers), layers)


def _period(blocks: tuple[int, ...], layers: int) -> tuple[int, int]:
    """Every how many blocks one of these comes, and the first of them."""
    first = blocks[0] if blocks else layers
    second = blocks[1] if len(blocks) > 1 else max(layers, 2 * first + 1)
    return max(second - first, first + 1), first


def _written(shape: ModelShape) -> dict[str, Any]:
    space, experts, layers = shape.state_space, shape.experts, shape.layers
    assert space is not None
    assert experts is not None
    attention = _period(others(space.layers, layers), layers)
    mixtures = _period(others(experts.dense_layers, layers), layers)
    return {
        "attn_layer_period": attention[0],
        "attn_layer_offset": attention[1],
        "expert_layer_period": mixtures[0],
        "expert_layer_offset": mixtures[1],
        "mamba_expand": space.values // shape.hidden_size,
        "mamba_dt_rank": space.step_rank,
    }


def _contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    layers = values["layers"]
    found = whole_expansion(values)
    for key in ("state_space.layers", "experts.dense_layers"):
        blocks = others(values[key], layers)
        if blocks != every(*_period(blocks, layers), layers):
            found.append((key, "the other blocks do not come at equal distances, as a period and an offset say it"))
    return found


def whole_expansion(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whether the channels are some hidden states, as the expansion says how many."""
    channels, hidden = values["state_space.heads"], values["hidden_size"]
    if channels % hidden:
        return [("state_space.heads", f"{channels} channels are no multiple of the hidden state of {hidden}")]
    return []


TYPES = {
    "jamba": ModelType(
        config="JambaConfig",
        family="jamba",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: one for key, one in DEFAULTS.items() if not key.endswith(("_bias", "_window", "_scaling"))},
            **SPACE_DEFAULTS,
            "vocabulary_size": 65536,
            "intermediate_size": 14336,
            "key_value_heads": 8,
            "max_positions": 262144,
            "state_space.layers": usual_space,
            "experts.count": 16,
            "experts.active": 2,
            "experts.dense_layers": usual_dense,
        },
        fixed={
            **FIXED,
            **SPACE_FIXED,
            "positions": "none",
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "sliding_window": None,
            "experts.shared": 0,
            "experts.intermediate_size": intermediate_size,
            "experts.normalized": False,
        },
        keys={
            **KEYS,
            **EXPERT_KEYS,
            **SPACE_KEYS,
            "num_local_experts": ("experts.count", COUNT),
        },
        adjust=_jamba,
        grouped=True,
        own_head_size=True,
        contradictions=_contradictions,
    ),
}
