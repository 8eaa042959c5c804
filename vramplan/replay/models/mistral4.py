"""Mistral Small 4 for text, as transformers 5.23 computes it (models/mistral4/modeling_mistral4.py): DeepSeek-V3 with a
softmax in its router, and queries that are scaled by their places."""

from __future__ import annotations

from typing import Any

from vramplan.replay.models import deepseek
from vramplan.replay.models.ministral3 import scaled_by_places
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import linear
from vramplan.replay.tensors import Tensor


class Attention(deepseek.Attention):
    """Mistral4Attention."""

    def scaled(self, query: Tensor, position_ids: Tensor) -> Tensor:
        """The queries times the scale of their places."""
        return scaled_by_places(query, position_ids)


class Router(deepseek.Router):
    """Mistral4TopkRouter: in the dtype of the hidden states, without a bias."""

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """One number for each token and expert."""
        return linear(hidden, weight)

    def scores(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities, which are what the choice sees too."""
        scores = softmax(logits)
        return scores, scores.alias(scores.shape, scores.strides, None)


class MoE(deepseek.MoE):
    """Mistral4MoE."""

    router = Router


class Block(deepseek.Block):
    """Mistral4DecoderLayer."""

    attention = Attention
    mixture = MoE


class Mistral4(deepseek.DeepSeek):
    """Mistral4ForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    block = Block

    def router_biases(self) -> list[int]:
        """None."""
        return []


FORWARD: Any = Mistral4
