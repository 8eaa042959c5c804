"""Attention of Megatron-LM, as megatron-core 0.16 computes it (core/transformer/{attention,dot_product_attention}.py).

It is what one device of a tensor-parallel group holds: its heads. Hidden states are [S, B, H]. Names that start with an
underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from vramplan.engines.megatron.context_parallel import gathered_attention, ring_attention
from vramplan.engines.megatron.delta_kernels import gated
from vramplan.engines.megatron.layers import (
    ColumnParallelLinear,
    Norm,
    Projected,
    RowParallelLinear,
    apply_rotary,
    norm_of,
)
from vramplan.engines.megatron.tensor_parallel import (
    batch_matmul,
    causal_softmax,
    core_checkpoint,
    gather_last,
    has_fused_softmax,
    masked_scores,
)
from vramplan.replay.models.modules import Recipe
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import dropout
from vramplan.replay.operators.indexing import permute, split_with_sizes, unsqueeze
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import baddbmm
from vramplan.replay.operators.views import clone, contiguous, expand, narrow, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor


class Attention:
    """SelfAttention, with DotProductAttention or a fused core."""

    gated_output = False
    """What comes out of the core is gated by a part of the projection that is as wide as the queries."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, devices = recipe.shape, recipe.slice.tensor
        self.recipe = recipe
        self.heads, self.groups = shape.attention_heads // devices, max(1, shape.key_value_heads // devices)
        self.sharing = max(1, devices // shape.key_value_heads)  # devices that have the same keys and values
        query, keys = shape.attention_heads * shape.head_size, shape.key_value_heads * shape.head_size
        hidden = shape.hidden_size
        self.linear_qkv = ColumnParallelLinear(
            tape, recipe, "linear_qkv", hidden, query * self.queries + 2 * keys, bias=shape.qkv_bias
        )
        self.linear_proj = RowParallelLinear(tape, recipe, "linear_proj", query, hidden, bias=shape.output_bias)
        self.value_size = shape.head_size
        of_queries, of_keys = self.normed_widths(shape.head_size)
        self.q_layernorm = norm_of(tape, recipe, "q_layernorm", of_queries) if shape.qk_norm else None
        self.k_layernorm = norm_of(tape, recipe, "k_layernorm", of_keys) if shape.qk_norm else None

    @property
    def queries(self) -> int:
        """Parts of the projection that are as wide as the queries."""
        return 2 if self.gated_output else 1

    def normed_widths(self, size: int) -> tuple[int, int]:
        """Elements of queries and of keys that are normed together: those of a head."""
        return size, size

    def normed(self, x: Tensor, norm: Norm) -> Tensor:
        """Queries or keys with their norm."""
        return norm(x)

    def __call__(self, hidden: Tensor, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None) -> Projected:
        size, each = self.recipe.shape.head_size, self.heads // self.groups
        _mixed = self.linear_qkv(hidden)
        length, batch, _ = _mixed.shape
        if self.sharing > 1:
            each *= self.sharing
            width = (each * self.queries + 2) * size
            _mixed = narrow(gather_last(_mixed, self.recipe.slice.tensor, summed=True), -1, width)
        _mixed = view(_mixed, (length, batch, self.groups, (each * self.queries + 2) * size))
        *wide, key, value = split_with_sizes(_mixed, (*[each * size] * self.queries, size, size))
        wide = [view(one, (length, batch, self.heads * self.sharing, size)) for one in wide]
        if self.sharing > 1:  # Transformer Engine's kernels take no views of what is wider
            wide, value = [narrow(one, 2, self.heads) for one in wide], contiguous(value)
        query, gate = wide[0], contiguous(wide[1]) if self.gated_output else None
        del wide
        if self.q_layernorm is not None and self.k_layernorm is not None:
            query, key = self.normed(query, self.q_layernorm), self.normed(key, self.k_layernorm)
        _qkv_output = (query, key, value)
        if angles is not None:
            query, key = apply_rotary(query, angles), apply_rotary(key, angles)
        if self.recipe.recomputes_core:
            context = core_checkpoint(
                lambda q, k, v, given: self.core(q, k, v, given, scratch), query, key, value, mask=mask
            )
        else:
            context = self.core(query, key, value, mask, scratch)
        if gate is not None:
            context = gated(context, view(gate, context.shape))
        return self.linear_proj(context)

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scratch: Tensor | None) -> Tensor:
        """DotProductAttention.forward; a fused kernel in its place takes the layout as it is."""
        recipe, size, wide = self.recipe, query.shape[-1], self.value_size
        (length, batch), keys = query.shape[:2], key.shape[0]
        if recipe.slice.context > 1:
            return self.over_devices(query, key, value)
        if recipe.attention != "eager":
            order = (1, 2, 0, 3)
            query, key, value = permute(query, order), permute(key, order), permute(value, order)
            context = scaled_dot_product(query, key, value, recipe.attention, recipe.attention_dropout)
            return view(permute(context, (2, 0, 1, 3)), (length, batch, self.heads * wide))
        if self.heads != self.groups:
            key, value = self.for_each_head(key), self.for_each_head(value)
        query = view(query, (length, batch * self.heads, size))
        key = view(key, (keys, batch * self.heads, size))
        assert scratch is not None
        scores = baddbmm(scratch, transpose(query, 0, 1), transpose(transpose(key, 0, 1), 1, 2))
        scores = view(scores, (batch, self.heads, length, keys))
        probabilities = self.softmax(scores, mask)
        probabilities = dropout(probabilities, recipe.attention_dropout)
        value = view(value, (keys, batch * self.heads, wide))
        probabilities = view(probabilities, (batch * self.heads, length, keys))
        context = batch_matmul(probabilities, transpose(value, 0, 1))
        context = view(context, (batch, self.heads, length, wide))
        context = contiguous(permute(context, (2, 0, 1, 3)))
        return view(context, (length, batch, self.heads * wide))

    def over_devices(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Transformer Engine's core where sequences are split: it takes contiguous queries, keys and values."""
        part = self.recipe.slice
        core = ring_attention if part.ring else gathered_attention
        context = core(contiguous(query), contiguous(key), contiguous(value), part.context)
        return view(context, (*context.shape[:2], self.heads * query.shape[-1]))

    def for_each_head(self, x: Tensor) -> Tensor:
        """`repeat_interleave` over the heads of each group."""
        length, batch, groups, size = x.shape
        each = self.heads // groups
        wide = expand(unsqueeze(x, 3), (length, batch, groups, each, size))
        return view(clone(wide), (length, batch, self.heads, size))

    def softmax(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """FusedScaleMaskSoftmax.forward."""
        batch, heads, length, keys = scores.shape
        if has_fused_softmax(heads, keys) and scores.dtype is not FP32:
            return view(causal_softmax(view(scores, (batch * heads, length, keys))), scores.shape)
        assert mask is not None
        return softmax(masked_scores(scores, mask))
