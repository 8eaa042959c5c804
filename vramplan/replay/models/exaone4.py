"""EXAONE 4, as transformers 5.23 computes it (models/exaone4/modeling_exaone4.py): Llama with norms after attention and
feed-forward layer instead of before, and with normalised queries and keys. Of the larger model three of four blocks
have a window, and the others no positions."""

from __future__ import annotations

from vramplan.replay.models.apertus import NormedHeads
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, RMSNorm
from vramplan.replay.models.windows import both_masks, has_window, windowed_blocks
from vramplan.replay.observers import Sharding
from vramplan.replay.operators.elementwise import add
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape


class Block(LlamaBlock):
    """Exaone4DecoderLayer."""

    attention = NormedHeads
    norm = RMSNorm
    norm_names = ("post_attention_layernorm", "post_feedforward_layernorm")

    def __call__(self, hidden: Tensor) -> Tensor:
        after_attention, after_mlp = self.norms
        residual = hidden
        rotary = self.rotary if self.turns else None
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, rotary)
        hidden = after_attention(hidden)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.mlp(hidden.tape.role(Sharding).given(hidden))
        hidden = after_mlp(hidden)
        hidden = add(residual, hidden)
        return hidden


class Exaone4(Llama):
    """Exaone4ForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window; each kind has its mask."""
        return has_window(shape, block)

    def masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The masks of blocks without and with a window: the first is always made."""
        if windowed_blocks(self.recipe.shape):
            return both_masks(hidden, self.recipe)
        return mask_of(hidden, self.recipe), None


FORWARD = Exaone4
