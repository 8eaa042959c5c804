"""Adapters that a script loads and trains on, and what PEFT's configuration has no key of a job for.

Source: huggingface/peft 0.21.2, src/peft/peft_model.py (`PeftModel.from_pretrained`, whose adapter is frozen unless
`is_trainable` is on; `load_adapter`), auto.py, tuners/lora/config.py and tuners/lora/layer.py (`lora_bias`: a bias of
each `lora_B`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from vramplan.configs.evaluated import ScriptNames
from vramplan.configs.noted_names import name_of

AROUND = re.compile(r"(\w+\.)*PeftModel\w*\.from_pretrained")
"""What puts an adapter that is loaded around a model, its first argument."""

LOADS = re.compile(r"(\w+\.)*(Auto)?PeftModel\w*\.from_pretrained|.*\.load_adapter")
MERGES = ("merge_and_unload", "unload")

SHAPING = {
    "target_parameters": "lora_target_parameters",
    **{name: name for name in ("rank_pattern", "layers_to_transform", "layer_replication", "use_qalora", "use_bdlora")},
    **{name: f"lora_config.{name}" for name in ("exclude_modules", "layers_pattern", "lora_bias")},
}
"""Arguments of LoraConfig that change which layers have an adapter or how large it is, by the names of settings.

A setting with the name that it has in PEFT is not understood; a name of ours is told, as it changes little."""


def trained(names: ScriptNames, calls: Sequence[ast.Call], trainer: ast.Call) -> ast.Call | None:
    """The call that loads the adapter which a trainer trains; None where none is loaded, or where it is merged."""
    loads = [call for call in calls if LOADS.fullmatch(name_of(call))]
    for call in loads:
        trains = next((word.value for word in call.keywords if word.arg == "is_trainable"), None)
        if trains is not None and names.value(trains) is not False:
            return call
    node = names.given(trainer).get("model", trainer.args[0] if trainer.args else None)
    if not isinstance(node, ast.Name) or any(name_of(call).rpartition(".")[2] in MERGES for call in calls):
        return None
    held = [
        value
        for (_, name), lines in names.assigned.items()
        for line, value in lines
        if name == node.id and line < trainer.lineno
    ]
    return next((call for call in loads if call in held), None)  # whatever else were trained, nothing is


def within(call: ast.Call) -> ast.expr | None:
    """The model that an adapter which is loaded stands around."""
    if not AROUND.fullmatch(name_of(call)):
        return None
    named = next((word.value for word in call.keywords if word.arg == "model"), None)
    return call.args[0] if call.args else named
