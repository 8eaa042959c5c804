"""Sliding windows: which blocks have one, and the masks that they make (transformers 5.23, masking_utils.py).

A window that the sequence does not reach changes nothing. One that it reaches is a mask; eager attention has a mask of
the same size anyway, fused attention then has one where it had none.
"""

from __future__ import annotations

from vramplan.replay.models.gpt2 import additive_mask, mask_behind_past, mask_of
from vramplan.replay.models.modules import Recipe
from vramplan.replay.techniques.padding import index_tensors, padded_mask
from vramplan.replay.tensors import BOOL, Tensor, normalised
from vramplan.values.model import ModelShape


def has_window(shape: ModelShape, block: int) -> bool:
    """Whether a block has a window, as `layer_types` of the configuration classes say it.

    All blocks of Mistral and Phi-3 (modeling_mistral.py, MistralModel.forward), those from `sliding_window_start` on of
    Qwen2 and Qwen3 (configuration_qwen2.py), all but every so many of Gemma 3 (configuration_gemma3.py), and of
    ModernBERT, whose first block is the first that has none (configuration_modernbert.py).
    """
    if shape.sliding_window is None:
        return False
    start = shape.sliding_window_start or 0
    if shape.sliding_window_pattern is not None:
        return block >= start and (block - start + 1) % shape.sliding_window_pattern != 0
    return block >= start


def windowed_blocks(shape: ModelShape) -> int:
    """How many blocks have a window."""
    return sum(has_window(shape, i) for i in range(shape.layers))


def equal_windows(shape: ModelShape) -> bool:
    """Whether all blocks have a window, or none."""
    return windowed_blocks(shape) in (0, shape.layers)


def reaches_window(shape: ModelShape, sequence_length: int) -> bool:
    """Whether a sequence is as long as the window: only then there is a mask (_ignore_causal_mask_sdpa)."""
    return shape.sliding_window is not None and sequence_length >= shape.sliding_window


def are_alike(recipe: Recipe) -> bool:
    """Whether blocks with and without a window compute the same: with eager attention both have a mask."""
    return recipe.attention == "eager" or not reaches_window(recipe.shape, recipe.sequence_length)


def masks_of(hidden: Tensor, recipe: Recipe) -> tuple[Tensor | None, Tensor | None]:
    """The masks of blocks without and with a window; None where fused attention needs none.

    The mask that all blocks share is made only if there are such blocks, but for Qwen2 and Qwen3, whose code always
    makes the one without a window (modeling_qwen2.py, Qwen2Model.forward).
    """
    shape = recipe.shape
    windows = windowed_blocks(shape)
    alone = windows == shape.layers and shape.sliding_window_start is None
    if recipe.padded or recipe.masks_packing:
        full = None if alone else mask_of(hidden, recipe)
        return full, mask_of(hidden, recipe, windowed=True) if windows else None
    if recipe.attention == "eager":
        full = None if alone else additive_mask(hidden, recipe)
        return full, additive_mask(hidden, recipe) if windows else None
    full = None if recipe.attention == "flash" else mask_behind_past(hidden)
    return full, reached_mask(hidden, recipe) if windows and not are_alike(recipe) else None


def masks_of_kinds(hidden: Tensor, recipe: Recipe) -> tuple[Tensor | None, Tensor | None]:
    """The masks of blocks without and with a window, where the code makes both whatever blocks there are."""
    return mask_of(hidden, recipe), mask_of(hidden, recipe, windowed=True)


def both_masks(hidden: Tensor, recipe: Recipe) -> tuple[Tensor | None, Tensor | None]:
    """The same with whatever attention: fused attention needs none but for windows that are reached, or a padding."""
    if recipe.shape.sliding_window is None:
        return mask_of(hidden, recipe), None
    if recipe.attention == "eager" or recipe.padded or recipe.masks_packing:
        return masks_of_kinds(hidden, recipe)
    return None, None if are_alike(recipe) else reached_mask(hidden, recipe)


def reached_mask(hidden: Tensor, recipe: Recipe) -> Tensor:
    """The mask of fused attention where a window is reached: of each sample where inputs come with a mask of ones."""
    if recipe.masked:
        return padded_mask(hidden, causal=True, additive=False, windowed=True)
    return window_mask(hidden)


def window_mask(hidden: Tensor) -> Tensor:
    """The boolean mask of fused attention [B, 1, S, S], a view of one [1, 1, S, S] (masking_utils.py, sdpa_mask)."""

    tape = hidden.tape
    batch, length, _ = hidden.shape
    whole = (1, 1, length, length)
    _indices = index_tensors(tape, batch, length, heads=True)
    mask = tape.new("ones", (), BOOL, False)
    for comparison in ("gt", "le"):  # within the window, and not ahead: and_masks of both
        other = tape.new(comparison, whole, BOOL, False)
        mask = tape.new("bitwise_and", whole, BOOL, False)
        del other
    shape = (batch, 1, length, length)
    return mask.alias(shape, normalised(shape, (0, length * length, length, 1)), None)
