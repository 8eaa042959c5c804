"""DBRX, as transformers 5.23 computes it (models/dbrx/modeling_dbrx.py): one projection of queries, keys and values,
which are clipped; layer norms without bias; experts whose weights are three tensors, run one expert after another.

No other implementation of the experts takes the place of that loop, as the class does not ask for one. Which tokens an
expert gets is data: each gets the mean of each sequence, rounded up. Names that start with an underscore are locals of
that code which outlive their use; they keep their tensor alive here as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.experts import experts_of
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Rotary, apply_rotary
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    output_embedding,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.positions import Positions
from vramplan.replay.models.recomputed import cached
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, dropout, mul
from vramplan.replay.operators.expert_loops import mul_in_place, norm_1, product, select_one
from vramplan.replay.operators.experts import divide, index_rows, top_k
from vramplan.replay.operators.indexing import split_with_sizes
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.piecewise import clamp
from vramplan.replay.operators.scattered import index_add_in_place, index_places
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, INT64, Tensor


class Attention:
    """DbrxAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, key = shape.hidden_size, shape.key_value_heads * shape.head_size
        self.recipe, self.sizes = recipe, (width, key, key)
        self.qkv = Linear(tape, "Wqkv", width, sum(self.sizes), dtype, bias=False)
        self.out_proj = Linear(tape, "out_proj", width, width, dtype, bias=False)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        batch, length, width = hidden.shape
        _qkv = self.qkv(hidden)
        _qkv = clamp(_qkv)
        query, key, value = (self.heads(one) for one in split_with_sizes(_qkv, self.sizes))
        query, key = apply_rotary(query, key, *rotary)
        key, value = cached(key, value)
        output, weights = attend(recipe, query, key, value, mask, position_ids)
        output = contiguous(view(output, (batch, length, width)))
        output = self.out_proj(output)
        return output, weights

    def heads(self, x: Tensor) -> Tensor:
        """A part [B, S, a d] with its heads before its positions."""
        batch, length, width = x.shape
        size = self.recipe.shape.head_size
        return transpose(view(x, (batch, length, width // size, size)), 1, 2)


class Experts:
    """DbrxExperts and its DbrxExpertGLU, which has the weights of all experts."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype, counts = recipe.shape, recipe.weight_dtype, experts_of(recipe)
        self.counts = counts
        rows = counts.routed * counts.intermediate_size
        self.w1, self.v1, self.w2 = (
            tape.parameter(f"experts.mlp.{name}", (rows, shape.hidden_size), dtype) for name in ("w1", "v1", "w2")
        )
        self.parameters = (self.w1, self.v1, self.w2)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        with Outer(hidden, indices, weights, read=self.parameters):
            return self.loop(hidden, weights)

    def loop(self, hidden: Tensor, weights: Tensor) -> Tensor:
        """DbrxExperts.forward: it takes the weights of each expert out of the module inside, and hands them in."""
        tape, whole, batched = hidden.tape, hidden.shape, hidden.batched
        batch, length, width = whole
        tokens, count, active = batch * length, self.counts.routed, self.counts.active
        hidden = view(hidden, (tokens, width))
        final = tape.new("zeros", (tokens, width), hidden.dtype, batched)
        _mask = tape.new("one_hot", (tokens, active, count + 1), INT64, batched)
        sums = tape.new("sum", (count + 1,), INT64, False)
        greater = tape.new("greater", (count + 1,), BOOL, False)
        del sums
        _hit = tape.new("nonzero", (count, 1), INT64, False)
        del greater
        rows = batch * -(-length * active // count)
        one_expert = (count, self.counts.intermediate_size, width)
        _states: Tensor | None = None
        _places: Tensor | None = None
        for _ in range(count):
            _places = tape.new("nonzero", (rows, 2), INT64, batched)  # the choice and the token of each, as two views
            v1, w1, w2 = (select_one(view(one, one_expert)) for one in (self.v1, self.w1, self.w2))
            _states = self.expert(index_rows(hidden, _places), w1, v1, w2)
            chosen = index_places(weights, _places)
            _states = mul(_states, chosen)
            del chosen
            final = index_add_in_place(final, _places, _states)
        return view(final, whole)

    def expert(self, x: Tensor, w1: Tensor, v1: Tensor, w2: Tensor) -> Tensor:
        """DbrxExpertGLU.forward."""
        with Outer(x, w1, v1, w2, own=self.parameters):
            gate = product(x, transpose(w1, 0, 1))
            up = product(x, transpose(v1, 0, 1))
            gate = self.act(gate)
            states = mul(gate, up)
            return product(states, w2)


class FeedForward:
    """DbrxFFN."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        counts = experts_of(recipe)
        self.active, self.noisy = counts.active, counts.noisy
        first = len(tape.parameters)
        self.router = Linear(
            tape, "router.layer", recipe.shape.hidden_size, counts.routed, recipe.weight_dtype, bias=False
        )
        self.experts = Experts(tape, recipe)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        with Outer(hidden, whole=self.parameters):
            return self.mixed(hidden)

    def mixed(self, hidden: Tensor) -> Tensor:
        """DbrxFFN.forward, and DbrxRouter.forward in it."""
        if self.noisy:
            hidden = mul_in_place(hidden, hidden.tape.like("uniform_", hidden))
        batch, length, width = hidden.shape
        _logits = self.router(view(hidden, (batch * length, width)))
        weights, indices = self.route(_logits)
        return self.experts(hidden, indices, weights)

    def route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the experts of each token, which add up to 1, and their numbers."""
        logits = softmax(logits, logits.dtype)
        value, indices = top_k(logits, self.active)
        value = divide(value, norm_1(value))
        return value, indices


class Block:
    """DbrxBlock and its DbrxNormAttentionNorm."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor, rotary: Rotary) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.norm_1 = LayerNorm(tape, "norm_1", width, dtype, bias=False)
        self.attn = Attention(tape, recipe)
        self.norm_2 = LayerNorm(tape, "norm_2", width, dtype, bias=False)
        self.ffn = FeedForward(tape, recipe)
        self.mask, self.rotary = mask, rotary
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        residual, hidden = self.attended(hidden)
        hidden = self.ffn(hidden)
        hidden = dropout(hidden, self.p)
        hidden = add(residual, hidden)
        return hidden

    def attended(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """DbrxNormAttentionNorm.forward: what comes out of the attention, and the same normalised."""
        residual = hidden
        hidden = to(self.norm_1(hidden), hidden.dtype)
        hidden, _weights = self.attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = dropout(hidden, self.p)
        hidden = add(hidden, residual)
        residual = hidden
        hidden = to(self.norm_2(hidden), hidden.dtype)
        return residual, hidden


class Dbrx(Positions):
    """DbrxForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    block_lists = ("blocks",)
    loops_over_experts = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.wte = tape.parameter("wte.weight", (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice, in fp32."""
        return [4 * (self.recipe.shape.head_size // 2)] * 2

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.recipe.shape.head_size)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.wte)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """DbrxModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.wte)
        position_ids = self.position_ids(input_ids)
        mask = mask_of(_embeds, recipe)
        hidden = _embeds
        rotary = self.cosines_and_sines(hidden, recipe.shape.head_size)
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, position_ids, rotary), hidden)
        hidden = LayerNorm(tape, "norm_f", recipe.shape.hidden_size, recipe.weight_dtype, bias=False)(hidden)
        return hidden


FORWARD = Dbrx
