"""GLM-4-0414 as transformers 5.23 computes it (models/glm4/modeling_glm4.py): GLM-4 with a normalisation after
attention and MLP too.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import glm
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe, RMSNorm
from vramplan.replay.operators.elementwise import add
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class Block(glm.Block):
    """Glm4DecoderLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor, rotary: Rotary) -> None:
        super().__init__(tape, recipe, mask, position_ids, rotary)
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.post_self_attn_layernorm = RMSNorm(tape, "post_self_attn_layernorm", width, dtype)
        self.post_mlp_layernorm = RMSNorm(tape, "post_mlp_layernorm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = self.post_self_attn_layernorm(hidden)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        hidden = self.mlp(hidden)
        hidden = self.post_mlp_layernorm(hidden)
        hidden = add(residual, hidden)
        return hidden


class Glm4(glm.Glm):
    """Glm4ForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    compiled_graphs = 1
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    block = Block


FORWARD = Glm4
