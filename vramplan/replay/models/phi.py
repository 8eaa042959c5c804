"""Phi-1, Phi-1.5 and Phi-2, as transformers 5.23 computes them (models/phi/modeling_phi.py): one normalisation for
attention and MLP, which stand beside each other; rotary positions on a part of each head; a head with a bias.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Rotary, apply_rotary, rotary_of_release
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES_WITH_BIAS,
    SELECTIVE,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    in_tiles,
    output_embedding,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.positions import Positions
from vramplan.replay.models.recomputed import cached
from vramplan.replay.operators.elementwise import add, dropout
from vramplan.replay.operators.views import cat, contiguous, narrow, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class Attention:
    """PhiAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", hidden, query, dtype, bias=True)
        self.k_proj = Linear(tape, "k_proj", hidden, key, dtype, bias=True)
        self.v_proj = Linear(tape, "v_proj", hidden, key, dtype, bias=True)
        self.dense = Linear(tape, "dense", query, hidden, dtype, bias=True)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        query = transpose(view(self.q_proj(hidden), heads), 1, 2)
        key = transpose(view(self.k_proj(hidden), kv_heads), 1, 2)
        value = transpose(view(self.v_proj(hidden), kv_heads), 1, 2)
        cos, sin = rotary_of_release(recipe, rotary, value)
        rotated = cos.shape[-1]
        rest = shape.head_size - rotated
        query_rot, query_pass = narrow(query, -1, rotated), narrow(query, -1, rest)
        key_rot, key_pass = narrow(key, -1, rotated), narrow(key, -1, rest)
        query_rot, key_rot = apply_rotary(query_rot, key_rot, cos, sin)
        query = cat([query_rot, query_pass], -1)
        key = cat([key_rot, key_pass], -1)
        key, value = cached(key, value)
        output, weights = attend(recipe, query, key, value, mask, position_ids)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = self.dense(output)
        return output, weights


class MLP:
    """PhiMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.act = ACTIVATIONS[shape.activation]
        self.fc1 = Linear(tape, "fc1", shape.hidden_size, shape.intermediate_size, dtype, bias=True)
        self.fc2 = Linear(tape, "fc2", shape.intermediate_size, shape.hidden_size, dtype, bias=True)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.fc1(hidden)
        hidden = self.act(hidden)
        hidden = self.fc2(hidden)
        return hidden


class Block:
    """PhiDecoderLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor, rotary: Rotary) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.self_attn = Attention(tape, recipe)
        self.mlp = in_tiles(MLP, tape, recipe)
        self.input_layernorm = LayerNorm(tape, "input_layernorm", width, dtype)
        self.mask, self.rotary = mask, rotary
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        attention, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        attention = dropout(attention, self.p)
        feed_forward = dropout(self.mlp(hidden), self.p)
        hidden = add(add(attention, feed_forward), residual)
        return hidden


class Phi(Positions):
    """PhiForCausalLM, with its loss."""

    knows_old_code = True
    peaks_published = True
    has_tensor_plan = True
    selective = SELECTIVE
    compiled_graphs = 1
    head_losses = HEAD_LOSSES_WITH_BIAS
    takes_padding = True
    takes_virtual_tokens = True
    takes_prefix = True
    takes_packing = True

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
        return [4 * (self.rotated // 2)] * (1 if self.recipe.old_code.one_table else 2)

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.rotated)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        shape, bias = self.recipe.shape, None
        if shape.task == "lm":
            with self.tape.building(HEAD):
                bias = self.tape.parameter("lm_head.bias", (shape.vocabulary_size,), self.recipe.weight_dtype)
        return causal_lm_output(hidden, weight, labels, self.recipe, bias)

    def model(self, input_ids: Tensor) -> Tensor:
        """PhiModel.forward."""
        tape, recipe = self.tape, self.recipe
        embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        mask = mask_of(embeds, recipe)
        embeds = dropout(embeds, recipe.embedding_dropout)
        hidden = embeds
        rotary = self.cosines_and_sines(hidden, self.rotated)
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, position_ids, rotary), hidden)
        hidden = LayerNorm(tape, "final_layernorm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Phi
