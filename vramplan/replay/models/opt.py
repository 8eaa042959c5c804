"""OPT, as transformers 5.23 computes it (models/opt/modeling_opt.py): learned positions, ReLU; the 350M model
normalises after each residual sum and has narrower token embeddings.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    as_is,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.recomputed import cached
from vramplan.replay.operators.elementwise import add, add_scalar, dropout, mul, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, Tensor

POSITION_OFFSET = 2  # OPTLearnedPositionalEmbedding: rows that stand for no position


class Attention:
    """OPTAttention: scales the queries instead of the scores."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=True)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=True)
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=True)
        self.out_proj = Linear(tape, "out_proj", width, width, dtype, bias=True)

    def __call__(self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        batch, length, width = hidden.shape
        heads = (batch, length, recipe.shape.attention_heads, recipe.shape.head_size)
        query = mul_scalar(self.q_proj(hidden))
        query = transpose(view(query, heads), 1, 2)
        key = self.k_proj(hidden)
        value = self.v_proj(hidden)
        key = transpose(view(key, heads), 1, 2)
        value = transpose(view(value, heads), 1, 2)
        key, value = cached(key, value)
        output, weights = attend(recipe, query, key, value, mask, position_ids)
        output = contiguous(view(output, (batch, length, width)))
        output = self.out_proj(output)
        return output, weights


class Block:
    """OPTDecoderLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.pre_norm, self.p = shape.pre_norm, recipe.hidden_dropout
        self.self_attn = Attention(tape, recipe)
        self.act = ACTIVATIONS[shape.activation]
        self.self_attn_layer_norm = LayerNorm(tape, "self_attn_layer_norm", width, dtype)
        self.fc1 = Linear(tape, "fc1", width, shape.intermediate_size, dtype, bias=True)
        self.fc2 = Linear(tape, "fc2", shape.intermediate_size, width, dtype, bias=True)
        self.final_layer_norm = LayerNorm(tape, "final_layer_norm", width, dtype)
        self.mask = mask
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        if self.pre_norm:
            hidden = self.self_attn_layer_norm(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids)
        hidden = dropout(hidden, self.p)
        hidden = add(residual, hidden)
        if not self.pre_norm:
            hidden = self.self_attn_layer_norm(hidden)
        batch, length, width = hidden.shape
        hidden = view(hidden, (batch * length, width))
        residual = hidden
        if self.pre_norm:
            hidden = self.final_layer_norm(hidden)
        hidden = self.fc1(hidden)
        hidden = self.act(hidden)
        hidden = self.fc2(hidden)
        hidden = dropout(hidden, self.p)
        hidden = view(add(residual, hidden), (batch, length, width))
        if not self.pre_norm:
            hidden = self.final_layer_norm(hidden)
        return hidden


class OPT:
    """OPTForCausalLM, with its loss."""

    masks_positions = False
    selective = SELECTIVE
    compiled_graphs = 1
    gives_views = True
    no_rounded_tables = "whose positions are asked of a class of its own (OPTLearnedPositionalEmbedding)"
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_virtual_tokens = True
    takes_prefix = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.tape, self.recipe = tape, recipe
        self.embedding_size = shape.embedding_size or width
        rows = shape.max_positions + POSITION_OFFSET
        with tape.building(EMBEDDINGS):
            table = (shape.vocabulary_size, self.embedding_size)
            self.embed_tokens = tape.parameter("embed_tokens.weight", table, dtype)
            self.embed_positions = tape.parameter("embed_positions.weight", (rows, width), dtype)
        projected = self.embedding_size != width
        self.project_in, self.project_out = as_is, as_is
        if projected:
            self.project_out = Linear(tape, "project_out", width, self.embedding_size, dtype, bias=False)
            self.project_in = Linear(tape, "project_in", self.embedding_size, width, dtype, bias=False)

    def buffers(self) -> list[int]:
        """Bytes of the buffers of the module."""
        return []

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        hidden = self.decoder(input_ids, given)
        head = self.embed_tokens
        if not self.recipe.shape.tied_embeddings and self.recipe.shape.task == "lm":
            with self.tape.building(HEAD):
                head = self.tape.parameter("lm_head.weight", head.shape, head.dtype)
        return causal_lm_output(hidden, head, labels, self.recipe)

    def decoder(self, input_ids: Tensor, given: Tensor | None = None) -> Tensor:
        """OPTDecoder.forward."""
        tape, recipe = self.tape, self.recipe
        embeds = words(input_ids, self.embed_tokens)
        _ones = given if recipe.padded and given is not None else tape.new("ones", input_ids.shape, FP32, True)
        position_ids = tape.new("cumsum", input_ids.shape, _ones.dtype, True)
        position_ids = to(add_scalar(mul(position_ids, _ones)), INT64)
        mask = mask_of(embeds, recipe)
        _positions = embedding(add_scalar(position_ids), self.embed_positions)
        embeds = self.project_in(embeds)
        hidden = add(embeds, _positions)
        state = [hidden]
        del hidden  # the original's loop has no other name for it
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, position_ids), state)
        if recipe.shape.pre_norm:
            hidden = LayerNorm(tape, "final_layer_norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        projected: Tensor = self.project_out(hidden)
        return projected


FORWARD = OPT
