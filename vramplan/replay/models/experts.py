"""Mixtures of experts as transformers 5.23 runs them on CUDA (integrations/moe.py): products grouped by expert.

A training run on CUDA takes the implementation "grouped_mm" unless it is told otherwise (modeling_utils.py,
get_correct_experts_implementation). Names that start with an underscore are locals of that code which outlive their
use; they keep their tensor alive here as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.engines import imported
from vramplan.replay.models.modules import ACTIVATIONS, Linear, Recipe, gated_kernel
from vramplan.replay.observers import Outer, Trained
from vramplan.replay.operators.elementwise import add_in_place, mul
from vramplan.replay.operators.experts import div_in_place, grouped_product, index_rows, sum_last, sum_middle, top_k
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import split, to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.expert_adapters import inactive_parameters
from vramplan.replay.tensors import FP32, INT32, INT64, DType, Tensor
from vramplan.values.job import Adapter
from vramplan.values.model import Experts, ModelShape

Look = Callable[[str], Tensor]  # a weight by its name
Routed = tuple[Tensor, Tensor, Tensor]  # logits, weights and numbers of the chosen experts


def experts_of(recipe: Recipe) -> Experts:
    """The experts of a model that has some."""
    experts = recipe.shape.experts
    assert experts is not None
    return experts


def has_experts(shape: ModelShape) -> bool:
    """Whether a block of the model has experts, and not each one a plain feed-forward layer in their place."""
    return shape.experts is not None and len(shape.experts.dense_layers) < shape.layers


def active_parameters(shape: ModelShape, total: int, adapter: Adapter | None = None) -> int:
    """The parameters that one token passes: all but those of the routed experts that it is not sent to."""
    experts = shape.experts
    assert experts is not None
    one = (3 if shape.gated_mlp else 2) * (experts.latent_size or shape.hidden_size) * experts.intermediate_size
    if adapter is not None:
        one += inactive_parameters(adapter, shape)
    return total - (shape.layers - len(experts.dense_layers)) * (experts.routed - experts.active) * one


def has_separate_experts(shape: ModelShape) -> bool:
    """Whether the experts of a model are modules of linear layers, as in Transformers before 5.0."""
    return shape.experts is not None and shape.experts.separate


def separate_experts(tape: Tape, recipe: Recipe, kind: str) -> Callable[[Tensor], Tensor] | None:
    """Router and experts of a block whose experts are modules; None where they are stacked.

    `kind`: their class, in separate_experts.py.
    """
    if not has_separate_experts(recipe.shape):
        return None
    made: Callable[[Tensor], Tensor] = imported(f"vramplan.replay.models.separate_experts:{kind}")(tape, recipe)
    return made


class GatedMLP:
    """The gated feed-forward layer of a width of its own: MixtralMLP's kin, Qwen2MoeMLP, DeepseekV3MLP."""

    def __init__(self, tape: Tape, recipe: Recipe, width: int) -> None:
        hidden, dtype, bias = recipe.shape.hidden_size, recipe.weight_dtype, recipe.shape.mlp_bias
        self.gate_proj = Linear(tape, "gate_proj", hidden, width, dtype, bias=bias)
        self.up_proj = Linear(tape, "up_proj", hidden, width, dtype, bias=bias)
        self.down_proj = Linear(tape, "down_proj", width, hidden, dtype, bias=bias)
        self.act = ACTIVATIONS[recipe.shape.activation]
        self.kernel = gated_kernel(tape)

    def __call__(self, x: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.down_proj(self.kernel(self.gate_proj(x), self.up_proj(x)))
        return self.down_proj(mul(self.act(self.gate_proj(x)), self.up_proj(x)))


class GroupedExperts:
    """MixtralExperts and its kin under grouped_mm_experts_forward: the weights of all experts are two tensors."""

    first = "gate_up_proj"  # the name of the first of them,
    parts = 2  # of which each row of the second needs so many

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, experts, dtype = recipe.shape, experts_of(recipe), recipe.weight_dtype
        width, start = experts.intermediate_size, len(tape.parameters)
        hidden, wide = experts.latent_size or shape.hidden_size, self.parts * width
        self.gate_up_proj = tape.parameter(f"experts.{self.first}", (experts.routed, wide, hidden), dtype)
        self.make_bias(tape, self.first, (experts.routed, wide), dtype)
        self.down_proj = tape.parameter("experts.down_proj", (experts.routed, hidden, width), dtype)
        self.make_bias(tape, "down_proj", (experts.routed, hidden), dtype)
        self.act = ACTIVATIONS[shape.activation]
        self.experts = experts
        self.parameters = tuple(tape.parameters[start:])
        weights = {f"experts.{self.first}": self.gate_up_proj, "experts.down_proj": self.down_proj}
        self.adapter = tape.role(Trained).tensors(tape, weights)

    def __call__(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        if self.adapter is not None:
            output: Tensor = self.adapter(self.base, hidden, top_k_index, top_k_weights)
            return output
        return self.base(hidden, top_k_index, top_k_weights)

    def base(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor, look: Look | None = None) -> Tensor:
        """The experts as they are in the model; `look` gives their weights where an adapter changes them."""
        with Outer(hidden, top_k_weights, own=self.parameters):
            return self.grouped(hidden, top_k_index, top_k_weights, look)

    def grouped(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor, look: Look | None) -> Tensor:
        """grouped_mm_experts_forward."""
        tape, (tokens, width) = hidden.tape, hidden.shape
        count, active = self.experts.routed, self.experts.active
        rows, batched = (tokens * active,), hidden.batched
        sample_weights = view(top_k_weights, rows)
        _expert_ids = view(top_k_index, rows)
        _expert_ids_g = tape.new("sort", rows, INT64, batched)
        perm = tape.new("sort", rows, INT64, batched)
        selected = index_rows(hidden, tape.new("floor_divide", rows, INT64, batched))
        weights_g = index_rows(sample_weights, perm)
        _histc_input = tape.new("to", rows, INT32, batched)
        _tokens_per_expert = tape.new("histc", (count,), INT32, False)
        offsets = tape.new("cumsum", (count,), INT32, False)
        gate_up = self.gate_up_proj if look is None else look(f"experts.{self.first}")
        _biases = self.biases(self.first, _expert_ids_g)
        projected = grouped_product(to(selected, gate_up.dtype), gate_up, offsets)
        projected = projected if _biases is None else add_in_place(projected, _biases)
        projected = self.gated(projected)
        down = self.down_proj if look is None else look("experts.down_proj")
        _biases = self.biases("down_proj", _expert_ids_g)
        projected = grouped_product(to(projected, down.dtype), down, offsets)
        projected = projected if _biases is None else add_in_place(projected, _biases)
        weighted = mul(projected, view(weights_g, (*rows, 1)))
        inverse = tape.new("empty_like", rows, INT64, batched)
        arange = tape.new("arange", rows, INT64, batched)
        del arange
        weighted = index_rows(weighted, inverse)
        final = sum_middle(view(weighted, (tokens, active, width)))
        return to(final, hidden.dtype)

    def make_bias(self, tape: Tape, of: str, size: tuple[int, int], dtype: DType) -> None:
        """Of experts with biases that of a weight, which is registered behind it."""

    def biases(self, of: str, expert_ids: Tensor) -> Tensor | None:
        """What is added to each row, of experts with biases."""
        return None

    def gated(self, gate_up: Tensor) -> Tensor:
        """_default_apply_gate: the first half through the activation, times the second."""
        gate, up = split(gate_up, gate_up.shape[-1] // 2)
        return mul(self.act(gate), up)


class TopKRouter:
    """MixtralTopKRouter, Qwen2MoeTopKRouter: a probability for each expert in fp32, of which the largest count."""

    name = "gate.weight"  # of its parameter

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.experts = experts_of(recipe)
        self.weight = tape.parameter(self.name, (self.experts.routed, recipe.shape.hidden_size), recipe.weight_dtype)
        self.adapter = tape.role(Trained).tensors(tape, {self.name: self.weight})

    def __call__(self, hidden: Tensor) -> Routed:
        if self.adapter is not None:
            routed: Routed = self.adapter(self.base, hidden)
            return routed
        return self.base(hidden)

    def base(self, hidden: Tensor, look: Look | None = None) -> Routed:
        """The router as it is in the model; `look` gives its weight where an adapter changes it."""
        logits = linear(hidden, self.weight if look is None else look(self.name))
        weights, indices = self.chosen(logits)
        return logits, weights, indices

    def chosen(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the numbers of the chosen experts."""
        _probabilities = self.probabilities(logits)
        top_value, indices = top_k(_probabilities, self.experts.active)
        if self.experts.normalized:
            top_value = div_in_place(top_value, sum_last(top_value))
        return self.scores(top_value, logits), indices

    def probabilities(self, logits: Tensor) -> Tensor:
        """A cast to fp32, then the softmax."""
        return softmax(to(logits, FP32), FP32)

    def scores(self, top_value: Tensor, logits: Tensor) -> Tensor:
        """The weights of the experts, in fp32."""
        return top_value
