"""Apertus, as transformers 5.23 computes it (models/apertus/modeling_apertus.py): Llama with normalised queries and
keys, and a feed-forward layer of xIELU without a gate, whose two numbers are trained.

xIELU is that of Transformers' own operators, which runs where the package xielu is not installed.
"""

from __future__ import annotations

from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Recipe
from vramplan.replay.models.projections import three
from vramplan.replay.operators.contrastive import scale
from vramplan.replay.operators.delta_rule import softplus
from vramplan.replay.operators.elementwise import add, add_scalar, mul
from vramplan.replay.operators.latent import sub
from vramplan.replay.operators.piecewise import expm1, minimum, one_or_other
from vramplan.replay.operators.views import autocast_float
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, Tensor


class NormedHeads(LlamaAttention):
    """Attention that normalises queries and keys when their heads are before their positions."""

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions."""
        query, key, value = (self.heads(made()) for made in three(self, hidden))
        query = self.q_norm(query)
        key = self.k_norm(key)
        return query, key, value


class XIELU:
    """XIELUActivation (activations.py)."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.alpha_p = tape.parameter("act_fn.alpha_p", (1,), recipe.weight_dtype)
        self.alpha_n = tape.parameter("act_fn.alpha_n", (1,), recipe.weight_dtype)
        self.beta, self.eps = (tape.constant((), recipe.buffer_dtype, False) for _ in range(2))

    def __call__(self, x: Tensor) -> Tensor:
        alpha_p = softplus(autocast_float(self.alpha_p))
        alpha_n = add_scalar(softplus(autocast_float(self.alpha_n)))
        above = x.tape.like("gt", x, BOOL)
        rising = add(mul(mul(alpha_p, x), x), scale(x, self.beta))
        falling = add(mul(sub(expm1(minimum(x, self.eps)), x), alpha_n), scale(x, self.beta))
        return one_or_other(above, rising, falling)


class MLP:
    """ApertusMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.up_proj = Linear(tape, "up_proj", shape.hidden_size, shape.intermediate_size, dtype, bias=False)
        self.down_proj = Linear(tape, "down_proj", shape.intermediate_size, shape.hidden_size, dtype, bias=False)
        self.act = XIELU(tape, recipe)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class Block(LlamaBlock):
    """ApertusDecoderLayer."""

    attention = NormedHeads
    norm_names = ("attention_layernorm", "feedforward_layernorm")
    feed_forward = MLP


class Apertus(Llama):
    """ApertusForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block

    def buffers(self) -> list[int]:
        """Bytes of the buffers: those of Llama, and two numbers of each block in the element type of the weights."""
        return [*super().buffers(), *[self.recipe.buffer_dtype.itemsize] * (2 * self.recipe.shape.layers)]


FORWARD = Apertus
