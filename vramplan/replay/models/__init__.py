"""One forward pass per family, in the file of the family's name."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from vramplan.values.model import ModelShape

Obstacle = tuple[str, str]  # a key of a model and a message


@cache
def family(name: str) -> Any:
    """The class that builds and runs a family's forward pass: `FORWARD` of its module.

    It is imported when asked for, so that one family does not cost the start-up of the others.
    """
    return import_module(module_of(name)).FORWARD


def published(shape: ModelShape) -> str:
    """The family that Transformers has of a model, whatever program's code is replayed; that code where it has none."""
    name = shape.published_family
    return shape.family if name is None or find_spec(f"{__name__}.{name}") is None else name


def module_of(name: str) -> str:
    """The module of a family's forward pass: a file of this folder, or the module that the name is, of an engine."""
    return name if "." in name else f"vramplan.replay.models.{name}"


def own(name: str, attribute: str, otherwise: Any) -> Any:
    """What a family says of itself, not of those that are built from it: each was traced on its own."""
    return vars(family(name)).get(attribute, otherwise)


def is_in_transformers(name: str) -> bool:
    """Whether Transformers has code of a family; of some only a training program has."""
    return find_spec(module_of(name)) is not None


def is_own_code(name: str) -> bool:
    """Whether a family's code is that of a training program, which says itself what it can do."""
    return "." in name


def is_untraced(name: str) -> bool:
    """Whether nobody traced a training program's own code of a family: `untraced = True`."""
    return getattr(family(name), "untraced", False) is True


def shares_by_itself(name: str) -> bool:
    """Whether a runtime's own code shares states in ways of its own, which its engine checks: `shares_by_itself`."""
    return own(name, "shares_by_itself", False) is True


def reads_slice(name: str) -> bool:
    """Whether the family's code reads in `recipe.slice` what a device has of each layer: `reads_slice = True`."""
    return own(name, "reads_slice", False) is True


def iteration_of(name: str, *, in_pipeline: bool) -> str | None:
    """What replays an iteration of a runtime's own code, `package.module:function`; None: as every other model.

    The family says so: `iteration`, and `iteration_of_stage` for a stage of a pipeline. The function is called with
    the setup and the tape, and gives the record.
    """
    address: str | None = own(name, "iteration_of_stage" if in_pipeline else "iteration", None)
    return address


def has_own_core(name: str) -> bool:
    """Whether attention that is not flash is code of the engine's own, which keeps the scores: `own_core = True`."""
    return own(name, "own_core", False) is True


def hands_groups_on(name: str) -> bool:
    """Whether fewer key-value heads than heads go to PyTorch's attention as they are where there is no mask.

    What is built from a family of Transformers calls the same function, `sdpa_attention_forward`.
    """
    return not is_own_code(name) and getattr(family(name), "hands_groups_on", False) is True


def scales_logits(name: str) -> bool:
    """Whether the family's head multiplies its logits by a number: `scales_logits = True`."""
    return own(name, "scales_logits", False) is True


def attends_beside(name: str) -> bool:
    """Whether the family's blocks with a state space have attention too: `attends_beside = True`."""
    return own(name, "attends_beside", False) is True


def casts_logits(name: str) -> bool:
    """Whether the family's head casts its logits to fp32 before anything else: `casts_logits = True`."""
    return own(name, "casts_logits", False) is True


def drops_tokens(name: str) -> bool:
    """Whether the family's experts take a bounded number of tokens, and drop the others: `drops_tokens = True`."""
    return own(name, "drops_tokens", False) is True


def no_code_for(shape: ModelShape) -> Obstacle | None:
    """Which key of the model the family's code cannot compute, and why: `no_code_for(shape)`, else none."""
    asked = vars(family(shape.family)).get("no_code_for")
    found: Obstacle | None = None if asked is None else asked.__func__(shape)
    return found


def stands_for(name: str, shape: ModelShape) -> bool:
    """Whether a runtime's own code can have this shape: `stands_for(shape)` of its family, else any of its family."""
    fits = vars(family(name)).get("stands_for")
    return fits is None or bool(fits.__func__(shape))


def ladder_of(name: str) -> tuple[str, ...] | None:
    """The strategies of checkpointing that the family's code offers, in the order of extra compute; None: the usual."""
    words: tuple[str, ...] | None = own(name, "ladder", None)
    return words


def steps_views(name: str) -> bool:
    """Whether FSDP1 gives the optimizer each weight of a flat parameter, as the runtime asks for: use_orig_params."""
    return own(name, "steps_views", False) is True


def prefetches_after(name: str) -> bool:
    """Whether FSDP gathers the next unit of backward when one is over, not before it: the runtime asks for that."""
    return own(name, "prefetches_after", False) is True


def splits_of(name: str) -> tuple[str, ...]:
    """Of tensor, sequence_parallel, pipeline, context and expert the ways to split that the code models: `splits`."""
    ways: tuple[str, ...] = own(name, "splits", ())
    return ways


def makes_gradients_in_backward(name: str) -> bool:
    """Whether backward makes the gradients: without `gradient_buffers = True`, which are there from the start."""
    return getattr(family(name), "gradient_buffers", False) is not True


def has_tensor_plan(name: str) -> bool:
    """Whether the family has a plan for tensor parallelism, and layers of heads times the size of a head."""
    return own(name, "has_tensor_plan", False) is True


def peaks_published(name: str) -> bool:
    """Whether published peaks have confirmed the bands of the family, by the rule of tests/measured/families.py."""
    return own(name, "peaks_published", False) is True
