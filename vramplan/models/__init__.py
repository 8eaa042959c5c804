"""One forward pass per family."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# family -> (module, class); imported when asked for, so that one family does not cost the start-up of the others
FAMILIES = {
    "gpt2": ("vramplan.models.gpt2", "GPT2"),
    "llama": ("vramplan.models.llama", "Llama"),
    "bert": ("vramplan.models.bert", "Bert"),
}


def family(name: str) -> Any:
    """The class that builds and runs a family's forward pass."""
    module, attribute = FAMILIES[name]
    return getattr(import_module(module), attribute)
