"""DeiT with an image classification head, as transformers 5.23 computes it (models/deit/modeling_deit.py): ViT with a
second token, of distillation, which a classifier does not read.
"""

from __future__ import annotations

from vramplan.replay.models.modules import SELECTIVE
from vramplan.replay.models.vit import Vit
from vramplan.replay.operators.views import cat, expand, to
from vramplan.replay.tensors import Parameter, Tensor


class Deit(Vit):
    """DeiTForImageClassification, with its loss."""

    selective = SELECTIVE

    def tokens_behind_positions(self) -> None:
        """The token of distillation."""
        width, dtype = self.recipe.shape.hidden_size, self.recipe.weight_dtype
        self.distillation_token = self.tape.parameter("distillation_token", (1, 1, width), dtype)

    def own_tensors(self) -> tuple[Parameter, ...]:
        """Both tokens and the positions."""
        return self.cls_token, self.positions, self.distillation_token

    def behind_tokens(self, patches: Tensor) -> Tensor:
        """DeiTEmbeddings.forward: the patches behind both tokens."""
        each = (patches.shape[0], 1, patches.shape[2])
        cls_tokens = expand(self.cls_token, each)
        distillation_tokens = expand(self.distillation_token, each)
        if patches.tape.autocast is not None:
            patches = to(patches, cls_tokens.dtype)  # autocast promotes the arguments of cat
        return cat([cls_tokens, distillation_tokens, patches], 1)


FORWARD = Deit
