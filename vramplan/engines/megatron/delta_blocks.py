"""Qwen3-Next and Qwen3.5 for text in megatron-core: a gated delta net in three of four blocks, gated attention in the
others, and experts beside a gated one that every token passes.

Nobody traced them. Names that start with an underscore are locals of that code which outlive their use.
Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), core/ssm/gated_delta_net/{common,gdn}.py, core/transformer/
attention.py (`attention_output_gate`), core/transformer/moe/shared_experts.py (`moe_shared_expert_gate`).
"""

from __future__ import annotations

from vramplan.engines.megatron.attention import Attention
from vramplan.engines.megatron.delta_kernels import delta_gates, delta_rule, gated, l2_normed, short_conv
from vramplan.engines.megatron.layers import ColumnParallelLinear, FusedRMSNorm, Projected, RowParallelLinear
from vramplan.engines.megatron.mixtures import Mixtures
from vramplan.engines.megatron.model import Block
from vramplan.engines.megatron.moe import MoELayer, SharedExperts
from vramplan.replay.models.delta_net import linear_of
from vramplan.replay.models.modules import Recipe
from vramplan.replay.operators.elementwise import mul
from vramplan.replay.operators.experts import sigmoid
from vramplan.replay.operators.indexing import split_with_sizes, unsqueeze
from vramplan.replay.operators.products import linear as product
from vramplan.replay.operators.views import clone, contiguous, expand, split, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape


class GatedSelfAttention(Attention):
    """SelfAttention with `attention_output_gate`."""

    gated_output = True


class DeltaNetLayer(Attention):
    """GatedDeltaNet in the place of attention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        whole, devices, dtype = linear_of(recipe), recipe.slice.tensor, recipe.weight_dtype
        linear = whole._replace(key_heads=whole.key_heads // devices, value_heads=whole.value_heads // devices)
        hidden, width = recipe.shape.hidden_size, whole.channels + whole.values + 2 * whole.value_heads
        self.recipe, self.linear = recipe, linear
        self.in_proj = ColumnParallelLinear(tape, recipe, "in_proj", hidden, width, bias=False)
        self.conv1d = tape.parameter("conv1d.weight", (linear.channels, 1, linear.kernel), dtype)
        self.dt_bias = tape.parameter("dt_bias", (linear.value_heads,), dtype)
        self.decay_log = tape.parameter("A_log", (linear.value_heads,), dtype)
        self.out_norm = FusedRMSNorm(tape, "out_norm", linear.value_size, dtype)
        self.out_proj = RowParallelLinear(tape, recipe, "out_proj", whole.values, hidden, bias=False)

    def __call__(self, hidden: Tensor, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None) -> Projected:
        one = self.linear
        mixed = self.in_proj(hidden)
        if self.recipe.slice.context > 1:  # all of a sequence for some heads: as many elements, by an all-to-all
            mixed = clone(mixed)
        mixed = transpose(mixed, 0, 1)
        qkv, gate, beta, alpha = split_with_sizes(mixed, (one.channels, one.values, one.value_heads, one.value_heads))
        del mixed
        qkv = short_conv(qkv, self.conv1d)
        query, key, value = self.of_heads(qkv)
        del qkv
        gates = delta_gates(alpha, self.decay_log, self.dt_bias)
        beta, gate = contiguous(sigmoid(beta)), contiguous(gate)
        out = delta_rule(query, key, value, gates, beta)
        del query, key, value, gates, beta
        batch, length = out.shape[:2]
        rows = (batch * length * one.value_heads, one.value_size)
        out = gated(self.out_norm(view(out, rows)), view(gate, rows))
        del gate
        out = contiguous(transpose(view(out, (batch, length, one.values)), 0, 1))
        return self.out_proj(clone(out) if self.recipe.slice.context > 1 else out)

    def of_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """_prepare_input_for_gated_delta_rule: queries and keys are normed, and repeated for the heads of values."""
        one, (batch, length, _) = self.linear, qkv.shape
        both, value = split_with_sizes(qkv, (2 * one.keys, one.values))
        both = l2_normed(view(contiguous(both), (batch, length, 2 * one.key_heads, one.key_size)))
        query, key = split(view(both, (batch, length, 2 * one.keys)), one.keys)
        query, key = (view(x, (batch, length, one.key_heads, one.key_size)) for x in (query, key))
        times = one.value_heads // one.key_heads
        if times > 1:
            query, key = self.repeated(query, times), self.repeated(key, times)
        value = view(contiguous(value), (batch, length, one.value_heads, one.value_size))
        return contiguous(query), contiguous(key), value

    def repeated(self, x: Tensor, times: int) -> Tensor:
        """`repeat_interleave` over the heads."""
        batch, length, heads, size = x.shape
        wide = expand(unsqueeze(x, 3), (batch, length, heads, times, size))
        return view(clone(wide), (batch, length, heads * times, size))


class GatedSharing(SharedExperts):
    """SharedExpertMLP with a gate for each token."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        self.gate_weight = tape.parameter("gate_weight", (1, recipe.shape.hidden_size), recipe.weight_dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = super().__call__(hidden)
        return mul(out, sigmoid(product(hidden, self.gate_weight)))


class GatedMoELayer(MoELayer):
    """MoELayer with it."""

    sharing = GatedSharing


class GatedBlock(Block):
    """TransformerLayer with gated attention."""

    attention: type[Attention] = GatedSelfAttention
    mixture = GatedMoELayer


class DeltaBlock(GatedBlock):
    """TransformerLayer with a gated delta net."""

    attention = DeltaNetLayer


class DeltaModel(Mixtures):
    """GPTModel of Qwen3-Next and Qwen3.5."""

    block = GatedBlock

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """With experts or without."""
        return not shape.takes_images

    @staticmethod
    def made_of(shape: ModelShape, number: int) -> tuple[bool, bool]:
        """Whether a block of the model has a delta net, and whether it has no experts."""
        mixture, linear = shape.experts, shape.linear_attention
        assert linear is not None
        return number in linear.layers, mixture is None or number in mixture.dense_layers

    def make_up(self, number: int) -> tuple[bool, bool]:
        """The same of a block of this stage."""
        return self.made_of(self.recipe.shape, self.recipe.slice.start + number)

    def is_dense(self, number: int) -> bool:
        """Whether a block of this stage has no experts."""
        return self.make_up(number)[1]

    def block_class(self, number: int) -> type[Block]:
        """What makes a block of this stage."""
        return DeltaBlock if self.make_up(number)[0] else self.block

    @property
    def rotary_size(self) -> int:
        """Elements of each head that positions turn."""
        return int(self.recipe.shape.head_size * self.recipe.shape.partial_rotary_factor)


FORWARD = DeltaModel
