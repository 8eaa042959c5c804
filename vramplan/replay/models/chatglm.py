"""ChatGLM2 and ChatGLM3, as their own code computes them (THUDM/chatglm3-6b, modeling_chatglm.py): the sequence before
the batch, rotary positions in a function of TorchScript, keys and values written out for all heads, fused attention
alone, and a loss that copies the logits.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import CAUSAL_LM_FP32, LOGITS, SMOOTHED, Linear, Output, Recipe, times_head
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD, NORMS
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, add_scalar, dropout, mean_last, mul, pow_scalar, rsqrt, silu
from vramplan.replay.operators.ends import cross_entropy, embedding
from vramplan.replay.operators.indexing import permute, split_with_sizes, unsqueeze
from vramplan.replay.operators.scripted import scripted_rotary
from vramplan.replay.operators.views import contiguous, expand, narrow, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.smoothing import smoothed_cross_entropy
from vramplan.replay.tensors import FP32, DType, Tensor


class RMSNorm:
    """RMSNorm: cast back after the weight."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType) -> None:
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", (width,), dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        dtype = hidden.dtype
        variance = mean_last(pow_scalar(to(hidden, FP32)))
        hidden = mul(hidden, rsqrt(add_scalar(variance)))
        return to(mul(self.weight, hidden), dtype)


class Attention:
    """SelfAttention and CoreAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.recipe = recipe
        self.width, self.key_width = (
            heads * shape.head_size for heads in (shape.attention_heads, shape.key_value_heads)
        )
        fused = self.width + 2 * self.key_width
        self.query_key_value = Linear(tape, "query_key_value", shape.hidden_size, fused, dtype, bias=shape.qkv_bias)
        self.dense = Linear(tape, "dense", self.width, shape.hidden_size, dtype, bias=False)

    def __call__(self, hidden: Tensor, cache: Tensor) -> Tensor:
        shape = self.recipe.shape
        length, batch, _ = hidden.shape
        _mixed = self.query_key_value(hidden)
        query, key, value = split_with_sizes(_mixed, (self.width, self.key_width, self.key_width))
        query = view(query, (length, batch, shape.attention_heads, shape.head_size))
        key = view(key, (length, batch, shape.key_value_heads, shape.head_size))
        value = view(value, (length, batch, shape.key_value_heads, shape.head_size))
        query = scripted_rotary(query, cache)
        key = scripted_rotary(key, cache)
        key = self.for_all_heads(key)
        value = self.for_all_heads(value)
        context = self.core(query, key, value)
        return self.dense(context)

    def for_all_heads(self, x: Tensor) -> Tensor:
        """Keys or values written out for the heads of their groups."""
        shape = self.recipe.shape
        length, batch, groups, size = x.shape
        five = unsqueeze(x, 3)
        wide = expand(five, (length, batch, groups, shape.attention_heads // groups, size))
        return view(contiguous(wide), (length, batch, shape.attention_heads, size))

    def core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """CoreAttention.forward with PyTorch 2: no dropout, whatever attention_dropout says."""
        length, batch, _, _ = query.shape
        query, key, value = permute(query, (1, 2, 0, 3)), permute(key, (1, 2, 0, 3)), permute(value, (1, 2, 0, 3))
        context = scaled_dot_product(query, key, value, self.recipe.attention, 0.0)
        context = permute(context, (2, 0, 1, 3))
        return view(context, (length, batch, self.width))


class MLP:
    """MLP: gated, one projection for both halves."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.inner = shape.intermediate_size
        self.dense_h_to_4h = Linear(tape, "dense_h_to_4h", shape.hidden_size, 2 * self.inner, dtype, bias=False)
        self.dense_4h_to_h = Linear(tape, "dense_4h_to_h", self.inner, shape.hidden_size, dtype, bias=False)

    def __call__(self, hidden: Tensor) -> Tensor:
        inner = self.dense_h_to_4h(hidden)
        inner = self.swiglu(inner)
        return self.dense_4h_to_h(inner)

    def swiglu(self, x: Tensor) -> Tensor:
        """swiglu."""
        gate, up = split(x, self.inner)
        return mul(silu(gate), up)


