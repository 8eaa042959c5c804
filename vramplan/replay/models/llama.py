"""Llama 1-3, TinyLlama, Mistral, Qwen2/2.5, Qwen3 and SmolLM3, as transformers 5.23 computes them
(models/llama/modeling_llama.py; models/mistral and models/qwen2 differ in biases and defaults only, models/qwen3
normalises queries and keys, some blocks of models/smollm3 have no rotary positions).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE,
    Linear,
    Output,
    Recipe,
    RMSNorm,
    as_is,
    gated_kernel,
    in_tiles,
    output_embedding,
    rotary_kernel,
)
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.projections import three
from vramplan.replay.models.recomputed import cached, recomputable
from vramplan.replay.models.windows import are_alike, equal_windows, has_window, masks_of
from vramplan.replay.observers import Sharding, Trained, VirtualTokens
from vramplan.replay.operators.attention import LARGEST_FLASH_HEAD, scaled_dot_product
from vramplan.replay.operators.elementwise import add, dropout, mul, mul_scalar, neg
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import split_with_sizes
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import cat, contiguous, expand, narrow, to, transpose, view, view_unsqueezed
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.packing import packed_rotary
from vramplan.replay.tensors import FP32, INT64, Tensor, contiguous_strides

Rotary = tuple[Tensor, Tensor]


def rotary_embedding(hidden: Tensor, head_size: int) -> Rotary:
    """LlamaRotaryEmbedding.forward: cosines and sines [1, S, d], made without gradients."""
    cos, sin = fp32_rotary_embedding(hidden, head_size)
    return to(cos, hidden.dtype), to(sin, hidden.dtype)


def fp32_rotary_embedding(hidden: Tensor, head_size: int) -> Rotary:
    """The same before they are cast to the dtype of the hidden states."""
    tape, length = hidden.tape, hidden.shape[1]
    wide, half = (1, length, head_size), (1, length, head_size // 2)
    positions = tape.new("to", (1, length, 1), FP32, False)
    frequencies = tape.new("mul", half, FP32, False)
    del positions
    angles = tape.new("cat", wide, FP32, False)
    cos = mul_scalar(tape.new("cos", wide, FP32, False))
    sin = mul_scalar(tape.new("sin", wide, FP32, False))
    del frequencies, angles
    return cos, sin


def rotate_half(x: Tensor) -> Tensor:
    """rotate_half: minus the second half, then the first."""
    half = x.shape[-1] // 2
    first, second = narrow(x, -1, half), narrow(x, -1, half)
    return cat([neg(second), first], -1)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb, over heads."""
    kernel = rotary_kernel(query.tape)
    if kernel is not None:
        return kernel(query, key, cos, sin)
    shape = (cos.shape[0], 1, *cos.shape[1:])
    cos, sin = cos.alias(shape, None, None), sin.alias(shape, None, None)
    query_embed = add(mul(query, cos), mul(rotate_half(query), sin))
    key_embed = add(mul(key, cos), mul(rotate_half(key), sin))
    return query_embed, key_embed


def rotary_of_release(recipe: Recipe, rotary: Rotary, value: Tensor) -> Rotary:
    """The cosines and sines that an attention turns by: those of the model, or of older releases its own."""
    if not recipe.old_code.own_rotary:
        return rotary
    cos, sin = (value.tape.new("to", one.shape, value.dtype, False) for one in rotary)
    return cos, sin


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """repeat_kv: expand and reshape; a copy, unless there is one head only (then a view with stride 0)."""
    if times == 1:
        return x
    batch, heads, length, width = x.shape
    strides = x.strides or contiguous_strides(x.shape)
    five = view_unsqueezed(x, (batch, heads, 1, length, width), (*strides[:2], strides[1], *strides[2:]))
    wide = expand(five, (batch, heads, times, length, width))
    return view(wide, (batch, heads * times, length, width))


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, groups: int, p: float
) -> tuple[Tensor, Tensor]:
    """eager_attention_forward: softmax in fp32, cast back to the dtype of the query."""
    keys = repeat_kv(key, groups)
    values = repeat_kv(value, groups)
    weights = mul_scalar(matmul(query, transpose(keys, 2, 3)))
    if mask is not None:
        weights = add(weights, mask)
    weights = to(softmax(weights, FP32), query.dtype)
    weights = dropout(weights, p)
    output = matmul(weights, values)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, recipe: Recipe) -> Tensor:
    """sdpa_attention_forward up to the kernel: with a mask, and of heads that are too large for flash, it repeats keys
    and values for their query heads itself (integrations/sdpa_attention.py, use_gqa_in_sdpa), as older releases did."""
    if mask is not None or recipe.old_code.repeats_keys or key.shape[-1] > LARGEST_FLASH_HEAD:
        groups = recipe.shape.attention_heads // recipe.shape.key_value_heads
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    if recipe.old_code.copies_heads:
        query, key, value = contiguous(query), contiguous(key), contiguous(value)
    return scaled_dot_product(query, key, value, recipe.attention, recipe.attention_dropout, mask)


