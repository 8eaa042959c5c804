"""Three textbook models of the activations of a transformer, which disagree by a factor of seven.

All are for one device and no checkpointing, and count the blocks only: no logits, no loss, no temporaries.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.tuples import NamedTuple

BOOK_FRAMEWORK_BYTES = 10_000_000  # "framework" share of a layer in the book's example, at two bytes an element


class ActivationSizes(NamedTuple):
    """What the models look at. A model may need less: `ACTIVATION_MODEL_NEEDS` says what."""

    batch: int
    sequence_length: int
    hidden_size: int
    layers: int
    attention_heads: int = 0


def book(sizes: ActivationSizes, element_bytes: int = 2) -> int:
    """L * (4*B*S*H + B*S*4H elements + 10 MB), as texts quote it; in fp32 everything is doubled, the 10 MB too."""
    tokens = sizes.batch * sizes.sequence_length
    elements = 4 * tokens * sizes.hidden_size + tokens * 4 * sizes.hidden_size
    return sizes.layers * (elements * element_bytes + BOOK_FRAMEWORK_BYTES * element_bytes // 2)


def zero_paper(sizes: ActivationSizes, element_bytes: int = 2) -> int:
    """12*B*S*H*L elements (arXiv:1910.02054, section 3.2, a footnote)."""
    return 12 * sizes.batch * sizes.sequence_length * sizes.hidden_size * sizes.layers * element_bytes


def korthikanti(sizes: ActivationSizes, element_bytes: int = 2) -> int:
    """L * S*B*H*(34 + 5*a*S/H) bytes (arXiv:2205.05198, equation 1), for eager attention in 16 bits.

    Of the 34, two are one-byte dropout masks, and of the 5 one is; masks keep their byte at other element sizes.
    """
    tokens = sizes.batch * sizes.sequence_length
    return sizes.layers * (tokens * sizes.hidden_size * (16 * element_bytes + 2) + score_bytes(sizes, element_bytes))


def score_bytes(sizes: ActivationSizes, element_bytes: int = 2) -> int:
    """The attention scores of one layer, 5*a*S^2*B bytes (the same equation): softmax, its dropout, and the mask."""
    return sizes.attention_heads * sizes.sequence_length**2 * sizes.batch * (2 * element_bytes + 1)


MODELS: dict[str, Callable[[ActivationSizes, int], int]] = {
    "book": book,
    "zero-paper": zero_paper,
    "korthikanti": korthikanti,
}
"""The words of `activation_model`."""


def at_element_size(quoted_fp32_bytes: int, element_bytes: int) -> int:
    """A figure that a text quotes in fp32, at another element size."""
    return -(-quoted_fp32_bytes * element_bytes // 4)
