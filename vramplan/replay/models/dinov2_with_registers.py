"""DINOv2 with registers and an image classification head, as transformers 5.23 computes it
(models/dinov2_with_registers/modeling_dinov2_with_registers.py): DINOv2 with four learned tokens that have no places.
"""

from __future__ import annotations

from vramplan.replay.models.dinov2 import Dinov2
from vramplan.replay.operators.views import after, cat, expand, narrow
from vramplan.replay.tensors import Parameter, Tensor

REGISTERS = 4  # num_register_tokens, the same in every released checkpoint


class Dinov2WithRegisters(Dinov2):
    """Dinov2WithRegistersForImageClassification, with its loss."""

    registers = REGISTERS
    crops_to = 224  # its processor is that of DINOv2

    def tokens_behind_positions(self) -> None:
        """The registers."""
        width, dtype = self.recipe.shape.hidden_size, self.recipe.weight_dtype
        self.register_tokens = self.tape.parameter("register_tokens", (1, REGISTERS, width), dtype)

    def own_tensors(self) -> tuple[Parameter, ...]:
        """The registers too."""
        return *super().own_tensors(), self.register_tokens

    def among_registers(self, embeddings: Tensor) -> Tensor:
        """Dinov2WithRegistersEmbeddings.forward: the registers behind the class token, which is a copy of all."""
        batch, _, width = embeddings.shape
        registers = expand(self.register_tokens, (batch, REGISTERS, width))
        return cat([narrow(embeddings, 1, 1), registers, after(embeddings, 1, 1)], 1)


FORWARD = Dinov2WithRegisters
