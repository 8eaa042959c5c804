"""PEGASUS with a language-model head, as transformers 5.23 computes it (models/pegasus/modeling_pegasus.py): Marian
that normalises before each part of a block and after the last one.
"""

from __future__ import annotations

from vramplan.replay.models.bart import PreNormBlock
from vramplan.replay.models.marian import Marian
from vramplan.replay.operators.ends import embedding
from vramplan.replay.tensors import Tensor


class Pegasus(Marian):
    """PegasusForConditionalGeneration, with its loss."""

    compiled_graphs = None  # no compiled step of it was traced
    reads_first_stack = True
    takes_padding = True
    takes_virtual_tokens = True
    bounded_positions = True
    no_flat_training = Marian.no_flat_training
    block = PreNormBlock
    norms_output = True
    rebinds_position_ids = False
    no_rounded_tables = "whose positions are asked of a class of its own (PegasusSinusoidalPositionalEmbedding)"

    def outer_words(self, ids: Tensor) -> Tensor:
        """What PEFT looks up in `shared`, which is the table that the class gives as that of its inputs."""
        return embedding(ids, self.shared)


FORWARD = Pegasus
