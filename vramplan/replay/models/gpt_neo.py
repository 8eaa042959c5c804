"""GPT-Neo with a language-model head, as transformers 5.23 computes it (models/gpt_neo/modeling_gpt_neo.py): attention
whose scores are made in fp32 and masked by a buffer of each block, which has the block's window in it.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE_OP,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    in_tiles,
    output_embedding,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.observers import KeyValues
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.biased import where
from vramplan.replay.operators.elementwise import add, dropout
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor


class Attention:
    """GPTNeoSelfAttention, and GPTNeoFlashAttention2: only its output projection has a bias."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=False)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=False)
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=False)
        self.out_proj = Linear(tape, "out_proj", width, width, dtype, bias=True)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        query = self.q_proj(hidden)
        key = self.k_proj(hidden)
        value = self.v_proj(hidden)
        query, key, value = self.heads(query), self.heads(key), self.heads(value)
        key, value = key.tape.role(KeyValues).kept(key, value)
        if self.recipe.attention == "flash":
            output = scaled_dot_product(query, key, value, "flash", self.recipe.attention_dropout)
            weights = transpose(output, 1, 2)  # GPTNeoFlashAttention2 gives its result in their place
        else:
            output, weights = self.attend(query, key, value, mask)
        output = view(contiguous(transpose(output, 1, 2)), hidden.shape)
        output = self.out_proj(output)
        output = dropout(output, self.recipe.hidden_dropout)
        return output, weights

    def heads(self, x: Tensor) -> Tensor:
        """_split_heads."""
        batch, length, width = x.shape
        size = self.recipe.shape.head_size
        return transpose(view(x, (batch, length, width // size, size)), 1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """_attn: the mask of the model is added to scores that the buffer has masked already."""
        tape, length = query.tape, query.shape[2]
        query = to(query, FP32)
        key = to(key, FP32)
        weights = matmul(query, transpose(key, -1, -2))
        _mask_value = tape.new("to", (), weights.dtype, False)
        weights = where(tape.constant((1, 1, length, length), BOOL, False), weights)
        if mask is not None:
            weights = add(weights, mask)
        weights = softmax(weights)
        weights = to(weights, value.dtype)
        weights = dropout(weights, self.recipe.attention_dropout)
        output = matmul(weights, value)
        return output, weights


class MLP:
    """GPTNeoMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.c_fc = Linear(tape, "c_fc", shape.hidden_size, shape.intermediate_size, dtype, bias=True)
        self.c_proj = Linear(tape, "c_proj", shape.intermediate_size, shape.hidden_size, dtype, bias=True)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.c_fc(hidden)
        hidden = self.act(hidden)
        hidden = self.c_proj(hidden)
        return dropout(hidden, self.p)


class Block:
    """GPTNeoBlock."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.ln_1 = LayerNorm(tape, "ln_1", width, dtype)
        self.attn = Attention(tape, recipe)
        self.ln_2 = LayerNorm(tape, "ln_2", width, dtype)
        self.mlp = in_tiles(MLP, tape, recipe)
        self.mask = mask

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        residual = hidden
        hidden = self.ln_1(hidden)
        attention, weights = self.attn(hidden, self.mask)
        hidden = add(attention, residual)
        residual = hidden
        hidden = self.ln_2(hidden)
        feed_forward = self.mlp(hidden)
        hidden = add(residual, feed_forward)
        return hidden, weights


class GPTNeo:
    """GPTNeoForCausalLM, with its loss."""

    block_lists = ("h",)
    selective = SELECTIVE_OP
    no_fused_attention = "its code has no SDPA"
    package_flash = (
        "its class for FlashAttention-2 calls the flash-attn package, without the windows of its blocks; composed, and "
        "never traced"
    )
    holds_outputs = True  # the loop holds a block's weights until the next one returns
    head_losses = HEAD_LOSSES
    takes_padding = takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.wte = tape.parameter("wte", (shape.vocabulary_size, shape.hidden_size), dtype)
            self.wpe = tape.parameter("wpe", (shape.max_positions, shape.hidden_size), dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: which positions see which, of each block, one byte each."""
        shape = self.recipe.shape
        return [shape.max_positions**2] * shape.layers

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        hidden = self.transformer(input_ids, given if self.recipe.packed else None)
        weight = output_embedding(self.tape, self.recipe, self.wte)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def transformer(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """GPTNeoModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.wte)
        if position_ids is None:
            position_ids = tape.new("arange", (1, input_ids.shape[1]), INT64, False)
        mask = mask_of(_embeds, recipe)
        _position_embeds = embedding(position_ids, self.wpe)
        hidden = add(_embeds, _position_embeds)
        hidden = dropout(hidden, recipe.embedding_dropout)
        state = [hidden]
        del hidden  # the original's loop has no other name for it
        _outputs: list[Any] = []  # a block's attention weights live until the next block has returned
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask), state, outputs=_outputs)
        hidden = LayerNorm(tape, "ln_f", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = GPTNeo
