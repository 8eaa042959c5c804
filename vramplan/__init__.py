"""Says before a training run starts whether it fits in GPU memory, what fills it, and how to run it.

    from vramplan import fit

    fit(model="gpt2-xl", gpu="v100").verdict

The names are imported when they are first used: the command line needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vramplan.version import __version__

if TYPE_CHECKING:
    from vramplan.answers.session import Session
    from vramplan.api import Job, fit
    from vramplan.errors import InputError, Problem
    from vramplan.results import FitResult

__all__ = ["FitResult", "InputError", "Job", "Problem", "Session", "__version__", "fit"]

_HOMES = {
    "FitResult": "vramplan.results",
    "InputError": "vramplan.errors",
    "Job": "vramplan.api",
    "Problem": "vramplan.errors",
    "Session": "vramplan.answers.session",
    "fit": "vramplan.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vramplan' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
