"""Blocks whose forward pass is a checkpoint, where hooks of the module stay outside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.autograd import checkpoint
from vramplan.replay.models.blocks import Segmented, with_attributes
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class Checkpointed:
    """A block that is computed again in backward.

    What the checkpoint is handed beside the hidden state are attributes of this one, as they are of the block.
    Source: transformers 5.23, modeling_layers.py, GradientCheckpointingLayer.
    """

    def __init__(self, tape: Tape, block: Any, names: Sequence[str], keeps: str | None = None) -> None:
        self.tape, self.inner, self.names = tape, block, names
        self.keeps = keeps  # which results a selective checkpoint keeps
        self.floats = getattr(block, "floats", ())
        for name in names:
            setattr(self, name, getattr(block, name))
            setattr(block, name, None)

    def __call__(self, hidden: Any) -> Any:
        """The checkpoint runs."""
        inner, names = self.inner, self.names

        def run(hidden: Any, *handed: Tensor) -> Any:
            return with_attributes(inner, names, handed, hidden)

        handed = (getattr(self, name) for name in names)
        return checkpoint(self.tape, Segmented(run, {0: inner}), hidden, *handed, keeps=self.keeps)


def checkpointed_blocks(tape: Tape, make: Callable[[int], Any], names: Sequence[str]) -> Callable[[int], Checkpointed]:
    """What makes blocks that are checkpoints, from what makes blocks."""
    return lambda number: Checkpointed(tape, make(number), names)
