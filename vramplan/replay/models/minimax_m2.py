"""MiniMax-M2, as transformers 5.23 computes it (models/minimax_m2/modeling_minimax_m2.py): Mixtral, whose queries and
keys are normalised over all heads together and turned in part, and whose router has sigmoids and a bias."""

from __future__ import annotations

from typing import Any

from vramplan.replay.models import mixtral, neox
from vramplan.replay.models.experts import TopKRouter, experts_of
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE
from vramplan.replay.models.olmo2 import WholeNorms
from vramplan.replay.models.part_names import NUMBERED_EXPERTS
from vramplan.replay.operators.experts import div_in_place, gather_last, sigmoid, sum_last
from vramplan.replay.operators.views import to
from vramplan.replay.tensors import FP32, INT64, Tensor
from vramplan.values.model import ModelShape


class Attention(WholeNorms):
    """MiniMaxM2Attention."""

    turn = staticmethod(neox.apply_rotary)


class Router(TopKRouter):
    """MiniMaxM2TopKRouter: sigmoids in fp32, and a bias that only the choice sees."""

    def chosen(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the numbers of the chosen experts."""
        tape, batched, rows = logits.tape, logits.batched, (logits.shape[0], self.experts.active)
        scores = sigmoid(to(logits, FP32))
        _choice = tape.new("add", scores.shape, FP32, batched)
        _values = tape.new("topk", rows, FP32, batched)
        indices = tape.new("topk", rows, INT64, batched)
        weights = gather_last(scores, indices)
        return div_in_place(weights, sum_last(weights)), indices


class SparseMoeBlock(mixtral.SparseMoeBlock):
    """MiniMaxM2SparseMoeBlock."""

    router = Router


class Block(mixtral.Block):
    """MiniMaxM2DecoderLayer."""

    attention = Attention
    mixture = SparseMoeBlock


class MiniMaxM2(mixtral.Mixtral):
    """MiniMaxM2ForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    block = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING, by the pattern that Transformers converts it with: Mixtral's."""
        return NUMBERED_EXPERTS

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, twice, in fp32, and a bias of each router."""
        shape, experts = self.recipe.shape, experts_of(self.recipe)
        bias = self.recipe.weight_dtype.itemsize * experts.routed
        return [*[4 * (self.turned() // 2)] * 2, *[bias] * shape.layers]

    def turned(self) -> int:
        """Elements of each head that rotary positions turn."""
        shape = self.recipe.shape
        return int(shape.head_size * shape.partial_rotary_factor)


FORWARD: Any = MiniMaxM2
