"""What models have in common whose blocks read a sequence token by token, and leave padding out by its mask."""

from __future__ import annotations

from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import Output
from vramplan.replay.tensors import BOOL, Tensor


class Recurrent(Llama):
    """A decoder some of whose blocks are handed the mask of padded sequences itself."""

    padding: Tensor | None = None  # the mask that comes with padded sequences

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.padding = given if self.recipe.padded else None
        return super().__call__(input_ids, labels, given)


def recurrent_mask(mask: Tensor | None) -> Tensor | None:
    """create_recurrent_attention_mask of masking_utils.py: the mask of padded sequences itself, if one is padded."""
    if mask is None:
        return None
    ones = mask.tape.new("eq", mask.shape, BOOL, True)
    _all = mask.tape.new("all", (), BOOL, False)
    del ones
    return mask
