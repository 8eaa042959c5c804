"""GLM-4 as transformers 5.23 computes it (models/glm/modeling_glm.py): Llama's attention with a fused gate and up
projection, and rotary positions that turn neighbouring elements of the first part of each head.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import (
    HEAD_LOSSES,
    SELECTIVE,
    Output,
    Recipe,
    RMSNorm,
    output_embedding,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.phi3 import MLP
from vramplan.replay.models.positions import Positions
from vramplan.replay.operators.elementwise import add, mul, neg
from vramplan.replay.operators.indexing import every_second, stack_last
from vramplan.replay.operators.views import cat, narrow, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


def rotate_half(x: Tensor) -> Tensor:
    """rotate_half: of each pair minus the second element, then the first."""
    first, second = every_second(x), every_second(x)
    return view(stack_last([neg(second), first]), x.shape)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: each cosine twice, the first part of each head turned, the rest handed through."""
    tape, shape = query.tape, (cos.shape[0], 1, *cos.shape[1:])
    cos = tape.new("repeat_interleave", shape, cos.dtype, cos.batched)
    sin = tape.new("repeat_interleave", shape, sin.dtype, sin.batched)
    rotated = shape[-1]
    rest = query.shape[-1] - rotated
    query_rot, query_pass = narrow(query, -1, rotated), narrow(query, -1, rest)
    key_rot, key_pass = narrow(key, -1, rotated), narrow(key, -1, rest)
    query_embed = add(mul(query_rot, cos), mul(rotate_half(query_rot), sin))
    key_embed = add(mul(key_rot, cos), mul(rotate_half(key_rot), sin))
    query_embed = cat([query_embed, query_pass], -1)
    key_embed = cat([key_embed, key_pass], -1)
    return query_embed, key_embed


class Attention(LlamaAttention):
    """GlmAttention."""

    turn = staticmethod(apply_rotary)


class Block(LlamaBlock):
    """GlmDecoderLayer."""

    attention = Attention
    feed_forward = MLP


class Glm(Positions):
    """GlmForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    compiled_graphs = 1
    head_losses = HEAD_LOSSES
    takes_padding = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    block = Block

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        self.rotated = int(shape.head_size * shape.partial_rotary_factor)
        with tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter(
                "embed_tokens.weight", (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype
            )

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice, in fp32."""
        return [4 * (self.rotated // 2)] * 2

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.rotated)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """GlmModel.forward."""
        tape, recipe, block = self.tape, self.recipe, self.block
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        mask = mask_of(_embeds, recipe)
        hidden = _embeds
        rotary = self.cosines_and_sines(hidden, self.rotated)
        hidden = run_blocks(tape, recipe.segments, lambda i: block(tape, recipe, mask, position_ids, rotary), hidden)
        hidden = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Glm