class Attention:
    """LlamaAttention: grouped-query, rotary; Qwen3Attention normalises each head of queries and keys before."""

    turn = staticmethod(apply_rotary)

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", hidden, query, dtype, bias=shape.qkv_bias)
        self.k_proj = Linear(tape, "k_proj", hidden, key, dtype, bias=shape.qkv_bias)
        self.v_proj = Linear(tape, "v_proj", hidden, key, dtype, bias=shape.qkv_bias)
        self.o_proj = Linear(tape, "o_proj", query, hidden, dtype, bias=shape.output_bias)
        self.q_norm = self.norm(tape, "q_norm", shape.attention_heads)
        self.k_norm = self.norm(tape, "k_norm", shape.key_value_heads)

    def norm(self, tape: Tape, name: str, heads: int) -> Callable[[Tensor], Tensor]:
        """What normalises queries or keys of so many heads; without `qk_norm`, nothing does."""
        shape, dtype = self.recipe.shape, self.recipe.weight_dtype
        return RMSNorm(tape, name, shape.head_size, dtype) if shape.qk_norm else as_is

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary | None
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = hidden.shape
        query, key, value = self.projected(hidden)
        if rotary is not None:
            query, key = self.turn(query, key, *rotary_of_release(recipe, rotary, value))
        query = self.scaled(query, position_ids)
        key = self.turned_key(key)
        key, value = cached(key, value)
        output, weights = recomputable(recipe, self.core, query, key, value, mask, holds=position_ids)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = self.o_proj(output)
        return output, weights

    def scaled(self, query: Tensor, position_ids: Tensor | None) -> Tensor:
        """The queries as they meet the keys: as they are, unless a model scales them by their places."""
        return query

    def turned_key(self, key: Tensor) -> Tensor:
        """The keys as they meet the queries: as they are, unless a model normalises them after their positions."""
        return key

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions."""
        shape = self.recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        first, second, third = three(self, hidden)
        query = transpose(self.q_norm(view(first(), heads)), 1, 2)
        key = transpose(self.k_norm(view(second(), kv_heads)), 1, 2)
        value = transpose(view(third(), kv_heads), 1, 2)
        return query, key, value

    def heads(self, x: Tensor) -> Tensor:
        """A projection [B, S, a d] with its heads before its positions."""
        batch, length, width = x.shape
        size = self.recipe.shape.head_size
        return transpose(view(x, (batch, length, width // size, size)), 1, 2)

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        recipe = self.recipe
        if recipe.attention == "eager":
            groups = recipe.shape.attention_heads // recipe.shape.key_value_heads
            return eager_attention(query, key, value, mask, groups, recipe.attention_dropout)
        output = fused_attention(query, key, value, mask, recipe)
        return contiguous(transpose(output, 1, 2)), None


class FusedAttention(Attention):
    """The same attention of a llama whose code has queries, keys and values in one projection, as the first Qwen has.

    Source: modeling_qwen.py beside the weights of Qwen/Qwen-7B, QWenAttention: c_attn, which the scripts of its authors
    name as one target of LoRA.
    """

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe, self.sizes = recipe, (query, key, key)
        self.qkv_proj = Linear(tape, "qkv_proj", hidden, sum(self.sizes), dtype, bias=shape.qkv_bias)
        self.o_proj = Linear(tape, "o_proj", query, hidden, dtype, bias=shape.output_bias)

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions."""
        size = self.recipe.shape.head_size
        batch, length, _ = hidden.shape
        parts = split_with_sizes(self.qkv_proj(hidden), self.sizes)
        query, key, value = (view(one, (batch, length, one.shape[-1] // size, size)) for one in parts)
        return transpose(query, 1, 2), transpose(key, 1, 2), transpose(value, 1, 2)


class MLP:
    """LlamaMLP: gated."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        self.gate_proj = Linear(tape, "gate_proj", hidden, inner, dtype, bias=bias)
        self.up_proj = Linear(tape, "up_proj", hidden, inner, dtype, bias=bias)
        self.down_proj = Linear(tape, "down_proj", inner, hidden, dtype, bias=bias)
        self.act = ACTIVATIONS[shape.activation]
        self.kernel = gated_kernel(tape)

    def __call__(self, x: Tensor) -> Tensor:
        fused = x.tape.role(Trained).gated_at_once((self.gate_proj, self.up_proj, self.down_proj))
        if fused is not None:
            return fused(x)
        if self.kernel is not None:
            return self.down_proj(self.kernel(self.gate_proj(x), self.up_proj(x)))
        return self.down_proj(mul(self.act(self.gate_proj(x)), self.up_proj(x)))


class Block:
    """LlamaDecoderLayer."""

    attention: type[Any] = Attention
    norm: type[Any] = RMSNorm  # of a name and a width
    norm_names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    feed_forward: type[Any] = MLP

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        mask: Tensor | None,
        position_ids: Tensor | None,
        rotary: Rotary,
        block: int = 0,
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.self_attn = (FusedAttention if recipe.fused_projection else self.attention)(tape, recipe)
        self.mlp = self.feeds(tape, recipe)
        self.norms = tuple(self.norm(tape, name, width, dtype) for name in self.norm_names)
        self.mask, self.rotary = mask, rotary
        self.turns = block not in recipe.shape.unrotated_layers
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        before_attention, before_mlp = self.norms
        residual = hidden
        hidden = before_attention(hidden)
        rotary = self.rotary if self.turns else None
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, rotary)
        hidden = self.joined(residual, hidden)
        residual = hidden
        hidden = before_mlp(hidden)
        hidden = self.mlp(hidden)
        hidden = self.joined(residual, hidden)
        return hidden

    def feeds(self, tape: Tape, recipe: Recipe) -> Callable[[Tensor], Tensor]:
        """The feed-forward layer, or the experts in its place."""
        mlp: Callable[[Tensor], Tensor] = in_tiles(self.feed_forward, tape, recipe)
        return mlp

    def joined(self, residual: Tensor, hidden: Tensor) -> Tensor:
        """What came in, and what attention or the feed-forward layer made of it."""
        return add(residual, hidden)


class Llama:
    """LlamaForCausalLM, with its loss."""

    selective: tuple[str, ...] = SELECTIVE
    peaks_published = True
    has_tensor_plan = True
    knows_old_code = True
    compiled_graphs: int | None = 1
    head_losses = HEAD_LOSSES
    own_units = (EMBEDDINGS, HEAD)
    takes_padding = True
    takes_virtual_tokens = True
    takes_prefix = True
    dropping_caches: tuple[str, ...] = ("mistral", "qwen2", "qwen3", "smollm3")
    takes_packing = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block: type[Block] = Block
    positions: Tensor | None = None  # of packed sequences, which the caller gives

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter(
                "embed_tokens.weight", (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype
            )

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice since Transformers 5.0, in fp32."""
        return [4 * (self.recipe.shape.head_size // 2)] * (1 if self.recipe.old_code.one_table else 2)

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.recipe.shape.head_size)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.positions = given if self.recipe.packed else None
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def position_ids(self, input_ids: Tensor) -> Tensor:
        """Those that packed sequences have given, else one for each place."""
        if self.positions is not None:
            return self.positions
        return self.tape.new("arange", (1, input_ids.shape[1]), INT64, False)

    def fp32_rotary(self, hidden: Tensor, size: int) -> Rotary:
        """The cosines and sines of all positions before they are cast."""
        if self.positions is None:
            return fp32_rotary_embedding(hidden, size)
        from vramplan.replay.techniques.packing import fp32_packed_rotary  # only who packs pays for it

        return fp32_packed_rotary(self.positions, size)

    def rotary(self, hidden: Tensor, size: int | None = None) -> Rotary:
        """The cosines and sines of all positions; `size`: of what is turned of a head, if that is not all."""
        size = size or self.recipe.shape.head_size
        if self.positions is None:
            return rotary_embedding(hidden, size)

        return packed_rotary(self.positions, size, hidden)

    def embedded(self, input_ids: Tensor) -> Tensor:
        """The embeddings of the tokens."""
        table, sharding = self.embed_tokens, self.tape.role(Sharding)

        def look_up(ids: Tensor) -> Tensor:
            found: Tensor = sharding.within(EMBEDDINGS, lambda ids: embedding(ids, table), ids)
            return found

        return self.tape.role(VirtualTokens).embedded(input_ids, look_up)

    def masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The masks of blocks without and with a window."""
        return masks_of(hidden, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """LlamaModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = self.embedded(input_ids)
        position_ids = self.position_ids(input_ids)
        masks = self.masks(_embeds)
        hidden = _embeds
        rotary = self.rotary(hidden)

        shape = recipe.shape

        def kind(i: int) -> tuple[bool, bool]:
            return has_window(shape, i), i in shape.unrotated_layers

        def block(i: int) -> Block:
            return self.text_block(tape, recipe, masks[has_window(shape, i)], position_ids, rotary, i)

        kinds = None if equal_windows(shape) and not shape.unrotated_layers else kind
        alike = are_alike(recipe) and not shape.unrotated_layers
        hidden = run_blocks(tape, recipe.segments, block, hidden, kind=kinds, alike=alike)
        norm: Callable[[Tensor], Tensor] = self.text_block.norm(tape, "norm", shape.hidden_size, recipe.weight_dtype)
        hidden = norm(hidden)
        return hidden


FORWARD = Llama
