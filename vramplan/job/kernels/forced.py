"""What leaves an attention kernel no choice: masks, which flash does not take, and single key-value heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.catalog.fields import Fields
from vramplan.replay.models.capable import only_kernel_of
from vramplan.replay.models.parts import full_blocks
from vramplan.replay.models.windows import reaches_window, windowed_blocks
from vramplan.replay.operators.attention import LARGEST_FLASH_HEAD
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver


def only_kernel(
    fields: Fields, given: str | None, model: ModelShape, kernel: str, why: str, assumptions: list[Assumption]
) -> str:
    """The attention of a model whose code leaves `sdpa` one kernel to choose; the other fused ones are refused."""
    if given in {None, "sdpa"}:
        assumptions.append(Assumption("attention", kernel, f"sdpa: {why}"))
    elif given not in {"eager", kernel}:
        fields.refuse("attention", f"{given} cannot run for {model.name}: {why}", hint=f"use {kernel}")
    return "eager" if given == "eager" else kernel


def with_windows(model: ModelShape, sequence_length: int, assumptions: list[Assumption]) -> str:
    """The attention of a job that would run flash by PyTorch's choice, whose sequence reaches the window.

    Where every block has a window, that is efficient. Where only some have one, those run the memory-efficient kernel,
    as PyTorch's own choice does call by call.
    """
    windows = windowed_blocks(model)
    if not windows:
        return "flash"
    why = f"{sequence_length} tokens reach the sliding window of {model.sliding_window}, whose mask flash does not take"
    assumptions[:] = [one for one in assumptions if one.key != "attention" or not one.why.startswith("sdpa")]
    if windows == model.layers:
        assumptions.append(Assumption("attention", "efficient", f"sdpa: {why}"))
        return "efficient"
    where = f"but efficient in {windows} of {model.layers} blocks"
    assumptions.append(Assumption("attention", "flash", f"{where}: {why}"))
    return "flash"


def call_by_call(model: ModelShape, sequence_length: int, assumptions: list[Assumption]) -> str:
    """The attention of a job that has plain operators by PyTorch's choice, where some blocks have another kernel.

    Beside the mask of a window that is reached, and of heads that are too large for flash, keys and values are repeated
    for their query heads, so that the memory-efficient kernel runs (integrations/sdpa_attention.py, use_gqa_in_sdpa).
    A vision tower has as many key-value heads as heads.
    """
    windows = windowed_blocks(model) if reaches_window(model, sequence_length) else 0
    large = full_blocks(model) if model.largest_head_size > LARGEST_FLASH_HEAD else 0
    others = windows + large
    if only_kernel_of(model) is not None or not (others or model.takes_images):
        return "math"
    what = [f"the sliding window of {model.sliding_window} tokens is a mask"] * bool(windows)
    what += [f"heads have {model.full_head_size} elements"] * bool(large)
    why = f"where {' or '.join(what)}, keys and values are repeated for their heads, which that kernel takes"
    assumptions[:] = [one for one in assumptions if one.key != "attention" or not one.why.startswith("sdpa")]
    if others == model.layers and not model.takes_images:
        assumptions.append(Assumption("attention", "efficient", f"sdpa: {why}"))
        return "efficient"
    where = [f"in {others} of {model.layers} blocks"] * bool(others)
    where += ["in the vision tower"] * model.takes_images
    said = f"efficient {' and '.join(where)}, math elsewhere{f': {why}' if others else ''}"
    assumptions.append(Assumption("attention", "sdpa", said))
    return "sdpa"


def with_large_heads(model: ModelShape, assumptions: list[Assumption]) -> None:
    """Say which kernel the blocks run whose heads are too large for flash, as PyTorch chooses it call by call."""
    why = f"but efficient in {full_blocks(model)} of {model.layers} blocks: heads of {model.full_head_size} elements"
    assumptions.append(Assumption("attention", "flash", f"{why}, of which flash takes at most {LARGEST_FLASH_HEAD}"))


def flash_alone(resolver: Resolver, given: str | None, obstacle: str | None) -> str:
    """The attention of code that calls flash-attn itself, and has no other way here."""
    fields = resolver.fields
    if given not in {None, "sdpa", "flash"}:
        fields.refuse("attention", f"{given} is not modelled with code that calls flash-attn itself", hint="use flash")
    elif obstacle is not None:
        fields.refuse("attention", f"flash-attn, which the code calls itself, cannot run: {obstacle}")
    elif given != "flash":
        resolver.assume("attention", "flash", "the code calls flash-attn itself")
    return "flash"
