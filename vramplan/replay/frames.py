"""Reads the running functions: which rule allocates, in which module of the model, and what it calls a tensor.

Nothing here keeps a frame or a tensor: the caller's lists of frames are gone when it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from vramplan.replay.rules import function_of, is_rule, name_of, public_name, rooms

MODELS = "vramplan.replay.models."
TECHNIQUES = "vramplan.replay.techniques."
AROUND_THE_MODEL = frozenset(
    f"{TECHNIQUES}{name}"
    for name in (
        "averaging",
        "clipping",
        "compiling",
        "objectives",
        "pair_losses",
        "preference_logits",
        "preference_pairs",
        "scaling",
        "trained",
    )
)
"""Techniques of the training loop: a frame of theirs is no frame of the model."""
ENGINES, OF_THE_MODEL = "vramplan.engines.", ("model", "moe")  # files of an engine that are its model's code
OUTERMOST = "vramplan.replay.step"  # what calls it is none of the step


@lru_cache(maxsize=1024)
def is_model_code(module: str) -> bool:
    """Whether a module has code of a model: of a family, of an engine's own model, or of a technique inside of it."""
    if module.startswith(ENGINES):
        return module.rpartition(".")[2] in OF_THE_MODEL
    return module.startswith(MODELS) or (module.startswith(TECHNIQUES) and module not in AROUND_THE_MODEL)


def running() -> list[FrameType]:
    """The running functions of rules, modules and the engine, from the inner to the outer."""
    found = []
    frame: FrameType | None = sys._getframe(2)  # who called the caller
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == OUTERMOST:
            break
        if name in rooms() or is_model_code(name):
            found.append(frame)
        frame = frame.f_back
    return found


def local(frame: FrameType, name: str) -> Any:
    """A local variable of a running function. A snapshot of all would keep tensors alive, so it is emptied again."""
    names = frame.f_locals
    value = names.get(name)
    if type(names) is dict:
        names.clear()
    return value


def names_of(frame: FrameType, tensors: Sequence[Any]) -> dict[int, list[str]]:
    """What the running function calls these tensors."""
    if not tensors:
        return {}
    names = frame.f_locals
    found: dict[int, list[str]] = {id(tensor): [] for tensor in tensors}
    for name, value in names.items():
        if id(value) in found:
            found[id(value)].append(name)
    if type(names) is dict:
        names.clear()
    return found


def code_of_the_model(frames: list[FrameType]) -> tuple[str, ...]:
    """The function of a model that allocates by itself, such as a mask: its own rule."""
    for frame in frames:
        name = frame.f_code.co_qualname
        module = frame.f_globals["__name__"]
        if is_model_code(module) and "<" not in name:
            return (f"{public_name(module)}.{name}",)
    return ()


@lru_cache(maxsize=1024)
def rule_at(code: CodeType, module: str) -> str | None:
    """The name of the rule that a code belongs to."""
    function = function_of(code, vars(sys.modules[module]))
    return name_of(module, function.__name__) if is_rule(function) else None
