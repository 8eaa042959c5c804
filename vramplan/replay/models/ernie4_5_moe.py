"""ERNIE 4.5 with experts, as transformers 5.23 computes it (models/ernie4_5_moe/modeling_ernie4_5_moe.py): ERNIE's
attention, and experts in most blocks, to which tokens are routed in fp32 whatever autocast says.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import GivenRotary, run_blocks
from vramplan.replay.models.ernie4_5 import Attention
from vramplan.replay.models.experts import GatedMLP, GroupedExperts, Look, Routed, TopKRouter, experts_of, has_experts
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Llama, Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe, RMSNorm, words
from vramplan.replay.models.olmo import PreNormBlock
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add
from vramplan.replay.operators.experts import divide, gather_last, sum_last
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.piecewise import clamp
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, Tensor
from vramplan.values.model import ModelShape


class Router(TopKRouter):
    """Ernie4_5_MoeTopKRouter: a bias that nobody trains has a part in the choice alone."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        count = self.experts.routed
        self.bias = tape.parameter("e_score_correction_bias", (1, count), recipe.weight_dtype, trainable=False)

    def base(self, hidden: Tensor, look: Look | None = None) -> Routed:
        """The router as it is in the model; `look` gives its weight where an adapter changes it."""
        tape = hidden.tape
        outer, tape.autocast = tape.autocast, None
        try:
            weight = self.weight if look is None else look(self.name)
            logits = linear(to(hidden, FP32), to(weight, FP32))
            weights, indices = self.chosen(logits)
        finally:
            tape.autocast = outer
        return logits, to(weights, hidden.dtype), indices

    def chosen(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the numbers of the chosen experts."""
        tape, rows, batched = logits.tape, (logits.shape[0], self.experts.active), logits.batched
        scores = softmax(logits, FP32)
        choice = tape.new("add", scores.shape, FP32, batched)
        _values = tape.new("topk", rows, FP32, batched)
        indices = tape.new("topk", rows, INT64, batched)
        del choice
        weights = gather_last(scores, indices)
        return divide(weights, clamp(sum_last(weights), both=False)), indices


class SparseMoeBlock:
    """Ernie4_5_MoeSparseMoeBlock."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        first, width = len(tape.parameters), experts_of(recipe).shared_intermediate_size
        self.gate = Router(tape, recipe)
        self.experts = GroupedExperts(tape, recipe)
        self.shared_experts = None if width is None else GatedMLP(tape, recipe, width)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        hidden = view(hidden, (shape[0] * shape[1], shape[2]))
        with Outer(hidden, whole=self.parameters):
            shared = None if self.shared_experts is None else self.shared_experts(hidden)
            _logits, weights, indices = self.gate(hidden)
            output = self.experts(hidden, indices, weights)
            if shared is not None:
                output = add(output, shared)
            return to(view(output, shape), hidden.dtype)


class Block(PreNormBlock):
    """Ernie4_5_MoeDecoderLayer."""

    attention = Attention
    norm = RMSNorm

    def __init__(
        self, tape: Tape, recipe: Recipe, dense: bool, mask: Tensor | None, position_ids: Tensor, rotary: Rotary | None
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        wide = recipe.shape.intermediate_size
        self.self_attn = self.attention(tape, recipe)
        self.mlp: Any = GatedMLP(tape, recipe, wide) if dense else SparseMoeBlock(tape, recipe)
        self.norms = [self.norm(tape, name, width, dtype) for name in self.norm_names]
        self.keep(mask, position_ids, rotary)


class ErnieMoe(Llama):
    """Ernie4_5_MoeForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True

    @staticmethod
    def no_flat_training(shape: ModelShape) -> str | None:
        """Where no block has experts, each weight is trained."""
        why = "a flat parameter cannot hold its router's bias, which is not trained, beside its weights"
        return why if has_experts(shape) else None

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING, by the pattern that Transformers converts it with."""
        return GATED_EXPERTS

    def model(self, input_ids: Tensor) -> Tensor:
        """Ernie4_5_MoeModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        mask = mask_of(_embeds, recipe)
        hidden = _embeds
        given = GivenRotary(tape, recipe.segments, self.fp32_rotary(hidden, shape.head_size))
        dense = frozenset(experts_of(recipe).dense_layers)

        def block(i: int) -> Block:
            return Block(tape, recipe, i in dense, mask, position_ids, given.own)

        hidden = run_blocks(
            tape, recipe.segments, block, hidden, make_up=lambda i: i in dense, handed=lambda _: given.handed
        )
        return RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)


FORWARD: Any = ErnieMoe
