"""Targets of LoRA that are a regular expression over the whole name of a layer, as PEFT takes it.

Source: peft 0.21.2, tuners/tuners_utils.py, check_target_module_exists (`re.fullmatch`).
"""

from __future__ import annotations

import re

from vramplan.job.trained.adapter_targets import ATTENTION_MODULES, FEEDFORWARD, FEEDFORWARD_MODULES, layers_of
from vramplan.replay.techniques.expert_adapters import former_names
from vramplan.replay.techniques.trained import names_of
from vramplan.values.model import ModelShape

BEGINNINGS = (
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
    "model.text_model.layers",
    "base_model.model.model.layers",
    "transformer.h",
)
"""What stands before the number of a block: of a text model, and of one inside of a model of images."""
LINEAR_MODULES = ("linear_attn",)


def matched(pattern: str, model: ModelShape) -> tuple[list[str], bool] | None:
    """The layers of a model that a pattern is of, and whether it leaves blocks out; None where it is of none.

    Names that stand for experts are left out: their stacks are no layers, and no name of one matches.
    """
    try:
        compiled = re.compile(pattern)
    except re.error:
        return None
    stacks = former_names("lora", model)
    found: dict[str, set[int]] = {}
    for name in layers_of(model, names_of(model)):
        if name in stacks:
            continue
        modules = FEEDFORWARD_MODULES if name in FEEDFORWARD else (*ATTENTION_MODULES, *LINEAR_MODULES)
        for block in range(model.layers):
            paths = (f"{start}.{block}.{module}.{name}" for start in BEGINNINGS for module in modules)
            if any(compiled.fullmatch(path) for path in paths):
                found.setdefault(name, set()).add(block)
    if not found:
        return None
    return list(found), any(len(blocks) < model.layers for blocks in found.values())
