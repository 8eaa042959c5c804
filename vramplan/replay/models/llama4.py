"""Llama 4 for text, as transformers 5.23 computes it (models/llama4/modeling_llama4.py): each routed expert computes
every token, beside a shared expert; positions turn complex numbers, in three of four blocks, which see a chunk alone.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import GatedMLP, Look, experts_of
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Llama, fused_attention, repeat_kv
from vramplan.replay.models.modules import ACTIVATIONS, HEAD_LOSSES, Linear, Recipe, RMSNorm, words
from vramplan.replay.models.part_names import DOWN, GATE_UP
from vramplan.replay.models.recomputed import cached, recomputable
from vramplan.replay.models.windows import are_alike
from vramplan.replay.observers import Outer, Trained
from vramplan.replay.operators.elementwise import (
    add,
    add_in_place,
    add_scalar,
    dropout,
    mean_last,
    mul,
    mul_scalar,
    pow_scalar,
    rsqrt,
)
from vramplan.replay.operators.experts import sigmoid, top_k
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.repeats import as_real, product_by_expert, repeat_rows, scatter_rows, sum_first
from vramplan.replay.operators.views import contiguous, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.packing import packed_mask
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor


def rotary_embedding(positions: Tensor, head_size: int) -> Tensor:
    """Llama4TextRotaryEmbedding.forward: complex numbers [1, S, d/2], as [1, S, d] in fp32; of packed ones [B, ...]."""
    tape, (rows, length), batched = positions.tape, positions.shape, positions.batched
    whole, half = (rows, length, head_size), (rows, length, head_size // 2)
    wide = tape.new("to", (rows, length, 1), FP32, batched)
    frequencies = tape.new("mul", half, FP32, batched)
    del wide
    ones = tape.new("ones_like", half, FP32, batched)
    turns = tape.new("polar", whole, FP32, batched)
    del ones
    turns = mul_scalar(turns)
    del frequencies
    return turns


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """apply_rotary_emb of queries or keys [B, S, a, d]: a product of complex numbers."""
    return as_real(mul(to(x, FP32), turns))


def l2_norm(x: Tensor) -> Tensor:
    """Llama4TextL2Norm: without a weight."""
    wide = to(x, FP32)
    return to(mul(wide, rsqrt(add_scalar(mean_last(pow_scalar(wide))))), x.dtype)


class Attention(LlamaAttention):
    """Llama4TextAttention."""

    def norm(self, tape: Tape, name: str, heads: int) -> Callable[[Tensor], Tensor]:
        """It has no weight."""
        return l2_norm

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, _position_ids: Tensor | None, rotary: Any
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        query = view(self.q_proj(hidden), heads)
        key = view(self.k_proj(hidden), kv_heads)
        value = transpose(view(self.v_proj(hidden), kv_heads), 1, 2)
        if rotary is not None:
            turns = rotary.alias((rotary.shape[0], length, 1, shape.head_size), None, None)
            query_out, key_out = turned(query, turns), turned(key, turns)
            query, key = to(query_out, query.dtype), to(key_out, key.dtype)
            del query_out, key_out
            if shape.qk_norm:
                query, key = l2_norm(query), l2_norm(key)
        else:
            query, _kept = self.tempered(query)
        query, key = transpose(query, 1, 2), transpose(key, 1, 2)
        key, value = cached(key, value)
        output, weights = recomputable(recipe, self.core, query, key, value, mask)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = self.o_proj(output)
        return output, weights

    def tempered(self, query: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Scores of blocks without rotary positions are scaled by their place (attn_temperature_tuning)."""
        tape, length = query.tape, query.shape[1]
        positions = tape.new("arange", (length,), INT64, False)
        scales = tape.new("add", (length,), FP32, False)
        scaled = mul(query, scales.alias((query.shape[0], length, 1, 1), (0, 1, 1, 1), None))
        return to(scaled, query.dtype), (positions, scales)

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward, which does not cast to fp32, or sdpa_attention_forward."""
        recipe = self.recipe
        if recipe.attention != "eager":
            return contiguous(transpose(fused_attention(query, key, value, mask, recipe), 1, 2)), None
        groups = recipe.shape.attention_heads // recipe.shape.key_value_heads
        keys = repeat_kv(key, groups)
        values = repeat_kv(value, groups)
        weights = mul_scalar(matmul(query, transpose(keys, 2, 3)))
        if mask is not None:
            weights = add(weights, mask)
        weights = softmax(weights)
        weights = dropout(weights, recipe.attention_dropout)
        output = matmul(weights, values)
        output = contiguous(transpose(output, 1, 2))
        return output, weights


class Experts:
    """Llama4TextExperts."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        experts, hidden, dtype = experts_of(recipe), recipe.shape.hidden_size, recipe.weight_dtype
        count, width = experts.routed, experts.intermediate_size
        self.gate_up_proj = tape.parameter("experts.gate_up_proj", (count, hidden, 2 * width), dtype)
        self.down_proj = tape.parameter("experts.down_proj", (count, width, hidden), dtype)
        self.act = ACTIVATIONS[recipe.shape.activation]
        self.adapter = tape.role(Trained).tensors(tape, {GATE_UP: self.gate_up_proj, DOWN: self.down_proj})

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.adapter is not None:
            output: Tensor = self.adapter(self.base, hidden)
            return output
        return self.base(hidden)

    def base(self, hidden: Tensor, look: Look | None = None) -> Tensor:
        """The experts as they are in the model; `look` gives their weights where they are stored otherwise."""
        rows, width = hidden.shape
        count = self.gate_up_proj.shape[0]
        with Outer(hidden, own=(self.gate_up_proj, self.down_proj)):
            hidden = view(hidden, (count, rows // count, width))
            gate_up = product_by_expert(hidden, self.gate_up_proj if look is None else look(GATE_UP))
            gate, up = split(gate_up, gate_up.shape[-1] // 2)
            states = product_by_expert(mul(up, self.act(gate)), self.down_proj if look is None else look(DOWN))
        return view(states, (rows, width))


class Router(Linear):
    """Llama4Router: Transformers takes no subclass of nn.Linear for a linear layer to quantize."""

    quantizes = False


class Moe:
    """Llama4TextMoe."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        experts, hidden, dtype = experts_of(recipe), recipe.shape.hidden_size, recipe.weight_dtype
        self.routed = experts
        self.experts = Experts(tape, recipe)
        self.router = Router(tape, "router", hidden, experts.routed, dtype, bias=False)
        self.shared_expert = GatedMLP(tape, recipe, experts.intermediate_size)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        count = self.routed.routed
        rows, width = hidden.shape[0] * hidden.shape[1], hidden.shape[2]
        hidden = view(hidden, (rows, width))
        scores, logits = self.route(hidden)
        routed_in = repeat_rows(hidden, count)
        routed_in = mul(routed_in, view(transpose(scores, 0, 1), (count * rows, 1)))
        _routed_out = self.experts(routed_in)
        out = self.shared_expert(hidden)
        out = add_in_place(out, sum_first(view(_routed_out, (count, rows, width))))
        return out, logits

    def route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Llama4Router: a sigmoid of the chosen logits, 0 for the others."""
        logits = self.router(hidden)
        _top_value, indices = top_k(logits, self.routed.active)
        scores = scatter_rows(_top_value, indices, self.routed.routed)
        scores = to(sigmoid(to(scores, FP32)), scores.dtype)
        return scores, logits


class Block:
    """Llama4TextDecoderLayer."""

    def __init__(
        self, tape: Tape, recipe: Recipe, i: int, mask: Tensor | None, position_ids: Tensor, rotary: Tensor
    ) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.self_attn = Attention(tape, recipe)
        dense = i in experts_of(recipe).dense_layers
        self.feed_forward: GatedMLP | Moe
        self.feed_forward = GatedMLP(tape, recipe, shape.intermediate_size) if dense else Moe(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", width, dtype)
        self.mask, self.rotary, self.turns = mask, rotary, i not in shape.unrotated_layers
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        rotary = self.rotary if self.turns else None
        _attention_states, _weights = self.self_attn(hidden, self.mask, None, rotary)  # it is given no position ids
        hidden = add(residual, _attention_states)
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        if isinstance(self.feed_forward, Moe):
            hidden, _weights = self.feed_forward(hidden)
        else:
            hidden = self.feed_forward(hidden)
        hidden = add(residual, view(hidden, residual.shape))
        return hidden


class Llama4(Llama):
    """Llama4ForCausalLM, with its loss."""

    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    has_tensor_plan = True  # configuration_llama4.py; torchtune, models/llama4/_parallelism.py, decoder_only_tp_plan
    chunked = True  # is_flash_attention_requested raises an error where a sequence is longer than a chunk
    head_losses = HEAD_LOSSES
    no_fake_quantization = "whose router is a linear layer that returns two tensors (Llama4Router)"

    def chunk_mask(self, hidden: Tensor) -> Tensor | None:
        """The mask of blocks that see a chunk; of fused attention where the sequence is as long as one."""
        recipe = self.recipe
        if recipe.masks_packing:
            return packed_mask(hidden, additive=recipe.attention == "eager", chunked=True)
        if are_alike(recipe):
            return mask_of(hidden, recipe)
        tape, (batch, length, _) = hidden.tape, hidden.shape
        causal = tape.new("le", (1, 1, length, length), BOOL, False)
        chunks = tape.new("eq", (batch, 1, length, length), BOOL, True)  # counted from where each sample begins
        mask = tape.new("bitwise_and", (batch, 1, length, length), BOOL, True)
        del causal, chunks
        return mask

    def model(self, input_ids: Tensor) -> Tensor:
        """Llama4TextModel.forward, which asks its table of embeddings for the device of the weight."""
        with Outer(input_ids, read=(self.embed_tokens,)):
            return self.decoded(input_ids)

    def decoded(self, input_ids: Tensor) -> Tensor:
        """Its forward, which makes a mask of each kind."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        masks = self.chunk_mask(_embeds), mask_of(_embeds, recipe)
        hidden = _embeds
        rotary = rotary_embedding(position_ids, shape.head_size)
        dense = frozenset(experts_of(recipe).dense_layers)

        def kind(i: int) -> bool:
            return i in shape.unrotated_layers

        def block(i: int) -> Block:
            return Block(tape, recipe, i, masks[kind(i)], position_ids, rotary)

        hidden = run_blocks(
            tape, recipe.segments, block, hidden, kind=kind, alike=False, make_up=lambda i: (i in dense, kind(i))
        )
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Llama4
