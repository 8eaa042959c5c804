"""The closed forms of other planners, each as its own source has it: what they say, beside what the replay does.

None of them predicts here. Figures are bytes of one device, the most loaded one, rounded up. Where a tool divides by
2^20 and prints "MB", or by 2^30 and prints "GB", that is its print and not its arithmetic.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import NamedTuple


class Transformer(NamedTuple):
    """What the closed forms look at in a model: a decoder of equal blocks."""

    layers: int
    hidden_size: int
    attention_heads: int
    intermediate_size: int
    vocabulary_size: int  # with its padding, where a tool pads it
    positions: int = 0  # learned position embeddings, where a tool counts them
    gated: bool = False  # three matrices in the MLP, not two
    rms_norm: bool = False  # norms without bias
    tied_embeddings: bool = True


class Run(NamedTuple):
    """What they look at in a run; the last seven are numbers of devices, stages, parts or micro-batches."""

    sequence_length: int
    micro_batch_size: int
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1  # parts of the model on each stage
    data: int = 1
    micro_batches: int | None = None  # of one optimizer step; None: enough to fill the pipeline
    sequence_parallel: bool = False

    @property
    def tokens(self) -> int:
        """Of one micro-batch."""
        return self.sequence_length * self.micro_batch_size


class Figures(NamedTuple):
    """What a tool says of one device."""

    weights: int
    gradients: int
    optimizer: int  # with the fp32 copy of the weights
    activations: int  # of all micro-batches in flight
    other: int = 0  # buffers, and gradients of activations, where a tool has them

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self)


def up(size: Fraction | int) -> int:
    """Demand rounds up to whole bytes."""
    return ceil(size)


def interleaving(run: Run) -> Fraction:
    """What an interleaved schedule keeps over a plain one: 1 + (p - 1) / (p v).

    arXiv:2205.05198, section 4.2.3, for p stages of v parts each.
    """
    return 1 + Fraction(run.pipeline - 1, run.pipeline * run.virtual)
