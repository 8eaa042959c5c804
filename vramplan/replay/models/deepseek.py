"""DeepSeek-V2, DeepSeek-V3 and GLM-4.7-Flash, as transformers 5.23 computes them
(models/deepseek_v2/modeling_deepseek_v2.py, models/deepseek_v3/modeling_deepseek_v3.py, whose attention and experts
models/glm4_moe_lite/modeling_glm4_moe_lite.py has): attention whose keys and values pass a narrow latent, and experts
in all blocks but the first few, beside experts that every token passes.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import GatedMLP, GroupedExperts, Look, Routed, experts_of
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Llama, apply_rotary, eager_attention
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Recipe, RMSNorm, words
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.replay.models.recomputed import recomputable
from vramplan.replay.observers import KeyValues, Trained
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, add_scalar, masked_fill, mul, mul_scalar
from vramplan.replay.operators.experts import div_in_place, gather_last, sigmoid, sum_last, top_k
from vramplan.replay.operators.latent import (
    COMPLEX64,
    as_complex,
    as_real,
    copied_together,
    every_second,
    rotate_numbers,
    split_sizes,
    sub,
)
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import cat, contiguous, expand, narrow, pad_last, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor, contiguous_strides
from vramplan.values.model import LatentAttention, ModelShape

Positions = tuple[Tensor, ...]  # cosines and sines, or complex numbers


def latent_of(recipe: Recipe) -> LatentAttention:
    """The sizes of the latent attention of a model that has it."""
    latent = recipe.shape.latent_attention
    assert latent is not None
    return latent


def complex_rotary(position_ids: Tensor, size: int) -> Positions:
    """DeepseekV2RotaryEmbedding.forward: complex numbers [1, S, d / 2], of packed sequences [B, S, d / 2], made without
    gradients.
    """
    tape, (batch, length), batched = position_ids.tape, position_ids.shape, position_ids.batched
    shape = (batch, length, size // 2)
    positions = tape.new("to", (batch, length, 1), FP32, batched)
    _frequencies = tape.new("mul", shape, FP32, batched)
    del positions
    ones = tape.new("ones_like", shape, FP32, batched)
    _polar = tape.new("polar", shape, COMPLEX64, batched)
    del ones
    return (tape.new("mul", shape, COMPLEX64, batched),)


def rotate_complex(x: Tensor, turns: Tensor) -> Tensor:
    """One half of DeepSeek-V2's apply_rotary_emb, up to the turned numbers."""
    return as_real(rotate_numbers(x, turns))


