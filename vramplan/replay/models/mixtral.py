"""Mixtral, as transformers 5.23 computes it (models/mixtral/modeling_mixtral.py): Llama's attention, and experts in
place of the feed-forward layer.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import GroupedExperts, TopKRouter, has_separate_experts, separate_experts
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe, RMSNorm, words
from vramplan.replay.models.part_names import NUMBERED_EXPERTS
from vramplan.replay.observers import Outer
from vramplan.replay.operators.views import view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, Tensor
from vramplan.values.model import ModelShape


class SparseMoeBlock:
    """MixtralSparseMoeBlock."""

    router: type[TopKRouter] = TopKRouter

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        first = len(tape.parameters)
        self.separate = separate_experts(tape, recipe, "MixtralExperts")
        if self.separate is None:
            self.gate = self.router(tape, recipe)
            self.experts = GroupedExperts(tape, recipe)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        hidden = view(hidden, (shape[0] * shape[1], shape[2]))
        if self.separate is not None:
            return view(self.separate(hidden), shape)
        with Outer(hidden, whole=self.parameters):
            _logits, weights, indices = self.gate(hidden)
            hidden = self.experts(hidden, indices, weights)
        return view(hidden, shape)


class Block(LlamaBlock):
    """MixtralDecoderLayer."""

    mixture: type[SparseMoeBlock] = SparseMoeBlock

    def feeds(self, tape: Tape, recipe: Recipe) -> Callable[[Tensor], Tensor]:
        """The experts."""
        return self.mixture(tape, recipe)


class Mixtral(Llama):
    """MixtralForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    separates_experts = True
    knows_old_code = True
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    block: type[Block] = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING."""
        if has_separate_experts(shape):
            return {}
        return NUMBERED_EXPERTS

    def turned(self) -> int:
        """Elements of each head that rotary positions turn."""
        return self.recipe.shape.head_size

    def model(self, input_ids: Tensor) -> Tensor:
        """MixtralModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.positions
        if position_ids is None:
            position_ids = tape.new("arange", (1, input_ids.shape[1]), INT64, False)
        mask = mask_of(_embeds, recipe)
        hidden = _embeds
        rotary = self.rotary(hidden, self.turned())

        def block(i: int) -> Block:
            return self.block(tape, recipe, mask, position_ids, rotary)

        hidden = run_blocks(tape, recipe.segments, block, hidden)
        hidden = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Mixtral
