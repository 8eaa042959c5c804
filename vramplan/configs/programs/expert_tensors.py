"""Adapters on the tensors of all experts, which are no layers: `target_parameters` of PEFT."""

from __future__ import annotations

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.replay.techniques.adapters import ALL_LINEAR
from vramplan.replay.techniques.expert_adapters import former_names
from vramplan.values.model import ModelShape

KEY = "lora_target_parameters"


def add(sheet: Sheet, meaning: Meaning, shape: ModelShape | None) -> None:
    """Add to the targets what stands for these tensors there; of a model that has no such names they are asked for."""
    wanted = sheet.texts(KEY)
    told = meaning.job.get("adapter.targets")
    if not wanted or (told is not None and told.value == ALL_LINEAR):
        return
    held = [] if told is None else list(told.value)
    tensors = {".".join(word.split(".")[-2:]) for word in wanted}
    names = {} if shape is None else former_names("lora", shape)
    if tensors <= set(names.values()):
        found = [name for name, tensor in names.items() if tensor in tensors]
        meaning.say("adapter.targets", [*held, *(one for one in found if one not in held)], KEY)
        return
    meaning.job.pop("adapter.targets", None)
    others = f" (--targets {','.join(held)} counts the others alone)" if held else " (--targets NAMES)"
    meaning.ask("adapter.targets", f"{KEY}: an adapter on {', '.join(wanted)} is not modelled for this model{others}")