def apply_complex(query: Tensor, key: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_emb of DeepSeek-V2: pairs are complex numbers in fp32."""

    def numbers(x: Tensor) -> Tensor:
        x = to(x, FP32)
        return as_complex(view(x, (*x.shape[:-1], x.shape[-1] // 2, 2)))

    query_, key_ = numbers(query), numbers(key)
    turns = turns.alias((turns.shape[0], 1, *turns.shape[1:]), None, None)
    query_out = to(view(rotate_complex(query_, turns), query.shape), query.dtype)
    key_out = to(view(rotate_complex(key_, turns), key.shape), key.dtype)
    return query_out, key_out


def apply_interleaved(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb_interleave: neighbours are turned together."""
    shape = (cos.shape[0], 1, cos.shape[1], cos.shape[2] // 2)
    strides = contiguous_strides((cos.shape[0], 1, *cos.shape[1:]))
    cos, sin = cos.alias(shape, strides, None), sin.alias(shape, strides, None)
    q1, q2 = every_second(query), every_second(query)
    k1, k2 = every_second(key), every_second(key)
    query_embed = cat([sub(mul(q1, cos), mul(q2, sin)), add(mul(q2, cos), mul(q1, sin))], -1)
    key_embed = cat([sub(mul(k1, cos), mul(k2, sin)), add(mul(k2, cos), mul(k1, sin))], -1)
    return query_embed, key_embed


class Attention:
    """DeepseekV3Attention, DeepseekV2Attention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype, latent = recipe.shape, recipe.weight_dtype, latent_of(recipe)
        hidden, heads, bias = shape.hidden_size, shape.attention_heads, shape.qkv_bias
        query = heads * shape.head_size
        self.recipe, self.latent = recipe, latent
        rank = latent.query_rank
        if rank is None:
            self.q_proj = Linear(tape, "q_proj", hidden, query, dtype, bias=False)
        else:
            self.q_a_proj = Linear(tape, "q_a_proj", hidden, rank, dtype, bias=bias)
            self.q_a_layernorm = RMSNorm(tape, "q_a_layernorm", rank, dtype)
            self.q_b_proj = Linear(tape, "q_b_proj", rank, query, dtype, bias=False)
        narrow = latent.key_value_rank
        self.kv_a_proj = Linear(tape, "kv_a_proj_with_mqa", hidden, narrow + latent.rotary_size, dtype, bias=bias)
        self.kv_a_layernorm = RMSNorm(tape, "kv_a_layernorm", narrow, dtype)
        wide = heads * (latent.plain_size + latent.value_size)
        self.kv_b_proj = Linear(tape, "kv_b_proj", narrow, wide, dtype, bias=False)
        self.o_proj = Linear(tape, "o_proj", heads * latent.value_size, hidden, dtype, bias=shape.output_bias)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor, positions: Positions
    ) -> tuple[Tensor, Tensor | None]:
        recipe, latent = self.recipe, self.latent
        shape = recipe.shape
        batch, length, _ = hidden.shape
        if latent.query_rank is None:
            query = self.q_proj(hidden)
        else:
            query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden)))
        query = transpose(view(query, (batch, length, shape.attention_heads, shape.head_size)), 1, 2)
        q_pass, q_rot = split_sizes(query, (latent.plain_size, latent.rotary_size))
        _compressed = self.kv_a_proj(hidden)
        kv_nope, k_rot = split_sizes(_compressed, (latent.key_value_rank, latent.rotary_size))
        kv_nope = view(self.kv_a_layernorm(kv_nope), (batch, 1, length, latent.key_value_rank))
        k_rot = view(k_rot, (batch, 1, length, latent.rotary_size))
        q_rot, k_rot = self.rotated(q_rot, k_rot, positions)
        cache = hidden.tape.role(KeyValues)
        if cache.keeps:  # what keys and values are made of
            kv_nope, k_rot = cache.kept(kv_nope, k_rot)
        states = self.scaled(cat([q_pass, q_rot], -1), position_ids)
        key, value = self.expand_kv(kv_nope, k_rot)
        attended = states, key, value, mask
        output, weights = recomputable(recipe, self.core, *attended, holds=position_ids)
        del attended
        output = contiguous(view(output, (batch, length, shape.attention_heads * latent.value_size)))
        output = self.o_proj(output)
        return output, weights

    def scaled(self, query: Tensor, position_ids: Tensor) -> Tensor:
        """The queries as they meet the keys: as they are, unless a model scales them by their places."""
        return query

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        recipe = self.recipe
        if recipe.attention == "eager":
            return eager_attention(query, key, value, mask, 1, recipe.attention_dropout)
        if recipe.attention == "flash" and value.shape[-1] != query.shape[-1]:
            # integrations/flash_attention.py, flash_attention_forward: as long as queries and keys, and cut again
            wide = pad_last(value, query.shape[-1] - value.shape[-1])
            found = scaled_dot_product(query, key, wide, recipe.attention, recipe.attention_dropout, mask)
            return narrow(transpose(found, 1, 2), -1, value.shape[-1]), None
        output = scaled_dot_product(query, key, value, recipe.attention, recipe.attention_dropout, mask)
        return contiguous(transpose(output, 1, 2)), None

    def rotated(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """The rotary part of queries and keys, as the model type turns it."""
        if len(positions) == 1:
            return apply_complex(query, key, *positions)
        return (apply_interleaved if self.latent.interleaved else apply_rotary)(query, key, *positions)

    def expand_kv(self, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        """expand_kv: keys and values of all heads from the latent, and the one rotary key beside them."""
        latent, heads = self.latent, self.recipe.shape.attention_heads
        batch, _, length, _ = kv_nope.shape
        per_head = (batch, length, heads, latent.plain_size + latent.value_size)
        kv_nope = transpose(view(self.kv_b_proj(kv_nope), per_head), 1, 2)
        k_nope, value = split_sizes(kv_nope, (latent.plain_size, latent.value_size))
        k_rot = expand(k_rot, (batch, heads, length, latent.rotary_size))
        return copied_together(k_nope, k_rot), value


class Router:
    """DeepseekV3TopkRouter, DeepseekV2TopkRouter: in fp32, experts chosen within the best groups of them.

    The choice needs no gradient, so what it makes is not part of the graph.
    """

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.experts = experts_of(recipe)
        self.by_sigmoid = recipe.shape.transformers_model_type != "deepseek_v2"
        self.weight = tape.parameter(
            "gate.weight", (self.experts.routed, recipe.shape.hidden_size), recipe.weight_dtype
        )
        self.adapter = tape.role(Trained).tensors(tape, {"gate.weight": self.weight})

    def __call__(self, hidden: Tensor) -> Routed:
        if self.adapter is not None:
            routed: Routed = self.adapter(self.base, hidden)
            return routed
        return self.base(hidden)

    def base(self, hidden: Tensor, look: Look | None = None) -> Routed:
        """The router as it is in the model; `look` gives its weight where an adapter changes it."""
        hidden = view(hidden, (hidden.shape[0] * hidden.shape[1], hidden.shape[2]))
        weight = self.weight if look is None else look("gate.weight")
        logits = self.logits(hidden, weight)
        weights, indices = self.by_two_best(logits) if self.by_sigmoid else self.by_softmax(logits)
        return logits, mul_scalar(weights), indices

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """One number for each token and expert, in fp32."""
        return linear(to(hidden, FP32), to(weight, FP32))

    def scores(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """DeepSeek-V3: sigmoids, and the same with a bias that only the choice sees."""
        scores = sigmoid(logits)
        return scores, logits.tape.new("add", scores.shape, FP32, logits.batched)

    def by_two_best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """DeepSeek-V3: groups are chosen by the sum of their two best scores."""
        tape, (tokens, _) = logits.tape, logits.shape
        experts, batched = self.experts, logits.batched
        scores, choice = self.scores(logits)
        assert experts.groups is not None
        best = tape.new("topk", (tokens, experts.groups, 2), choice.dtype, batched)
        _places = tape.new("topk", (tokens, experts.groups, 2), INT64, batched)
        group_scores = tape.new("sum", (tokens, experts.groups), choice.dtype, batched)
        del best
        mask, _made = self.group_mask(group_scores)
        choice = masked_fill(choice, mask)
        indices = self.chosen(choice)
        weights = gather_last(scores, indices)
        if experts.normalized:
            _denominator = add_scalar(sum_last(weights))
            weights = div_in_place(weights, _denominator)
        return weights, indices

    def by_softmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """DeepSeek-V2: probabilities, of which those of other groups are set to zero."""
        tape, (tokens, _) = logits.tape, logits.shape
        experts = self.experts
        scores = softmax(logits, FP32)
        if experts.groups is not None:
            group_scores = tape.new("max", (tokens, experts.groups), FP32, logits.batched)
            _places = tape.new("max", (tokens, experts.groups), INT64, logits.batched)
            mask, _made = self.group_mask(group_scores)
            scores = masked_fill(scores, mask)
        return top_k(scores, experts.active)

    def group_mask(self, group_scores: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What is in none of the chosen groups, and what was made for it and lives as long as the router runs."""
        tape, (tokens, groups) = group_scores.tape, group_scores.shape
        experts, batched = self.experts, group_scores.batched
        assert experts.active_groups is not None
        values = tape.new("topk", (tokens, experts.active_groups), group_scores.dtype, batched)
        index = tape.new("topk", (tokens, experts.active_groups), INT64, batched)
        del values
        chosen = tape.new("zeros_like", (tokens, groups), group_scores.dtype, batched)
        wide = expand(view(chosen, (tokens, groups, 1)), (tokens, groups, experts.routed // groups))
        score_mask = view(wide, (tokens, experts.routed))
        del wide
        inside = tape.new("to", (tokens, experts.routed), BOOL, batched)
        outside = tape.new("bitwise_not", (tokens, experts.routed), BOOL, batched)
        del inside
        return outside, [index, chosen, score_mask, group_scores]

    def chosen(self, choice: Tensor) -> Tensor:
        """The places of the largest values alone."""
        shape = (choice.shape[0], self.experts.active)
        values = choice.tape.new("topk", shape, choice.dtype, choice.batched)
        indices = choice.tape.new("topk", shape, INT64, choice.batched)
        del values
        return indices


class MoE:
    """DeepseekV3MoE, DeepseekV2Moe."""

    router: type[Router] = Router

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shared = experts_of(recipe).shared_intermediate_size
        assert shared is not None
        self.experts = GroupedExperts(tape, recipe)
        self.gate = self.router(tape, recipe)
        self.shared_experts = GatedMLP(tape, recipe, shared)

    def __call__(self, hidden: Tensor) -> Tensor:
        residuals = hidden
        batch, length, width = hidden.shape
        _logits, weights, indices = self.gate(hidden)
        hidden = view(hidden, (batch * length, width))
        hidden = view(self.experts(hidden, indices, weights), residuals.shape)
        hidden = add(hidden, self.shared_experts(residuals))
        return hidden


class Block:
    """DeepseekV3DecoderLayer, DeepseekV2DecoderLayer."""

    attention: type[Any] = Attention
    mixture: type[MoE] = MoE

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        dense: bool,
        mask: Tensor | None,
        position_ids: Tensor,
        positions: Positions | None,
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.self_attn = self.attention(tape, recipe)
        self.mlp = GatedMLP(tape, recipe, recipe.shape.intermediate_size) if dense else self.mixture(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", width, dtype)
        self.mask, self.positions = mask, positions
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.positions)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        hidden = self.mlp(hidden)
        hidden = add(residual, hidden)
        return hidden


class DeepSeek(Llama):
    """DeepseekV3ForCausalLM, DeepseekV2ForCausalLM, with their loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    package_flash = (
        "the flash-attn package takes values that are padded to the length of queries and keys; composed, and never "
        "traced"
    )
    block: type[Block] = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING."""
        return GATED_EXPERTS

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, twice, in fp32, and those of the routers."""
        return [*[4 * (self.turned() // 2)] * 2, *self.router_biases()]

    def router_biases(self) -> list[int]:
        """In V3 each router has a bias, of the dtype of the weights, as after `model.to(dtype)`."""
        shape, experts = self.recipe.shape, experts_of(self.recipe)
        if shape.transformers_model_type == "deepseek_v2":
            return []
        return [self.recipe.weight_dtype.itemsize * experts.routed] * (shape.layers - len(experts.dense_layers))

    def turned(self) -> int:
        """Elements of each head that rotary positions turn."""
        return latent_of(self.recipe).rotary_size

    def model(self, input_ids: Tensor) -> Tensor:
        """DeepseekV3Model.forward, DeepseekV2Model.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        mask = mask_of(_embeds, recipe)
        hidden = _embeds
        of_numbers = recipe.shape.transformers_model_type == "deepseek_v2"
        size = self.turned()
        positions = complex_rotary(position_ids, size) if of_numbers else self.rotary(hidden, size)
        dense = frozenset(experts_of(recipe).dense_layers)

        def block(i: int) -> Block:
            return self.block(tape, recipe, i in dense, mask, position_ids, positions)

        hidden = run_blocks(tape, recipe.segments, block, hidden, make_up=lambda i: i in dense)
        hidden = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = DeepSeek
