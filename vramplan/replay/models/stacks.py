"""What models of two stacks of blocks have in common."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.modules import LOGITS, Recipe, Segment
from vramplan.replay.tensors import BOOL, INT64, DType, Shape, Tensor


def split_at(segments: Sequence[Segment], layers: int) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """The segments of the first `layers` blocks, and those of the blocks after them."""
    first: list[Segment] = []
    rest = list(segments)
    missing = layers
    while missing:
        segment = rest.pop(0)
        size = segment.times * segment.blocks
        if size > missing:
            before, after = _cut(segment, missing)
            rest.insert(0, after)
            segment, size = before, missing
        first.append(segment)
        missing -= size
    return tuple(first), tuple(rest)


def _cut(segment: Segment, blocks: int) -> tuple[Segment, Segment]:
    if not segment.checkpointed:
        return segment._replace(times=1, blocks=blocks), segment._replace(
            times=1, blocks=segment.times * segment.blocks - blocks
        )
    times, part = divmod(blocks, segment.blocks)
    if part:
        raise ValueError("a checkpoint reaches from one stack into the other")
    return segment._replace(times=times), segment._replace(times=segment.times - times)


def text_pair(recipe: Recipe) -> tuple[tuple[str, Shape, DType], ...]:
    """The inputs: token ids of the encoder, and labels, which the decoder's token ids are made from; with padding, the
    mask of the encoder's tokens. The decoder's own are padded behind what the loss looks at, and nobody masks them.

    Where the caller makes the loss of the logits the model is given no labels, and the collator made the ids.
    Source: transformers 5.23, data/data_collator.py, DataCollatorForSeq2Seq.
    """
    target = recipe.target_length or recipe.sequence_length
    given = ("input_ids", (recipe.sequence_length,), INT64), ("labels", (target,), INT64)
    more: tuple[tuple[str, Shape, DType], ...] = ()
    if recipe.loss == LOGITS:
        more = (("decoder_input_ids", (target,), INT64),)
    if recipe.padded:
        more = (*more, ("attention_mask", (recipe.sequence_length,), INT64))
    return *given, *more


def shift_right(labels: Tensor) -> Tensor:
    """The decoder's token ids: the labels shifted by one, with padding for those that the loss ignores
    (models/t5/modeling_t5.py, T5PreTrainedModel._shift_right; models/bart/modeling_bart.py, shift_tokens_right).
    """
    tape, (batch, length) = labels.tape, labels.shape
    shifted = tape.new("new_zeros", (batch, length), INT64, True)
    tape.new("clone", (batch, length - 1), INT64, True)
    tape.new("eq", (batch, length), BOOL, True)
    return shifted
