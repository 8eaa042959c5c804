"""PEGASUS with a language-model head, as transformers 5.23 computes it (models/pegasus/modeling_pegasus.py): Marian
that normalises before each part of a block and after the last one.
"""

from __future__ import annotations

from vramplan.replay.models.bart import PreNormBlock
from vramplan.replay.models.marian import Marian


class Pegasus(Marian):
    """PegasusForConditionalGeneration, with its loss."""

    compiled_graphs = None  # no compiled step of it was traced
    reads_first_stack = True
    takes_padding = True
    bounded_positions = True
    no_flat_training = Marian.no_flat_training
    block = PreNormBlock
    norms_output = True
    rebinds_position_ids = False
    no_rounded_tables = "whose positions are asked of a class of its own (PegasusSinusoidalPositionalEmbedding)"


FORWARD = Pegasus
