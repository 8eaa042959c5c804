"""T5 and mT5 with a language-model head, as transformers 5.23 computes them (models/t5/modeling_t5.py and
models/mt5/modeling_mt5.py): two stacks, relative positions as a bias that all blocks of a stack share.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.blocks import each_is_a_checkpoint, run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.gpt2 import causal_mask
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    LOGITS,
    SELECTIVE,
    Linear,
    Output,
    Recipe,
    output_embedding,
    times_head,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS, NORMS
from vramplan.replay.models.recomputed import recomputable
from vramplan.replay.models.stacks import shift_right, split_at, text_pair
from vramplan.replay.observers import entered
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.biased import (
    biased_attention,
    clamp,
    permute,
    where,
    where_of_each,
    zeros_with_gradient,
)
from vramplan.replay.operators.elementwise import (
    add,
    add_scalar,
    dropout,
    mean_last,
    mul,
    mul_scalar,
    pow_scalar,
    rsqrt,
)
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import BOOL, FP16, FP32, INT64, DType, Shape, Tensor

BUCKETS = 32  # relative_attention_num_buckets, the same in every released checkpoint

State = tuple[Tensor, Tensor | None, Tensor | None]  # hidden state, position bias, that of the cross-attention


class RMSNorm:
    """T5LayerNorm: no mean and no bias; unlike Llama's it multiplies before it casts."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType) -> None:
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", (width,), dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        return entered(self.composed, hidden, self.weight)

    def composed(self, hidden: Tensor) -> Tensor:
        """The norm as the model's code has it."""
        variance = mean_last(pow_scalar(to(hidden, FP32)))
        hidden = mul(hidden, rsqrt(add_scalar(variance)))
        if self.weight.dtype is not FP32:
            hidden = to(hidden, self.weight.dtype)
        return mul(self.weight, hidden)


