"""Marian with a language-model head, as transformers 5.23 computes it (models/marian/modeling_marian.py): BART whose
positions are a table of sines that is not trained, and whose embeddings are not normalised.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.bart import Bart
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.observers import VirtualTokens
from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.tensors import INT64, Tensor


class Marian(Bart):
    """MarianMTModel, with its loss."""

    compiled_graphs = None  # no compiled step of it was traced
    reads_first_stack = True
    takes_padding = True
    takes_virtual_tokens = True
    bounded_positions = True
    norms_embeddings = False
    rebinds_mask = False
    rebinds_position_ids = True
    no_flat_training = "a flat parameter cannot hold its frozen position embeddings beside trained weights"
    no_rounded_tables = "whose positions are asked of a class of its own (MarianSinusoidalPositionalEmbedding)"

    def words(self, ids: Tensor) -> Tensor:
        """The embeddings of tokens, which the stack scales, also by 1."""
        return mul_scalar(embedding(ids, self.shared))

    def encoded_words(self, ids: Tensor) -> Tensor:
        """Those of the encoder, which scales none that it is given embedded."""
        role = self.tape.role(VirtualTokens)
        return role.embedded(ids, self.outer_words) if role.puts_some else self.words(ids)

    def outer_words(self, ids: Tensor) -> Tensor:
        """What PEFT looks up in `shared`, which is no module that the switch of checkpoints asks for gradients."""
        return embedding(ids, self.shared, returned=False)

    def encoded_positions(self, ids: Tensor) -> Tensor:
        """MarianSinusoidalPositionalEmbedding.forward: looked up once."""
        return self.look_up(self.tape.new("arange", (ids.shape[1],), INT64, False))

    def decoded_positions(self, ids: Tensor) -> Tensor:
        """The same of places that the decoder made."""
        return self.look_up(self.tape.constant((ids.shape[1],), INT64, False))

    def look_up(self, ids: Tensor) -> Tensor:
        """Rows of the table, without a gradient."""
        shape = self.recipe.shape
        rows = (shape.max_positions, shape.hidden_size)
        with self.tape.building(EMBEDDINGS):
            table = self.tape.parameter("embed_positions.weight", rows, self.recipe.weight_dtype, trainable=False)
        return embedding(ids, table, returned=False)


FORWARD = Marian
