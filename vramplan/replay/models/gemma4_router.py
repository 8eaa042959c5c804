"""The router of Gemma 4's experts, as transformers 5.23 computes it (models/gemma4/modeling_gemma4.py)."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.experts import experts_of
from vramplan.replay.models.modules import Linear, Recipe
from vramplan.replay.operators.elementwise import mul, mul_scalar
from vramplan.replay.operators.experts import div_in_place, index_numbers, sum_last, top_k
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor


class Router:
    """Gemma4TextRouter: what it sees is normalised and scaled, and each expert has a scale of its own."""

    def __init__(self, tape: Tape, recipe: Recipe, norm: Callable[[Tensor], Tensor]) -> None:
        width, dtype, self.experts, self.norm = recipe.shape.hidden_size, recipe.weight_dtype, experts_of(recipe), norm
        # parameters of the module itself, which are listed before those of the modules in it
        self.scale = tape.parameter("router.scale", (width,), dtype)
        self.per_expert_scale = tape.parameter("router.per_expert_scale", (self.experts.routed,), dtype)
        self.proj = Linear(tape, "router.proj", width, self.experts.routed, dtype, bias=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.norm(hidden)
        hidden = mul_scalar(mul(hidden, self.scale))
        _scores = self.proj(hidden)
        probabilities = softmax(_scores, FP32)
        top_k_weights, top_k_index = top_k(probabilities, self.experts.active)
        top_k_weights = div_in_place(top_k_weights, sum_last(top_k_weights))
        top_k_weights = mul(top_k_weights, index_numbers(self.per_expert_scale, top_k_index))
        return probabilities, top_k_weights, top_k_index
