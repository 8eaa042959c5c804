"""Qwen1.5-MoE, Qwen2-MoE and Qwen3-MoE, as transformers 5.23 computes them (models/qwen2_moe/modeling_qwen2_moe.py,
models/qwen3_moe/modeling_qwen3_moe.py): Llama's attention, and experts in all blocks but those that the configuration
leaves dense; Qwen2-MoE has an expert that every token passes beside them.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import (
    GatedMLP,
    GroupedExperts,
    TopKRouter,
    experts_of,
    has_separate_experts,
    separate_experts,
)
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama, Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Recipe, RMSNorm, words
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.replay.models.windows import window_mask
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, mul
from vramplan.replay.operators.experts import sigmoid
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.views import to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import FP32, INT64, Tensor
from vramplan.values.model import ModelShape


class Router(TopKRouter):
    """Qwen2MoeTopKRouter: Mixtral's but for its casts."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """The softmax of `dtype=torch.float`, one kernel from fp16."""
        return softmax(logits, FP32)

    def scores(self, top_value: Tensor, logits: Tensor) -> Tensor:
        """The weights of the experts, in the dtype of the logits."""
        return to(top_value, logits.dtype)


class SparseMoeBlock:
    """Qwen3MoeSparseMoeBlock, or Qwen2MoeSparseMoeBlock where there is a shared expert."""

    modules = "SeparateExperts"  # those of Transformers before 5.0
    router_first = False  # without a shared expert: the module of the router comes before that of the experts

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shared = experts_of(recipe).shared_intermediate_size
        self.shares, first = shared is not None, len(tape.parameters)
        self.separate = separate_experts(tape, recipe, self.modules)
        if self.separate is not None:
            pass  # router and experts are in it
        elif shared is None and not self.router_first:
            self.experts = GroupedExperts(tape, recipe)
            self.gate = Router(tape, recipe)
        else:
            self.gate = Router(tape, recipe)
            self.experts = GroupedExperts(tape, recipe)
        if shared is not None:
            hidden, dtype = recipe.shape.hidden_size, recipe.weight_dtype
            self.shared_expert = GatedMLP(tape, recipe, shared)
            self.shared_expert_gate = Linear(tape, "shared_expert_gate", hidden, 1, dtype, bias=False)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        flat = view(hidden, (shape[0] * shape[1], shape[2]))
        if self.separate is not None:
            return view(self.one_by_one(flat), shape)
        with Outer(flat, whole=self.parameters):
            shared = self.shared_expert(flat) if self.shares else None
            _logits, weights, indices = self.gate(flat)
            output = self.experts(flat, indices, weights)
            if shared is not None:
                shared = mul(sigmoid(self.shared_expert_gate(flat)), shared)
                output = add(output, shared)
        return view(output, shape)

    def one_by_one(self, flat: Tensor) -> Tensor:
        """Of Transformers before 5.0: the shared expert comes last."""
        assert self.separate is not None
        output = self.separate(flat)
        if not self.shares:
            return output
        shared = self.shared_expert(flat)
        shared = mul(sigmoid(self.shared_expert_gate(flat)), shared)
        return add(output, shared)


class Block(LlamaBlock):
    """Qwen2MoeDecoderLayer, Qwen3MoeDecoderLayer."""

    mixture: type[SparseMoeBlock] = SparseMoeBlock

    def __init__(
        self, tape: Tape, recipe: Recipe, dense: bool, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary
    ) -> None:
        self.dense = dense
        super().__init__(tape, recipe, mask, position_ids, rotary)

    def feeds(self, tape: Tape, recipe: Recipe) -> Callable[[Tensor], Tensor]:
        """The experts; in a dense block a feed-forward layer."""
        return GatedMLP(tape, recipe, recipe.shape.intermediate_size) if self.dense else self.mixture(tape, recipe)


class QwenMoe(Llama):
    """Qwen2MoeForCausalLM, Qwen3MoeForCausalLM, with their loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    separates_experts = True
    knows_old_code = True
    with_old_attention: tuple[str, ...] = ("qwen2_moe",)
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    dropping_caches = ("qwen2_moe",)
    block: type[Block] = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2 has none for qwen2_moe, whose name stands for the rule that the others follow.

        So it adapts the linear layers of that and leaves its experts out (_MOE_TARGET_MODULE_MAPPING, and Transformers'
        conversion_mapping.py, _MODEL_TO_CONVERSION_PATTERN).
        """
        is_mapped = shape.transformers_model_type == "qwen3_moe" and not has_separate_experts(shape)
        return GATED_EXPERTS if is_mapped else {}

    def model(self, input_ids: Tensor) -> Tensor:
        """Qwen3MoeModel.forward; Qwen2MoeModel.forward makes a second mask, of a window that nobody uses."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.positions
        if position_ids is None:
            position_ids = tape.new("arange", (1, input_ids.shape[1]), INT64, False)
        mask = mask_of(_embeds, recipe)
        _sliding = self.unused_mask(_embeds) if recipe.shape.transformers_model_type == "qwen2_moe" else None
        hidden = _embeds
        rotary = self.rotary(hidden)
        dense = frozenset(experts_of(recipe).dense_layers)

        def block(i: int) -> Block:
            return self.block(tape, recipe, i in dense, mask, position_ids, rotary)

        hidden = run_blocks(tape, recipe.segments, block, hidden, make_up=lambda i: i in dense)
        hidden = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden

    def buffers(self) -> list[int]:
        """Those of the rotary positions; Transformers 4 had some in each attention layer of qwen2_moe too."""
        found = super().buffers()
        if self.recipe.shape.transformers_model_type == "qwen2_moe" and has_separate_experts(self.recipe.shape):
            return found * (1 + self.recipe.shape.layers)
        return found

    def unused_mask(self, embeds: Tensor) -> Tensor:
        """create_sliding_window_causal_mask for a window of 0, which no mask can be left out for (masking_utils.py)."""
        eager = self.recipe.attention == "eager"
        if self.recipe.padded or self.recipe.masked:
            return padded_mask(embeds, causal=True, additive=eager, windowed=True)
        mask = window_mask(embeds)
        return self.tape.new("where", mask.shape, embeds.dtype, True) if eager else mask


FORWARD = QwenMoe
