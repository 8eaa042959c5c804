"""Unsloth's copies of Phi-3 and Phi-4, which have the layers of Llama: a projection each for queries, keys and values.

Source: unslothai/notebooks (Phi_4-Conversational.ipynb, Phi_3.5_Mini-Conversational.ipynb,
Phi_3_Medium-Conversational.ipynb: "Fast Llama patching", "patched 40 layers with 40 QKV layers"); unslothai/unsloth,
unsloth/models/mapper.py (by whose table Microsoft's names are these copies too).
"""

from __future__ import annotations

import re

from vramplan.configs.sheet import Meaning, Sheet

OWNER = "unsloth/"
COPIED = re.compile(r"phi-?(3|3\.5)-(mini|medium)|phi-?4(?!-?(mini|multimodal|reasoning))", re.IGNORECASE)
SIZES = (
    *("layers", "hidden_size", "attention_heads", "key_value_heads", "head_size", "intermediate_size"),
    *("vocabulary_size", "max_positions", "tied_embeddings"),
)


def say(sheet: Sheet, meaning: Meaning, name: str) -> bool:
    """Say the model by its sizes where a name is of such a copy; whether it is."""
    end = name.rstrip("/").rpartition("/")[2]
    owned = name.lower().startswith(OWNER) or (sheet.flag("use_unsloth") and not name.startswith((".", "/")))
    shape = sheet.shape_of(name) if owned and COPIED.match(end) else None
    if shape is None or shape.family != "phi3":
        return False
    sizes = {size: getattr(shape, size) for size in SIZES}
    model = {"name": f"{shape.name} of Unsloth", "family": "llama", **sizes}
    meaning.say("model", model, "model_name_or_path")
    meaning.note(f"model: Unsloth's copy of {shape.name} has the layers of Llama, with q_proj, k_proj, gate_proj, ...")
    return True
