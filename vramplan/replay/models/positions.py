"""Positions of the tokens of rotary families: from 0 to the length, or those that come with packed sequences."""

from __future__ import annotations

from vramplan.replay.models.llama import Rotary, rotary_embedding
from vramplan.replay.models.modules import Recipe
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.packing import packed_rotary
from vramplan.replay.tensors import INT64, Tensor


class Positions:
    """What a family's forward pass does with positions; `packed` are those that the caller gives."""

    tape: Tape
    recipe: Recipe
    packed: Tensor | None = None

    def take(self, given: Tensor | None) -> None:
        """What is given beside token ids and labels: positions of packed sequences, or a mask of padded ones."""
        self.packed = given if self.recipe.packed else None

    def position_ids(self, input_ids: Tensor) -> Tensor:
        """Those that are given, or 0 to the length, made anew.

        Source: transformers/models/gpt_neox/modeling_gpt_neox.py, GPTNeoXModel.forward, and those like it.
        """
        if self.packed is not None:
            return self.packed
        return self.tape.new("arange", (1, input_ids.shape[1]), INT64, False)

    def cosines_and_sines(self, hidden: Tensor, size: int) -> Rotary:
        """Those of all positions, one list for all sequences or one for each.

        Source: transformers/models/gpt_neox/modeling_gpt_neox.py, GPTNeoXRotaryEmbedding.forward.
        """
        if self.packed is not None:
            return packed_rotary(self.packed, size, hidden)
        return rotary_embedding(hidden, size)
