"""Packed sequences: several short ones in a row of tokens, told apart by position ids that begin anew.

Transformers finds them in the position ids and makes a mask that keeps them apart (masking_utils.py). Names that start
with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import index_tensors
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor

WINDOW = ("gt", 1), ("le", 0)
CHUNK = ("eq", 2), ("le", 0)
"""What is compared within a window and within chunks, and how many of its sides are moved first."""


def packed_mask(hidden: Tensor, *, additive: bool, windowed: bool = False, chunked: bool = False) -> Tensor:
    """The mask of packed sequences: [B, 1, S, S], boolean, or with `additive` in the dtype of the embeddings.

    `windowed` says that it is made within a sliding window, which the sequence does not reach, `chunked` that it is
    made within chunks, which begin anew in each sequence.
    Source: masking_utils.py, find_packed_sequence_indices, packed_sequence_compatibility_function, sdpa_mask.
    """
    tape = hidden.tape
    batch, length, _ = hidden.shape
    _packed = _sequence_numbers(tape, batch, length)
    _indices = index_tensors(tape, batch, length, heads=True)
    shape = (batch, 1, length, length)
    ones = tape.new("new_ones", (), BOOL, False)
    same = _compared(tape, "eq", batch, length)
    mask = tape.new("bitwise_and", shape, BOOL, True)
    del ones, same
    comparisons = WINDOW if windowed else CHUNK if chunked else ()
    earlier = _within(tape, batch, length, comparisons) if comparisons else _compared(tape, "le", batch, length)
    mask = tape.new("bitwise_and", shape, BOOL, True)
    del earlier
    return tape.new("where", shape, hidden.dtype, True) if additive else mask


def packed_rotary(position_ids: Tensor, head_size: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """LlamaRotaryEmbedding.forward over positions of each sequence: cosines and sines [B, S, d], without gradients."""
    cos, sin = fp32_packed_rotary(position_ids, head_size)
    return to(cos, hidden.dtype), to(sin, hidden.dtype)


def fp32_packed_rotary(position_ids: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """The same before they are cast to the dtype of the hidden states."""
    tape = position_ids.tape
    batch, length = position_ids.shape
    wide, half = (batch, length, head_size), (batch, length, head_size // 2)
    positions = tape.new("to", (batch, length, 1), FP32, True)
    frequencies = tape.new("mul", half, FP32, True)
    del positions
    angles = tape.new("cat", wide, FP32, True)
    cos = tape.new("cos", wide, FP32, True)
    cos = tape.new("mul", wide, FP32, True)
    sin = tape.new("sin", wide, FP32, True)
    sin = tape.new("mul", wide, FP32, True)
    del frequencies, angles
    return cos, sin


def _sequence_numbers(tape: Tape, batch: int, length: int) -> Tensor:
    """find_packed_sequence_indices: which of its sequences each token belongs to."""
    _first = tape.new("sub", (batch, 1), INT64, True)
    longer = tape.new("cat", (batch, length + 1), INT64, True)
    _difference = tape.new("sub", (batch, length), INT64, True)
    del longer
    begins = tape.new("ne", (batch, length), BOOL, True)
    numbers = tape.new("cumsum", (batch, length), INT64, True)
    del begins
    return numbers


def _compared(tape: Tape, operator: str, batch: int, length: int) -> Tensor:
    """A comparison of what two lists of indices give for queries and for keys."""
    _queries = tape.new("index", (batch, 1, length, 1), INT64, True)
    _keys = tape.new("index", (batch, 1, 1, length), INT64, True)
    return tape.new(operator, (batch, 1, length, length), BOOL, True)


def _within(tape: Tape, batch: int, length: int, comparisons: tuple[tuple[str, int], ...]) -> Tensor:
    """sliding_window_causal_mask_function and chunked_causal_mask_function, of the remapped positions."""
    shape = (batch, 1, length, length)
    _queries = tape.new("index", (batch, 1, length, 1), INT64, True)
    _keys = tape.new("index", (batch, 1, 1, length), INT64, True)
    mask = tape.new("new_ones", (), BOOL, False)
    for comparison, moved in comparisons:
        others = [tape.new("sub", (batch, 1, length, 1), INT64, True) for _ in range(moved)]
        other = tape.new(comparison, shape, BOOL, True)
        others.clear()
        mask = tape.new("bitwise_and", shape, BOOL, True)
        del other
    return mask
