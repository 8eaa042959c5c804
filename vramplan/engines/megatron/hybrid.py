"""Nemotron-H, Nemotron Nano 2 and Nemotron 3 as megatron-core computes them: blocks of a state space, attention, a
feed-forward layer or experts, one of them each.

A state space runs by mamba-ssm's kernel always; its heads and groups are divided over the tensor-parallel devices.
Nobody traced it. Names that start with an underscore are locals of that code which outlive their use.
Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), core/ssm/{mamba_layer,mamba_mixer,mlp_layer}.py, core/models/hybrid/
{hybrid_block,hybrid_layer_specs}.py; mamba_ssm/ops/triton/layernorm_gated.py.
"""

from __future__ import annotations

from vramplan.engines.megatron.attention import Attention
from vramplan.engines.megatron.layers import ColumnParallelLinear, FusedRMSNorm, Projected, RowParallelLinear, norm_of
from vramplan.engines.megatron.model import MLP, Block, Megatron
from vramplan.engines.megatron.moe import MoELayer
from vramplan.engines.megatron.tensor_parallel import bias_dropout_add
from vramplan.replay.models.modules import Recipe
from vramplan.replay.models.nemotron_h import FULL, MOE, SPACE, kind_of
from vramplan.replay.models.state_space import space_of
from vramplan.replay.operators.contrastive import exp
from vramplan.replay.operators.elementwise import neg
from vramplan.replay.operators.mamba_kernels import Weights, split_conv1d_scan
from vramplan.replay.operators.views import clone, contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape


class MambaMixer:
    """MambaMixer, with the path that keeps little."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        whole, devices, dtype = space_of(recipe), recipe.slice.tensor, recipe.weight_dtype
        space = whole._replace(heads=whole.heads // devices, groups=whole.groups // devices)
        hidden, width = recipe.shape.hidden_size, whole.values + whole.channels + whole.heads
        self.space, self.devices = space, recipe.slice.context
        self.in_proj = ColumnParallelLinear(tape, recipe, "in_proj", hidden, width, bias=False)
        self.conv1d = tape.parameter("conv1d.weight", (space.channels, 1, space.kernel), dtype)
        self.conv1d_bias = tape.parameter("conv1d.bias", (space.channels,), dtype)
        self.dt_bias = tape.parameter("dt_bias", (space.heads,), dtype)
        self.decay_log = tape.parameter("A_log", (space.heads,), dtype)
        self.skip = tape.parameter("D", (space.heads,), dtype)
        self.norm = FusedRMSNorm(tape, "norm", space.values, dtype)
        self.out_proj = RowParallelLinear(tape, recipe, "out_proj", whole.values, hidden, bias=False)

    def __call__(self, hidden: Tensor) -> Projected:
        projected = contiguous(transpose(self.shared(self.in_proj(hidden)), 0, 1))
        decay = neg(exp(to(self.decay_log, FP32)))
        conv = view(self.conv1d, (self.space.channels, self.space.kernel))
        own = Weights(conv, self.conv1d_bias, self.dt_bias, decay, self.skip, None, None, None)
        out = self.shared(contiguous(transpose(split_conv1d_scan(projected, own, self.space), 0, 1)))
        del projected
        return self.out_proj(self.norm(out))  # ExtendedRMSNorm, of all groups; the gate was the kernel's

    def shared(self, x: Tensor) -> Tensor:
        """Where devices share a sequence each scans all of it for some heads: as many elements, by an all-to-all.

        Source: core/ssm/mamba_context_parallel.py, MambaContextParallel.
        """
        return clone(x) if self.devices > 1 else x


class HybridBlock(Block):
    """MambaLayer, TransformerLayer with attention alone, MLPLayer, or MoETransformerLayer."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        mask: Tensor | None,
        angles: Tensor | None,
        scratch: Tensor | None,
        *,
        kind: str,
    ) -> None:
        self.p, self.kind = recipe.hidden_dropout, kind
        self.angles, self.scratch, self.mask = angles, scratch, mask
        self.norm = norm_of(tape, recipe, "norm")
        self.mixer: MambaMixer | Attention | MLP | MoELayer
        if kind == SPACE:
            self.mixer = MambaMixer(tape, recipe)
        elif kind == FULL:
            self.mixer = Attention(tape, recipe)
        elif kind == MOE:
            self.mixer = MoELayer(tape, recipe)
        else:
            self.mixer = MLP(tape, recipe)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        _normed = self.norm(hidden)
        if isinstance(self.mixer, Attention):
            out, bias = self.mixer(_normed, self.mask, self.angles, self.scratch)
        else:
            out, bias = self.mixer(_normed)
        return bias_dropout_add(out, bias, residual, self.p)


class Hybrid(Megatron):
    """HybridModel, with the loss of pretrain_hybrid.py."""

    untraced = True
    equal_blocks = False

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """All of the family."""
        return True

    @staticmethod
    def made_of(shape: ModelShape, number: int) -> str:
        """What a block of the model is."""
        return kind_of(shape, number)

    def block_of(self, number: int, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None) -> Block:
        """A block of the kind that its number says."""
        return HybridBlock(self.tape, self.recipe, mask, angles, scratch, kind=self.make_up(number))

    def make_up(self, number: int) -> str:
        """What a block of this stage is."""
        return kind_of(self.recipe.shape, self.recipe.slice.start + number)

    def with_experts(self, blocks: int) -> int:
        """Of so many blocks of a stage, those with experts."""
        return sum(self.make_up(number) == MOE for number in range(blocks))


FORWARD = Hybrid
