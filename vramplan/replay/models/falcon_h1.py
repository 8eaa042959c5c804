"""Falcon-H1, as transformers 5.23 computes it (models/falcon_h1/modeling_falcon_h1.py): attention and a state space
beside each other in every block, with numbers that everything is multiplied by.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import MLP as LlamaMLP
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe, RMSNorm
from vramplan.replay.models.recurrent import Recurrent, recurrent_mask
from vramplan.replay.models.state_space import GatedNorm as PlainGatedNorm
from vramplan.replay.models.state_space import Mixer as PlainMixer
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul, mul_scalar, pow_scalar, rsqrt, silu
from vramplan.replay.operators.views import to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor


class GatedNorm(PlainGatedNorm):
    """FalconH1RMSNormGated: the weight is multiplied before the groups are joined, and the gate may come last."""

    def __call__(self, hidden: Tensor, gate: Tensor) -> Tensor:
        dtype, groups = hidden.dtype, self.space.groups
        gate_first = self.space.norm == "gate-first"
        if gate_first:
            hidden = mul(hidden, silu(to(gate, FP32)))
        hidden = to(hidden, FP32)
        *lead, width = hidden.shape
        hidden = view(hidden, (*lead, groups, width // groups))
        _variance = mean_last(pow_scalar(hidden))
        hidden = mul(hidden, rsqrt(add_scalar(_variance)))
        hidden = mul(view(self.weight, (groups, width // groups)), hidden)
        hidden = view(hidden, (*lead, width))
        if not gate_first:
            hidden = mul(hidden, silu(to(gate, FP32)))
        return to(hidden, dtype)


class Mixer(PlainMixer):
    """FalconH1Mixer: its input and what it projects are multiplied by numbers, and most models normalise nothing."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        self.multipliers = tape.constant((1, 1, self.width), recipe.buffer_dtype, False, "mup_vector")

    def make_norm(self, tape: Tape, recipe: Recipe) -> PlainGatedNorm | None:
        """The norm, where there is one."""
        return None if self.space.norm == "none" else GatedNorm(tape, recipe)

    def projected(self, hidden: Tensor) -> Tensor:
        """The gate, what goes through the convolution, and how long a step is."""
        hidden = mul_scalar(hidden)
        return mul(self.in_proj(hidden), self.multipliers)

    def normed(self, scan: Tensor, gate: Tensor) -> Tensor:
        """What came out of the states, through its gate."""
        return mul(scan, silu(gate)) if self.norm is None else self.norm(scan, gate)


class Attention(LlamaAttention):
    """FalconH1Attention: the keys are multiplied by a number."""

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions."""
        shape = self.recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        query = transpose(view(self.q_proj(hidden), heads), 1, 2)
        key = mul_scalar(transpose(view(self.k_proj(hidden), kv_heads), 1, 2))
        value = transpose(view(self.v_proj(hidden), kv_heads), 1, 2)
        return query, key, value


class MLP(LlamaMLP):
    """FalconH1MLP."""

    def __call__(self, x: Tensor) -> Tensor:
        y = mul(self.up_proj(x), self.act(mul_scalar(self.gate_proj(x))))
        y = mul_scalar(self.down_proj(y))
        return y


class Block:
    """FalconH1DecoderLayer."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        masks: tuple[Tensor | None, Tensor | None],
        position_ids: Tensor | None,
        rotary: Rotary,
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.feed_forward = MLP(tape, recipe)
        self.mamba = Mixer(tape, recipe)
        self.self_attn = Attention(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.pre_ff_layernorm = RMSNorm(tape, "pre_ff_layernorm", width, dtype)
        self.mask, self.recurrent_mask = masks
        self.position_ids, self.rotary = position_ids, rotary

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        mamba = self.mamba(hidden, self.recurrent_mask)
        mamba = mul_scalar(mamba)
        attended, _weights = self.self_attn(mul_scalar(hidden), self.mask, self.position_ids, self.rotary)
        attended = mul_scalar(attended)
        hidden = add(mamba, attended)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.pre_ff_layernorm(hidden)
        hidden = self.feed_forward(hidden)
        hidden = add(residual, hidden)
        return hidden


class FalconH1(Recurrent):
    """FalconH1ForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    scales_logits = True
    attends_beside = True
    takes_padding = True
    takes_packing = True
    no_all_linear = "as PEFT ends with an error for out_proj, which that word stands for too"
    all_linear_beyond_lora = True  # tuners/tuners_utils.py, _check_lora_target_modules_mamba, looks at LoRA and its kin
    not_adapted = ("out_proj",)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, and what each block's projection is multiplied by."""
        shape, space = self.recipe.shape, self.recipe.shape.state_space
        assert space is not None
        width = space.values + space.channels + space.heads
        return [*super().buffers(), *[self.recipe.buffer_dtype.itemsize * width] * shape.layers]

    def embedded(self, input_ids: Tensor) -> Tensor:
        """The embeddings of the tokens, times `embedding_multiplier`."""
        return mul_scalar(super().embedded(input_ids))

    def model(self, input_ids: Tensor) -> Tensor:
        """FalconH1Model.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = self.embedded(input_ids)
        hidden = _embeds
        position_ids = self.position_ids(input_ids)
        masks = mask_of(_embeds, recipe), recurrent_mask(self.padding)
        rotary = self.rotary(hidden)

        def block(_: int) -> Block:
            return Block(tape, recipe, masks, position_ids, rotary)

        hidden = run_blocks(tape, recipe.segments, block, hidden)
        hidden = RMSNorm(tape, "final_layernorm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = FalconH1
