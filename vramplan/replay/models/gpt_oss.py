"""gpt-oss, as transformers 5.23 computes it (models/gpt_oss/modeling_gpt_oss.py): a mixture of experts with biases, and
attention with a sink, one more score for each head that takes a part of the softmax. Every second block has a window.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import GroupedExperts, Look, Routed, TopKRouter, experts_of
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Llama, Rotary, repeat_kv
from vramplan.replay.models.modules import HEAD_LOSSES, Recipe, rotary_kernel, words
from vramplan.replay.models.olmo2 import RMSNorm
from vramplan.replay.models.windows import has_window
from vramplan.replay.observers import Trained
from vramplan.replay.operators.elementwise import add, add_scalar, dropout, mul, mul_scalar
from vramplan.replay.operators.experts import sigmoid, top_k
from vramplan.replay.operators.indexing import every_second
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.piecewise import clamp
from vramplan.replay.operators.products import linear, matmul
from vramplan.replay.operators.sinks import beside_sinks, max_last, rows_of_table, sub
from vramplan.replay.operators.views import cat, contiguous, expand, narrow, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, DType, Tensor
from vramplan.values.model import ModelShape


def rotary_embedding(hidden: Tensor, position_ids: Tensor, head_size: int) -> Rotary:
    """GptOssRotaryEmbedding.forward: cosines and sines [1, S, d/2], or one for each sequence, without gradients."""
    tape, dtype, batched = hidden.tape, hidden.dtype, position_ids.batched
    batch, length = position_ids.shape
    half = (batch, length, head_size // 2)
    positions = tape.new("to", (batch, length, 1), FP32, batched)
    frequencies = tape.new("mul", half, FP32, batched)
    del positions
    cos = mul_scalar(tape.new("cos", half, FP32, batched))
    sin = mul_scalar(tape.new("sin", half, FP32, batched))
    del frequencies
    return to(cos, dtype), to(sin, dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """_apply_rotary_emb: the halves of each head."""
    first_half, second_half = split(x, x.shape[-1] // 2)
    first = sub(mul(first_half, cos), mul(second_half, sin))
    second = add(mul(second_half, cos), mul(first_half, sin))
    return cat([first, second], -1)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb."""
    kernel = rotary_kernel(query.tape)
    if kernel is not None:
        return kernel(query, key, cos, sin)
    shape = (cos.shape[0], 1, *cos.shape[1:])
    cos, sin = cos.alias(shape, None, None), sin.alias(shape, None, None)
    return turned(query, cos, sin), turned(key, cos, sin)


class Attention(LlamaAttention):
    """GptOssAttention: eager, or kernels of a package, with a sink for each head."""

    turn = staticmethod(apply_rotary)

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        # a parameter of the module itself, which is listed before those of the modules in it
        self.sinks = tape.parameter("sinks", (recipe.shape.attention_heads,), recipe.weight_dtype)
        super().__init__(tape, recipe)

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward, or flash_attention_forward with `s_aux`."""
        if self.recipe.attention == "flash":
            output, weights = super().core(query, key, value, mask)
            return beside_sinks(output, self.sinks), weights
        shape = self.recipe.shape
        groups = shape.attention_heads // shape.key_value_heads
        keys = repeat_kv(key, groups)
        values = repeat_kv(value, groups)
        weights = mul_scalar(matmul(query, transpose(keys, 2, 3)))
        if mask is not None:
            weights = add(weights, mask)
        batch, heads, length, _ = query.shape
        sinks = expand(view(self.sinks, (1, heads, 1, 1)), (batch, heads, length, 1))
        combined = cat([weights, sinks], -1)
        combined = sub(combined, max_last(combined))
        _probabilities = softmax(combined, combined.dtype)
        _scores = narrow(_probabilities, -1, length)
        weights = to(dropout(_scores, self.recipe.attention_dropout), values.dtype)
        output = matmul(weights, values)
        output = contiguous(transpose(output, 1, 2))
        return output, weights


class Router(TopKRouter):
    """GptOssTopKRouter: the weights of the chosen experts are a softmax of their logits alone."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.experts = experts_of(recipe)
        count, hidden = self.experts.routed, recipe.shape.hidden_size
        self.weight = tape.parameter("router.weight", (count, hidden), recipe.weight_dtype)
        self.bias = tape.parameter("router.bias", (count,), recipe.weight_dtype)
        self.adapter = tape.role(Trained).tensors(tape, {"router.weight": self.weight})

    def base(self, hidden: Tensor, look: Look | None = None) -> Routed:
        """The router as it is in the model; `look` gives its weight where an adapter changes it."""
        logits = linear(hidden, self.weight if look is None else look("router.weight"), self.bias)
        top_value, indices = top_k(logits, self.experts.active)
        return logits, softmax(top_value, top_value.dtype), indices


