"""GLM-4-0414 as transformers 5.23 computes it (models/glm4/modeling_glm4.py): GLM-4 with a normalisation after
attention and MLP too.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import glm
from vramplan.replay.models.four_norms import Norm, SandwichBlock
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE


class Block(SandwichBlock, glm.Block):
    """Glm4DecoderLayer."""

    norm_names = ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")

    def around(self) -> tuple[Norm, ...]:
        """The norms in the order in which they run: the second one is made for the feed-forward layer."""
        before_attention, before_mlp, after_attention, after_mlp = self.norms
        return before_attention, after_attention, before_mlp, after_mlp


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