class Block:
    """GLMBlock."""

    def __init__(self, tape: Tape, recipe: Recipe, cache: Tensor) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p, self.cache = recipe.hidden_dropout, cache
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.self_attention = Attention(tape, recipe)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", width, dtype)
        self.mlp = MLP(tape, recipe)

    def __call__(self, hidden: Tensor) -> Tensor:
        normed = self.input_layernorm(hidden)
        _attention = self.self_attention(normed, self.cache)
        residual = hidden
        middle = dropout(_attention, self.p)
        middle = add(residual, middle)
        normed = self.post_attention_layernorm(middle)
        _mlp = self.mlp(normed)
        residual = middle
        output = dropout(_mlp, self.p)
        output = add(residual, output)
        return output


class ChatGLM:
    """ChatGLMForConditionalGeneration, with its loss."""

    no_all_linear = "whose own code does not say which layer is its head, so PEFT makes a target of that too"
    block_returns = 2  # with its cache; source: THUDM/chatglm2-6b, modeling_chatglm.py, GLMTransformer.forward
    bounded_positions = True
    no_head_losses = "its code copies the logits into another order before its own loss"
    own_loss = CAUSAL_LM_FP32  # it copies the logits in fp32 for it, and returns them in their own type
    no_generation = "it has a cache of its own"
    asks_no_inputs = True  # the switch of its own code does nothing but checkpoint
    no_eager_attention = "its code calls fused attention alone"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter(
                "word_embeddings.weight", (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype
            )

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, in the dtype of the weights."""
        return [self.recipe.weight_dtype.itemsize * (self.recipe.shape.head_size // 4)]

    def __call__(self, input_ids: Tensor, labels: Tensor) -> Output:
        entropy, shape = self.entropy(), self.recipe.shape
        hidden = self.transformer(input_ids)
        size = (shape.vocabulary_size, shape.hidden_size)
        with self.tape.building(HEAD):
            weight = self.tape.parameter("output_layer.weight", size, self.recipe.weight_dtype)
        logits = times_head(hidden, weight)
        logits = contiguous(transpose(logits, 0, 1))
        if entropy is None:
            return Output(None, logits)
        logits = to(logits, FP32)
        batch, length, vocabulary = logits.shape
        _shifted = contiguous(narrow(logits, 1, length - 1))
        _labels = contiguous(narrow(labels, 1, length - 1))
        rows = batch * (length - 1)
        loss = entropy(view(_shifted, (rows, vocabulary)), view(_labels, (rows,)))
        logits = to(logits, hidden.dtype)
        loss = to(loss, hidden.dtype)
        return Output(loss, logits)

    def entropy(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """The cross-entropy of its forward pass, as it is or with smoothed labels; None: the caller makes the loss."""
        loss = self.recipe.loss
        if loss == SMOOTHED:
            return smoothed_cross_entropy
        if loss not in (CAUSAL_LM_FP32, LOGITS):  # pragma: no cover - the job admits no other
            raise ValueError(f"no such loss: {loss}")
        return cross_entropy if loss == CAUSAL_LM_FP32 else None

    def transformer(self, input_ids: Tensor) -> Tensor:
        """ChatGLMModel.forward."""
        tape, recipe = self.tape, self.recipe
        hidden = contiguous(transpose(embedding(input_ids, self.word_embeddings), 0, 1))
        _embeds = hidden
        cache = self.rotary(input_ids.shape[1])
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, cache), hidden)
        hidden = RMSNorm(tape, "final_layernorm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden

    def rotary(self, length: int) -> Tensor:
        """RotaryEmbedding.forward_impl of all positions that there are, of which the first are looked at."""
        tape, shape = self.tape, self.recipe.shape
        pairs = shape.head_size // 4
        theta = tape.new("mul", (pairs,), FP32, False)
        positions = tape.new("arange", (shape.max_positions,), FP32, False)
        angles = tape.new("mul", (shape.max_positions, pairs), FP32, False)
        cos, sin = (tape.new(name, (shape.max_positions, pairs), FP32, False) for name in ("cos", "sin"))
        cache = tape.new("stack", (shape.max_positions, pairs, 2), FP32, False)
        del cos, sin
        cache = to(cache, self.recipe.weight_dtype)
        del theta, positions, angles
        return cache.alias((length, 1, pairs, 2), None, None)


FORWARD = ChatGLM