class Experts(GroupedExperts):
    """GptOssExperts: with biases, and a gate that is clamped."""

    def make_bias(self, tape: Tape, of: str, size: tuple[int, int], dtype: DType) -> None:
        """Behind its weight."""
        setattr(self, f"{of}_bias", tape.parameter(f"experts.{of}_bias", size, dtype))

    def biases(self, of: str, expert_ids: Tensor) -> Tensor | None:
        """Of each row the bias of its expert."""
        return rows_of_table(getattr(self, f"{of}_bias"), expert_ids)

    def gated(self, gate_up: Tensor) -> Tensor:
        """GptOssExperts._apply_gate: gates and what they are multiplied with stand side by side."""
        gate, up = every_second(gate_up), every_second(gate_up)
        gate = clamp(gate, both=False)
        up = clamp(up)
        glu = mul(gate, sigmoid(mul_scalar(gate)))
        return mul(add_scalar(up), glu)


class MLP:
    """GptOssMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.router = Router(tape, recipe)
        self.experts = Experts(tape, recipe)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        shape = hidden.shape
        hidden = view(hidden, (shape[0] * shape[1], shape[2]))
        _logits, scores, indices = self.router(hidden)
        hidden = self.experts(hidden, indices, scores)
        return view(hidden, shape), scores


class Block:
    """GptOssDecoderLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor, rotary: Rotary) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.self_attn = Attention(tape, recipe)
        self.mlp = MLP(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", width, dtype)
        self.mask, self.rotary = mask, rotary
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        hidden, _weights = self.mlp(hidden)
        hidden = add(residual, hidden)
        return hidden


class GptOss(Llama):
    """GptOssForCausalLM, with its loss."""

    no_fused_attention = "each head has a sink among its scores, which scaled_dot_product_attention has no place for"
    package_flash = (
        "kernels of the flash-attn package take the sinks and windows as arguments, as those of FlashAttention 3 do "
        "(kernels-community/vllm-flash-attn3); composed, and never traced"
    )
    takes_padding = takes_packing = True
    takes_virtual_tokens = True
    head_losses = HEAD_LOSSES

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window, as every second does; each kind has its mask."""
        return has_window(shape, block)

    def model(self, input_ids: Tensor) -> Tensor:
        """GptOssModel.forward, which makes both masks whichever blocks there are.

        Positions are not handed to what makes masks, so that sequences of one row see each other.
        """
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        one_sequence = recipe._replace(packed=False)
        masks = mask_of(_embeds, one_sequence), mask_of(_embeds, one_sequence)
        hidden = _embeds
        rotary = rotary_embedding(hidden, position_ids, shape.head_size)

        def kind(i: int) -> bool:
            return self.block_kind(shape, i)

        def block(i: int) -> Block:
            return Block(tape, recipe, masks[kind(i)], position_ids, rotary)

        hidden = run_blocks(tape, recipe.segments, block, hidden, kind=kind)
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = GptOss
