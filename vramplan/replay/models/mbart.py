"""mBART with a language-model head, as transformers 5.23 computes it (models/mbart/modeling_mbart.py): BART that
normalises before each part of a block and after the last one, and whose decoder begins with the last token.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.bart import Bart, PreNormBlock
from vramplan.replay.tensors import BOOL, INT64, Tensor


class MBart(Bart):
    """MBartForConditionalGeneration, with its loss."""

    compiled_graphs = None  # no compiled step of it was traced
    reads_first_stack = True
    takes_padding = True
    takes_virtual_tokens = True
    block = PreNormBlock
    norms_output = True
    rebinds_mask = False
    rebinds_position_ids = True
    no_rounded_tables = "whose positions are asked of a class of its own (MBartLearnedPositionalEmbedding)"

    def shifted(self, labels: Tensor) -> Tensor:
        """shift_tokens_right: the last token that is no padding, a language, comes first."""
        tape, (batch, length) = labels.tape, labels.shape
        shifted = tape.new("clone", (batch, length), INT64, True)
        tape.new("eq", (batch, length), BOOL, True)
        kept = tape.new("ne", (batch, length), BOOL, True)
        count = tape.new("sum", (batch,), INT64, True)
        del kept
        _last = tape.new("sub", (batch,), INT64, True)
        del count
        _first = tape.new("gather", (batch, 1), INT64, True)
        tape.new("clone", (batch, length - 1), INT64, True)
        return shifted


FORWARD = MBart
