"""What older releases of Transformers do in every model that is built like Llama, and today's does not."""

from __future__ import annotations

from vramplan.tuples import NamedTuple


class OldCode(NamedTuple):
    """Which code of older releases runs; as it stands, none."""

    repeats_keys: bool = False  # and values for their query heads, before every fused kernel
    copies_heads: bool = False  # queries, keys and values are made contiguous before it
    shifts_logits: bool = False  # the loss copies the logits of all tokens but the last, and pads no labels
    casts_logits: bool = False  # forward returns its logits in fp32
    one_table: bool = False  # of inverse frequencies, of which today's keep the original too
    one_mask: bool = False  # a causal mask is one for all sequences of a batch

    def without_sdpa(self) -> OldCode:
        """The same where the flash-attn package is called, which takes keys and values as they are."""
        return self._replace(repeats_keys=False, copies_heads=False)


NEWEST = OldCode()
