"""Models of experts whose blocks differ, as megatron-core has them: some without experts, and experts of every token.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), core/models/gpt/gpt_layer_specs.py (`moe_layer_freq`);
core/transformer/moe/shared_experts.py; core/transformer/multi_latent_attention.py, MLASelfAttention; not traced.
"""

from __future__ import annotations

from vramplan.engines.megatron.attention import Attention
from vramplan.engines.megatron.layers import (
    ColumnParallelLinear,
    DuplicatedLinear,
    Norm,
    Projected,
    RowParallelLinear,
    apply_rotary,
    gathered,
    norm_of,
)
from vramplan.engines.megatron.model import Block, Megatron
from vramplan.engines.megatron.tensor_parallel import core_checkpoint, gather_sequence
from vramplan.replay.models.modules import Recipe
from vramplan.replay.operators.delta_rule import pad
from vramplan.replay.operators.indexing import split_with_sizes, unsqueeze
from vramplan.replay.operators.views import cat, contiguous, expand, narrow, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import LatentAttention, ModelShape


def latent_of(recipe: Recipe) -> LatentAttention:
    """The sizes of the latents."""
    found = recipe.shape.latent_attention
    assert found is not None
    return found


class LatentSelfAttention(Attention):
    """MLASelfAttention: queries, keys and values by way of narrow latents, and one rotary key of all heads."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, latent, devices = recipe.shape, latent_of(recipe), recipe.slice.tensor
        hidden, heads = shape.hidden_size, shape.attention_heads
        self.recipe, self.latent = recipe, latent
        self.heads = self.groups = heads // devices
        self.value_size = latent.value_size
        query, rank = heads * (latent.plain_size + latent.rotary_size), latent.query_rank
        if rank is None:
            self.linear_q = ColumnParallelLinear(tape, recipe, "linear_q_proj", hidden, query, bias=False)
        else:
            self.linear_q_down = DuplicatedLinear(tape, recipe, "linear_q_down_proj", hidden, rank)
            self.query_norm = norm_of(tape, recipe, "q_layernorm", rank)
            self.linear_q = ColumnParallelLinear(tape, recipe, "linear_q_up_proj", rank, query, bias=False)
        narrow = latent.key_value_rank
        self.linear_kv_down = DuplicatedLinear(tape, recipe, "linear_kv_down_proj", hidden, narrow + latent.rotary_size)
        self.narrow_norm = norm_of(tape, recipe, "kv_layernorm", narrow)
        wide = heads * (latent.plain_size + latent.value_size)
        self.linear_kv = ColumnParallelLinear(tape, recipe, "linear_kv_up_proj", narrow, wide, bias=False)
        self.linear_proj = RowParallelLinear(
            tape, recipe, "linear_proj", heads * latent.value_size, hidden, bias=shape.output_bias
        )

    def __call__(self, hidden: Tensor, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None) -> Projected:
        query, key, value = self.projected(hidden, angles)
        if self.recipe.recomputes_core:
            context = core_checkpoint(
                lambda q, k, v, given: self.core(q, k, v, given, scratch), query, key, value, mask=mask
            )
        else:
            context = self.core(query, key, value, mask, scratch)
        return self.linear_proj(context)

    def projected(self, hidden: Tensor, angles: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """get_query_key_value_tensors."""
        latent, heads = self.latent, self.heads
        assert angles is not None
        if latent.query_rank is None:
            query = self.linear_q(hidden)
        else:
            query = self.linear_q(self.query_norm(self.linear_q_down(hidden)))
        _combined = self.linear_kv_down(hidden)
        compressed, turning = split_with_sizes(_combined, (latent.key_value_rank, latent.rotary_size))
        turning = gather_sequence(turning, gathered(self.recipe))
        both = self.linear_kv(self.narrow_norm(compressed))
        length, batch, _ = query.shape
        query = view(query, (length, batch, heads, latent.plain_size + latent.rotary_size))
        both = view(both, (length, batch, heads, latent.plain_size + latent.value_size))
        q_plain, q_turning = split_with_sizes(query, (latent.plain_size, latent.rotary_size))
        k_plain, value = split_with_sizes(both, (latent.plain_size, latent.value_size))
        query = cat([q_plain, apply_rotary(q_turning, angles)], -1)
        turning = apply_rotary(unsqueeze(contiguous(turning), 2), angles)
        turning = expand(turning, (length, batch, heads, latent.rotary_size))
        key = cat([k_plain, turning], -1)
        return query, key, contiguous(value)

    def over_devices(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Where devices share a sequence, values are made as wide as keys, and the result is cut."""
        missing = query.shape[-1] - value.shape[-1]
        context = super().over_devices(query, key, pad(value, -1, missing) if missing else value)
        length, batch, _ = context.shape
        context = narrow(view(context, (length, batch, self.heads, query.shape[-1])), -1, self.value_size)
        return view(contiguous(context), (length, batch, self.heads * self.value_size))


class LatentBlock(Block):
    """TransformerLayer with MLASelfAttention."""

    attention = LatentSelfAttention


class WholeNormAttention(Attention):
    """SelfAttention of OLMoE, whose queries and keys are normed over all heads of a device together.

    Source: NVIDIA-NeMo/Megatron-Bridge 067f987d, src/megatron/bridge/models/olmoe/olmoe_provider.py.
    """

    def normed_widths(self, size: int) -> tuple[int, int]:
        """Those of all heads."""
        return self.heads * size, self.groups * size

    def normed(self, x: Tensor, norm: Norm) -> Tensor:
        """The heads side by side, and back."""
        length, batch, heads, size = x.shape
        return view(norm(view(x, (length, batch, heads * size))), x.shape)


class WholeNormBlock(Block):
    """TransformerLayer of OLMoE."""

    attention = WholeNormAttention


class Mixtures(Megatron):
    """GPTModel of GLM-4.5, and of Llama 4's language model."""

    untraced = True
    equal_blocks = False

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Blocks of both kinds, and shared experts, are modelled here."""
        return shape.experts is not None

    def block_of(self, number: int, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None) -> Block:
        """A block, without experts where its number is one of those."""
        recipe = self.recipe
        if self.is_dense(number):
            recipe = recipe._replace(shape=recipe.shape._replace(experts=None))
        return self.block_class(number)(self.tape, recipe, mask, angles, scratch)

    def block_class(self, number: int) -> type[Block]:
        """What makes a block of this stage."""
        return self.block

    def is_dense(self, number: int) -> bool:
        """Whether a block of this stage has no experts."""
        return self.made_of(self.recipe.shape, self.recipe.slice.start + number) is True

    @staticmethod
    def made_of(shape: ModelShape, number: int) -> object:
        """Whether a block of the model has no experts."""
        return shape.experts is not None and number in shape.experts.dense_layers

    def with_experts(self, blocks: int) -> int:
        """Of so many blocks of a stage, those with experts."""
        return blocks - sum(self.is_dense(number) for number in range(blocks))


class WholeNormsModel(Mixtures):
    """GPTModel of OLMoE."""

    block = WholeNormBlock


class LatentMixtures(Mixtures):
    """GPTModel of DeepSeek-V2 and V3, Kimi K2 and Moonlight."""

    block = LatentBlock

    @property
    def rotary_size(self) -> int:
        """Elements of each head that positions turn."""
        return latent_of(self.recipe).rotary_size


FORWARD = Mixtures
