"""M2M100 and NLLB-200 with a language-model head, as transformers 5.23 computes them
(models/m2m_100/modeling_m2m_100.py): mBART whose positions are rows of a buffer, which grows with the sequence, and
whose embeddings are not normalised.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.bart import POSITION_OFFSET, Bart, PreNormBlock
from vramplan.replay.models.modules import LayerNorm
from vramplan.replay.models.roberta import counted_places
from vramplan.replay.observers import Sharding, VirtualTokens
from vramplan.replay.tensors import INT64, Tensor

PADDING = 1  # pad_token_id of the checkpoints, and of the class


class M2M100(Bart):
    """M2M100ForConditionalGeneration, with its loss."""

    compiled_graphs = None  # no compiled step of it was traced
    reads_first_stack = True
    takes_padding = True
    takes_virtual_tokens = True
    block = PreNormBlock
    norms_embeddings = False
    norms_output = True
    biases_logits = False
    no_rounded_tables = "whose tokens are looked up by a class of its own that scales them (M2M100ScaledWordEmbedding)"

    def buffers(self) -> list[int]:
        """Bytes of the buffers: positions of each stack (M2M100SinusoidalPositionalEmbedding.make_weights)."""
        recipe = self.recipe
        lengths = recipe.sequence_length, recipe.target_length or recipe.sequence_length
        return [self.rows(length) * recipe.shape.hidden_size * recipe.buffer_dtype.itemsize for length in lengths]

    def rows(self, length: int) -> int:
        """Positions that a stack has: those of the configuration, or as many as a longer sequence needs."""
        made, needed = self.recipe.shape.max_positions + POSITION_OFFSET, PADDING + 1 + length
        return made if needed <= made else needed + POSITION_OFFSET

    def encoded_positions(self, ids: Tensor) -> Tensor:
        """M2M100SinusoidalPositionalEmbedding.forward: rows for each token, without a gradient. Embedded tokens have
        those of their places.
        """
        given = self.tape.role(VirtualTokens).puts_some
        return self.rows_of(ids, self.tape.new("add", ids.shape, INT64, True) if given else counted_places(ids))

    def rows_of(self, ids: Tensor, _places: Tensor) -> Tensor:
        """Rows of the buffer."""
        tape, (batch, length) = self.tape, ids.shape
        return tape.new("index_select", (batch, length, self.recipe.shape.hidden_size), self.recipe.buffer_dtype, True)

    def embedded(self, words: Tensor, positions: Tensor, norm: LayerNorm | None) -> Tensor:
        """The state before the first block, which sines in fp32 promote, and which a policy of FSDP2 casts."""
        return self.tape.role(Sharding).taken(super().embedded(words, positions, norm))

    def position_ids(self, length: int) -> None:
        """There are none beside those of the tokens."""

    def decoded_positions(self, ids: Tensor) -> Tensor:
        """Those of the decoder, whose tokens it has embedded itself."""
        return self.rows_of(ids, counted_places(ids))


FORWARD = M2M100
