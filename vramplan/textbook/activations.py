"""Three textbook models of the activations of a transformer, which disagree by a factor of seven.

All are for one device and no checkpointing, and count the blocks only: no logits, no loss, no temporaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

BOOK_FRAMEWORK_BYTES = 10_000_000  # "framework" share of a layer in the book's example, at two bytes an element


class Sizes(NamedTuple):
    """What the models look at. A model may need less: `NEEDS` says what."""

    batch: int
    sequence_length: int
    hidden_size: int
    layers: int
    attention_heads: int = 0


def book(sizes: Sizes, element_bytes: int = 2) -> int:
    """L * (4*B*S*H + B*S*4H elements + 10 MB), as texts quote it; in fp32 everything is doubled, the 10 MB too."""
    tokens = sizes.batch * sizes.sequence_length
    elements = 4 * tokens * sizes.hidden_size + tokens * 4 * sizes.hidden_size
    return sizes.layers * (elements * element_bytes + BOOK_FRAMEWORK_BYTES * element_bytes // 2)


def zero_paper(sizes: Sizes, element_bytes: int = 2) -> int:
    """12*B*S*H*L elements (arXiv:1910.02054, section 3.2, a footnote)."""
    return 12 * sizes.batch * sizes.sequence_length * sizes.hidden_size * sizes.layers * element_bytes


def korthikanti(sizes: Sizes, element_bytes: int = 2) -> int:
    """L * S*B*H*(34 + 5*a*S/H) bytes (arXiv:2205.05198, equation 1), for eager attention in 16 bits.

    Of the 34, two are one-byte dropout masks, and of the 5 one is; masks keep their byte at other element sizes.
    """
    tokens = sizes.batch * sizes.sequence_length
    return sizes.layers * (tokens * sizes.hidden_size * (16 * element_bytes + 2) + score_bytes(sizes, element_bytes))


def score_bytes(sizes: Sizes, element_bytes: int = 2) -> int:
    """The attention scores of one layer, 5*a*S^2*B bytes (the same equation): softmax, its dropout, and the mask."""
    return sizes.attention_heads * sizes.sequence_length**2 * sizes.batch * (2 * element_bytes + 1)


MODELS: dict[str, Callable[[Sizes, int], int]] = {"book": book, "zero-paper": zero_paper, "korthikanti": korthikanti}
"""The words of `activation_model`."""

NEEDS = {
    "book": ("layers", "hidden_size"),
    "zero-paper": ("layers", "hidden_size"),
    "korthikanti": ("layers", "hidden_size", "attention_heads"),
}
"""Keys of a model that each needs, besides the sequence length and the micro-batch."""


def score_matrix_bytes(heads: int, sequence_length: int, element_bytes: int = 4) -> int:
    """One S x S matrix per head and sample, as texts quote it: 1.07 GB for 16 heads at 4096 in fp32."""
    return heads * sequence_length**2 * element_bytes


def tiled_attention_bytes(heads: int, sequence_length: int, head_size: int, element_bytes: int = 4) -> int:
    """What a tiled kernel keeps per sample: queries, keys and values (arXiv:2205.14135)."""
    return heads * 3 * sequence_length * head_size * element_bytes


def convolution_bytes(height: int, width: int, channels: int, element_bytes: int = 4) -> int:
    """The output of one convolution for one image, as texts quote it: 3.2 MB for ResNet-50's first."""
    return height * width * channels * element_bytes


def at_element_size(quoted_fp32_bytes: int, element_bytes: int) -> int:
    """A figure that a text quotes in fp32, at another element size."""
    return -(-quoted_fp32_bytes * element_bytes // 4)
