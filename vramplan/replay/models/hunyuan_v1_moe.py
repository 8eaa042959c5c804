"""Hunyuan with experts, as transformers 5.23 computes it (models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py): the
attention of its dense models, experts in every block, and a feed-forward layer that each token passes beside them.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models import mixtral
from vramplan.replay.models.experts import GatedMLP, GroupedExperts, Routed, experts_of
from vramplan.replay.models.hunyuan_v1_dense import Attention
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Recipe
from vramplan.replay.models.part_names import GATED_EXPERTS, ROUTER
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add
from vramplan.replay.operators.experts import div_in_place, sum_last, top_k
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.views import to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape


class Gate:
    """HunYuanMoEV1Gate: a linear layer, in fp32 where its weight is that."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.experts = experts_of(recipe)
        hidden, count = recipe.shape.hidden_size, self.experts.routed
        self.wg = Linear(tape, "wg", hidden, count, recipe.weight_dtype, bias=False)

    def __call__(self, hidden: Tensor) -> Routed:
        if self.wg.weight.dtype == FP32:
            hidden = to(hidden, FP32)
        logits = self.wg(hidden)
        weights, selected = top_k(softmax(logits, FP32), self.experts.active)
        weights = div_in_place(weights, sum_last(weights))
        return logits, to(weights, logits.dtype), selected


class SparseMoeBlock:
    """HunYuanMoEV1Moe."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        first, width = len(tape.parameters), experts_of(recipe).shared_intermediate_size
        assert width is not None
        self.gate = Gate(tape, recipe)
        self.experts = GroupedExperts(tape, recipe)
        self.shared_mlp = GatedMLP(tape, recipe, width)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        with Outer(hidden, whole=self.parameters):
            shared = self.shared_mlp(hidden)
            hidden = view(hidden, (shape[0] * shape[1], shape[2]))
            _logits, weights, selected = self.gate(hidden)
            final = view(self.experts(hidden, selected, weights), shape)
            return add(final, shared)


class Block(mixtral.Block):
    """HunYuanMoEV1DecoderLayer."""

    attention = Attention
    mixture: type[Any] = SparseMoeBlock


class HunyuanMoe(mixtral.Mixtral):
    """HunYuanMoEV1ForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    block = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING, by the pattern that Transformers converts it with.

        The router is left out: its weight is that of a linear layer inside, which has a name of its own.
        """
        return {name: of for name, of in GATED_EXPERTS.items() if of != ROUTER}


FORWARD: Any = HunyuanMoe