class FeedForward:
    """T5LayerFF, with T5DenseActDense or T5DenseGatedActDense."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, inner = shape.hidden_size, shape.intermediate_size
        self.p, self.inner_p, self.gated = recipe.hidden_dropout, recipe.activation_dropout, shape.gated_mlp
        self.act = ACTIVATIONS[shape.activation]
        self.wi = Linear(tape, "wi_0" if self.gated else "wi", width, inner, dtype, bias=False)
        if self.gated:
            self.wi_1 = Linear(tape, "wi_1", width, inner, dtype, bias=False)
        self.wo = Linear(tape, "wo", inner, width, dtype, bias=False)
        self.layer_norm = RMSNorm(tape, "layer_norm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        forwarded = self.layer_norm(hidden)
        forwarded = self.dense_gated(forwarded) if self.gated else self.dense(forwarded)
        hidden = add(hidden, dropout(forwarded, self.p))
        return hidden

    def dense(self, hidden: Tensor) -> Tensor:
        """T5DenseActDense.forward: the cast is there for weights that were kept in fp32."""
        hidden = self.wi(hidden)
        hidden = self.act(hidden)
        hidden = dropout(hidden, self.inner_p)
        hidden = to(hidden, self.wo.weight.dtype)
        hidden = self.wo(hidden)
        return hidden

    def dense_gated(self, hidden: Tensor) -> Tensor:
        """T5DenseGatedActDense.forward."""
        _hidden_gelu = self.act(self.wi(hidden))
        _hidden_linear = self.wi_1(hidden)
        hidden = mul(_hidden_gelu, _hidden_linear)
        hidden = dropout(hidden, self.inner_p)
        hidden = to(hidden, self.wo.weight.dtype)
        hidden = self.wo(hidden)
        return hidden


class Attention:
    """T5Attention: no scale, and a bias on the scores."""

    def __init__(self, tape: Tape, recipe: Recipe, *, causal: bool, positions: bool) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.recipe, self.causal = recipe, causal
        inner = shape.attention_heads * shape.head_size
        self.q = Linear(tape, "q", shape.hidden_size, inner, dtype, bias=False)
        self.k = Linear(tape, "k", shape.hidden_size, inner, dtype, bias=False)
        self.v = Linear(tape, "v", shape.hidden_size, inner, dtype, bias=False)
        self.o = Linear(tape, "o", inner, shape.hidden_size, dtype, bias=False)
        self.table = None
        if positions:
            self.table = tape.parameter("relative_attention_bias.weight", (BUCKETS, shape.attention_heads), dtype)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_bias: Tensor | None, key_value: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        shape = self.recipe.shape
        batch, length, _ = hidden.shape
        query = transpose(view(self.q(hidden), (batch, length, shape.attention_heads, shape.head_size)), 1, 2)
        current = hidden if key_value is None else key_value
        kv_shape = (batch, current.shape[1], shape.attention_heads, shape.head_size)
        key = transpose(view(self.k(current), kv_shape), 1, 2)
        value = transpose(view(self.v(current), kv_shape), 1, 2)
        if position_bias is None:
            position_bias = self.bias(query, key.shape[2])
        output, weights = recomputable(self.recipe, self.core, query, key, value, mask, position_bias)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = self.o(output)
        return output, position_bias, weights

    def core(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, position_bias: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        if self.recipe.attention == "eager":
            return eager_attention(query, key, value, mask, position_bias, self.recipe.attention_dropout)
        return self.fused_attention(query, key, value, mask, position_bias), None

    def bias(self, query: Tensor, kv_length: int) -> Tensor:
        """The first block's bias: of relative positions, or nothing for the cross-attention.

        That nothing needs a gradient under checkpointing, which Transformers' switch turns on for it.
        """
        if self.table is not None:
            return self.position_bias(query.shape[2], kv_length)
        tape, shape = query.tape, (1, query.shape[1], query.shape[2], kv_length)
        if any(segment.checkpointed for segment in self.recipe.segments):
            alone = tape.batch == 1 and self.recipe.shape.decoder_layers == 1 and self.recipe.attention == "eager"
            alone = alone and not tape.told.checkpointed  # a reentrant one brings a gradient of its own
            return zeros_with_gradient(tape, shape, query.dtype, shared=alone)
        return tape.new("zeros", shape, query.dtype, False)

    def position_bias(self, length: int, kv_length: int) -> Tensor:
        """T5Attention.compute_bias: [1, a, S, S], one number of the table for each pair of positions."""
        assert self.table is not None
        tape = self.table.tape
        _context = tape.new("add", (length, 1), INT64, False)
        _memory = tape.new("arange", (1, kv_length), INT64, False)
        _relative = tape.new("sub", (length, kv_length), INT64, False)
        _bucket = buckets(_relative, bidirectional=not self.causal)
        values = embedding(_bucket, self.table)
        heads = self.table.shape[1]
        return view(permute(values, (2, 0, 1)), (1, heads, length, kv_length))

    def fused_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, position_bias: Tensor
    ) -> Tensor:
        """sdpa_attention_forward (integrations/sdpa_attention.py), with the position bias as its mask."""
        _mask = self.bias_mask(position_bias, mask)
        if self.recipe.attention == "math":
            output = scaled_dot_product(query, key, value, "math", self.recipe.attention_dropout, _mask)
        else:
            output = biased_attention(query, key, value, _mask)
        return contiguous(transpose(output, 1, 2))

    def bias_mask(self, position_bias: Tensor, mask: Tensor | None) -> Tensor:
        """create_position_bias_mask of the same file: the bias, where tokens may be attended to."""
        tape, (_, _, length, kv_length) = position_bias.tape, position_bias.shape
        if mask is not None:
            return contiguous(where_of_each(mask, position_bias))
        if not self.causal or length == 1:
            return contiguous(position_bias)
        causal = tape.new("ge", (1, 1, length, kv_length), BOOL, False)
        mask = where(causal, position_bias)
        return contiguous(mask)


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, position_bias: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """eager_attention_forward."""
    weights = mul_scalar(matmul(query, transpose(key, 2, 3)))
    weights = add(weights, position_bias)
    if mask is not None:
        weights = add(weights, mask)
    weights = softmax(weights)
    weights = dropout(weights, p)
    output = matmul(weights, value)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


def bounded(x: Tensor, clamp_value: Tensor) -> Tensor:
    """The clamp of T5Block in fp16 (models/t5/modeling_t5.py)."""
    low = x.tape.new("neg", (), FP32, False)
    return clamp(x, low, clamp_value)


def largest(x: Tensor) -> Tensor:
    """What T5Block clamps to: the largest number of fp16, or less if there is an infinity."""
    tape = x.tape
    absolute = tape.like("abs", x)
    infinite = tape.like("eq", x, BOOL)
    del absolute
    any_ = tape.new("any", (), BOOL, False)
    del infinite
    one = tape.new("scalar_tensor", (), FP32, False)
    other = tape.new("scalar_tensor", (), FP32, False)
    result = tape.new("where", (), FP32, False)
    del any_, one, other
    return result


def buckets(relative: Tensor, *, bidirectional: bool) -> Tensor:
    """T5Attention._relative_position_bucket: whole numbers [S, S], operator by operator."""
    tape, shape = relative.tape, relative.shape

    def number(operator: str, dtype: DType = INT64) -> Tensor:
        return tape.new(operator, shape, dtype, False)

    found = None
    if bidirectional:
        found = number("gt", BOOL)
        found = to(found, INT64)
        found = mul_scalar(found)
        found = add_scalar(found)
        position = number("abs")
    else:
        zeros = number("zeros_like")
        position = number("minimum")
        del zeros
        position = mul_scalar(position)
    _is_small = number("lt", BOOL)
    large = to(position, FP32)
    large = mul_scalar(large)
    large = number("log", FP32)
    large = mul_scalar(large)
    large = mul_scalar(large)
    large = to(large, INT64)
    large = add_scalar(large)
    full = number("full_like")
    large = number("minimum")
    del full
    chosen = number("where")
    if found is None:
        return add_scalar(chosen)
    return found  # the chosen ones are added to it in place


class Block:
    """T5Block: self-attention, in the decoder cross-attention, the feed-forward layer."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        masks: Sequence[Tensor | None],
        encoder: Tensor | None,
        *,
        decodes: bool,
        first: bool,
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p, self.encoder = recipe.hidden_dropout, encoder
        self.mask, self.cross_mask = masks
        self.attention = Attention(tape, recipe, causal=decodes, positions=first)
        self.attention_norm = RMSNorm(tape, "layer_norm", width, dtype)
        if decodes:
            self.cross = Attention(tape, recipe, causal=False, positions=False)
            self.cross_norm = RMSNorm(tape, "layer_norm", width, dtype)
        self.feed_forward = FeedForward(tape, recipe)

    def __call__(self, state: State) -> State:
        hidden, bias, cross_bias = state
        hidden, bias, _weights = self.attend(hidden, bias)
        if hidden.dtype is FP16:
            _clamp_value = largest(hidden)
            hidden = bounded(hidden, _clamp_value)
        if self.encoder is not None:
            hidden, cross_bias, _weights = self.attend_to_encoder(hidden, cross_bias)
            if hidden.dtype is FP16:
                _clamp_value = largest(hidden)
                hidden = bounded(hidden, _clamp_value)
        hidden = self.feed_forward(hidden)
        if hidden.dtype is FP16:
            _clamp_value = largest(hidden)
            hidden = bounded(hidden, _clamp_value)
        return hidden, bias, cross_bias

    def attend(self, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """T5LayerSelfAttention.forward."""
        _normed = self.attention_norm(hidden)
        output, bias, weights = self.attention(_normed, self.mask, bias)
        output = add(hidden, dropout(output, self.p))
        return output, bias, weights

    def attend_to_encoder(self, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """T5LayerCrossAttention.forward."""
        _normed = self.cross_norm(hidden)
        output, bias, weights = self.cross(_normed, self.cross_mask, bias, self.encoder)
        output = add(hidden, dropout(output, self.p))
        return output, bias, weights


class T5:
    """T5ForConditionalGeneration, with its loss."""

    peaks_published = True
    keeps_fp32 = True
    selective = SELECTIVE
    equal_blocks = False  # of two stacks, and the first of each makes the bias that the others share
    block_lists = ("encoder.block", "decoder.block")
    takes_padding = True
    takes_virtual_tokens = True
    reads_first_stack = True
    asks_for_checkpoints = True  # T5Attention.forward: whether its bias of zeros needs a gradient
    block_returns = 3  # the position biases of both attentions too; source: modeling_t5.py, T5Block.forward
    carried_between_blocks = ((1, 1), (4, 2))  # source: modeling_t5.py, T5Stack.forward
    no_flash_attention = "its positions are a bias on the scores, which the flash kernels do not take"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        size = (shape.vocabulary_size, shape.hidden_size)
        with tape.building(EMBEDDINGS):
            self.shared = tape.parameter("shared.weight", size, recipe.weight_dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers of the module."""
        return []

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids and labels."""
        return text_pair(self.recipe)

    def __call__(self, input_ids: Tensor, labels: Tensor, *more: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        with tape.building("encoder"):
            hidden = self.stack(input_ids, None)
        decoder_ids = more[0] if recipe.loss == LOGITS else shift_right(labels)
        with tape.building("decoder"):
            _decoder_outputs = self.stack(decoder_ids, hidden)
        sequence = _decoder_outputs
        if recipe.shape.tied_embeddings and recipe.shape.transformers_model_type == "t5":  # mT5 scales nothing
            sequence = mul_scalar(sequence)
        logits = times_head(sequence, output_embedding(tape, recipe, self.shared))
        if recipe.loss == LOGITS:
            return Output(None, (logits, hidden))
        batch, length, vocabulary = logits.shape
        rows = view(logits, (batch * length, vocabulary))
        loss = entropy(rows, view(labels, (batch * length,)), recipe)
        return Output(loss, (logits, hidden))

    def stack(self, ids: Tensor, encoder: Tensor | None) -> Tensor:
        """T5Stack.forward: the encoder, or the decoder that attends to what the encoder gave."""
        tape, recipe = self.tape, self.recipe
        shape, decodes = recipe.shape, encoder is not None
        _embeds = embedding(ids, self.shared) if decodes else words(ids, self.shared)
        masks = self.masks(_embeds, encoder)
        segments = split_at(recipe.segments, shape.layers)[decodes]
        handed = {"mask": masks[0], "encoder": encoder, "cross_mask": masks[1]}
        switched = each_is_a_checkpoint(recipe.segments)
        # the first checkpoint after the one that makes the biases keeps them longest
        maker = segments[0].blocks if segments[0].checkpointed else 1
        # fused kernels pad the rows of the bias's gradient, which backward has until the next block adds its own to it
        last = segments[-1].blocks if segments[-1].checkpointed else 1
        before_last = sum(segment.times * segment.blocks for segment in segments) - last - 1
        hidden, _bias, _cross_bias = run_blocks(
            tape,
            segments,
            lambda i: Block(tape, recipe, masks, encoder, decodes=decodes, first=i == 0),
            initial(dropout(_embeds, recipe.embedding_dropout)),
            kind=lambda i: (i < maker, i == before_last),
            start=shape.layers if decodes else 0,
            carries=True,
            handed=handed if switched else {},
            switched=switched,
        )
        hidden = RMSNorm(tape, "final_layer_norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        hidden = dropout(hidden, recipe.hidden_dropout)
        return hidden

    def masks(self, embeds: Tensor, encoder: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Of the stack's own tokens, and of those of the encoder that the decoder attends to."""
        recipe = self.recipe
        eager = recipe.attention == "eager"
        own = cross = None
        if encoder is not None:
            own = causal_mask(embeds) if eager else None
            if recipe.padded:
                cross = padded_mask(encoder, causal=False, additive=eager, queries=embeds.shape[1])
        elif recipe.padded:
            own = padded_mask(embeds, causal=False, additive=eager)
        return own, cross


def initial(hidden: Tensor) -> State:
    """What the first block of a stack is given."""
    return hidden, None, None


FORWARD = T5
