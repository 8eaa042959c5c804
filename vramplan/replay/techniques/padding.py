"""The masks that transformers 5.23 makes of padded sequences (masking_utils.py), where one token or more is padding.

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.observers import KeyValues
from vramplan.replay.recorder import Tape
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import BOOL, INT64, Shape, Tensor


def padded_mask(
    hidden: Tensor, *, causal: bool, additive: bool, windowed: bool = False, queries: int | None = None
) -> Tensor:
    """The mask of a padded batch: [B, 1, S, S], boolean, or with `additive` in the dtype of the embeddings.

    `windowed` says that it is a causal one within a sliding window, `queries` how many tokens attend to those of
    `hidden`, where they are others.

    Source: masking_utils.py, create_causal_mask, create_bidirectional_mask, sdpa_mask and eager_mask.
    """
    tape = hidden.tape
    batch, length, _ = hidden.shape
    rows = length if queries is None else queries
    length += tape.role(KeyValues).past
    seen_shape = (1, 1, rows, length if causal else 1)
    _padding = tape.new("to", (batch, length), BOOL, True)
    _indices = index_tensors(tape, batch, length, queries=rows)
    seen = _within(tape, seen_shape) if windowed else tape.new("le", seen_shape, BOOL, False)
    both = tape.new("bitwise_and", seen_shape, BOOL, False)
    del seen
    tokens = tape.new("index", (batch, 1, 1, length), BOOL, True)
    mask = tape.new("bitwise_and", (batch, 1, rows, length), BOOL, True)
    del both, tokens
    return tape.new("where", mask.shape, hidden.dtype, True) if additive else mask


def _within(tape: Tape, shape: Shape) -> Tensor:
    """sliding_window_causal_mask_function: and_masks of the window and the causal mask."""
    mask = tape.new("ones", (), BOOL, False)
    for comparison in ("gt", "le"):
        other = tape.new(comparison, shape, BOOL, False)
        mask = tape.new("bitwise_and", shape, BOOL, False)
        del other
    return mask


def index_tensors(
    tape: Tape, batch: int, length: int, *, heads: bool = False, queries: int | None = None
) -> tuple[Tensor, ...]:
    """The indices of sequences, queries and keys (masking_utils.py, sdpa_mask); with `heads`, that of the head too."""
    sequences = tape.new("arange", (batch,), INT64, True)
    one = (tape.new("arange", (1,), INT64, False),) if heads else ()
    lengths = (length if queries is None else queries, length)
    return sequences, *one, *(tape.new("add", (number,), INT64, False) for number in lengths)


class MaskedApart(Technique):
    """The mask of padded or packed sequences beside a replay without one, as long as the iteration lasts.

    It is one for each sequence, and one more where some blocks have a window; the additive masks of eager attention
    over past tokens are as large without padding, and in the replay.
    """

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """The mask of the tokenizer, and those that are made of it."""
        setup, shape = self.setup, self.setup.model
        length = setup.sequence_length
        width = 1 if setup.attention != "eager" else (self.precision.autocast or self.precision.weights).itemsize
        masks = 1 if shape.sliding_window is None or length < shape.sliding_window else 2
        if setup.attention == "eager" and shape.task in ("lm", "cls"):  # those of other tasks are in the replay
            masks = 0
        return [
            StandingState("inputs", 0, length * INT64.itemsize),
            StandingState("buffers", 0, masks * length * length * width),
        ]
