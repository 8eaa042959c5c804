"""Falcon-H1 (models/falcon_h1/configuration_falcon_h1.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType
from vramplan.catalog.families.granitemoehybrid import SPACE_DEFAULTS, SPACE_KEYS
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

HEADS, WIDTH, HIDDEN = 128, 1024, 4096


def _falcon(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    heads = values.get("state_space.heads") or HEADS
    if fields.given("mamba_d_ssm"):
        wide = fields.integer("mamba_d_ssm", minimum=1)
    elif fields.present("mamba_d_ssm"):  # null: as mamba_expand says
        wide = (fields.integer("mamba_expand", minimum=1) or 2) * (values.get("hidden_size") or HIDDEN)
    else:
        wide = WIDTH
    text = fields.value("mamba_d_head") if fields.given("mamba_d_head") else "auto"
    if wide is not None:
        size = wide // heads if text == "auto" else fields.integer("mamba_d_head", minimum=1)
        if size is not None and size * heads != wide:
            fields.refuse("mamba_n_heads", f"{heads} heads of {size} elements are not the {wide} of mamba_d_ssm")
        values["state_space.head_size"] = size
    normed = fields.boolean("mamba_rms_norm") if fields.given("mamba_rms_norm") else False
    before = fields.boolean("mamba_norm_before_gate") if fields.given("mamba_norm_before_gate") else True
    values["state_space.norm"] = "none" if not normed else "norm-first" if before else "gate-first"


def _head_size(fields: Mapping[str, Any]) -> int:
    """Elements of a head, where nothing says how many: those of all heads are `mamba_d_ssm`."""
    return max(1, WIDTH // int(fields["state_space.heads"]))


def _written(shape: ModelShape) -> dict[str, Any]:
    space = shape.state_space
    assert space is not None
    return {
        "mamba_d_ssm": space.values,
        "mamba_d_head": space.head_size,
        "mamba_rms_norm": space.norm != "none",
        "mamba_norm_before_gate": space.norm == "norm-first",
    }


TYPES = {
    "falcon_h1": ModelType(
        config="FalconH1Config",
        family="falcon_h1",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key != "sliding_window"},
            **{key: value for key, value in SPACE_DEFAULTS.items() if key != "state_space.layers"},
            "vocabulary_size": 128000,
            "intermediate_size": 14336,
            "key_value_heads": 8,
            "max_positions": 8192,
            "state_space.head_size": _head_size,
            "state_space.output_bias": False,
            "state_space.norm": "none",
        },
        fixed={
            **FIXED,
            "sliding_window": None,
            "state_space.layers": SPACE_DEFAULTS["state_space.layers"],
        },
        keys={
            **KEYS,
            **SPACE_KEYS,
            "projectors_bias": ("state_space.output_bias", FLAG),
            "attention_bias": ("qkv_bias", FLAG),
            "mlp_bias": ("mlp_bias", FLAG),
            "mamba_d_state": ("state_space.state_size", COUNT),
        },
        adjust=_falcon,
        grouped=True,
        own_head_size=True,
    ),
}
