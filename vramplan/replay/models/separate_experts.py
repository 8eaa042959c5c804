"""Mixtures of experts as Transformers had them before 5.0: each expert is a module of linear layers, one after another.

As layers they are quantized by bitsandbytes and adapted like others, which the stacked weights of today are not. How
many tokens an expert gets is data: it is the mean. Names that start with an underscore are locals of that code which
outlive their use; they keep their tensor alive here as they do there.
Source: transformers 4.57, models/mixtral/modeling_mixtral.py, MixtralSparseMoeBlock.forward, and its siblings in
models/qwen2_moe, qwen3_moe and olmoe.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.replay.models.experts import GatedMLP, experts_of
from vramplan.replay.models.modules import ACTIVATIONS, Linear, Recipe, gated_kernel
from vramplan.replay.operators.elementwise import mul
from vramplan.replay.operators.experts import div_in_place, index_rows, sum_last, top_k
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.scattered import index_add_in_place, index_places
from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor


class MixtralExpert(GatedMLP):
    """MixtralBlockSparseTop2MLP: the layers of a gated MLP by other names, in another order."""

    def __init__(self, tape: Tape, recipe: Recipe, width: int) -> None:
        hidden, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.gate_proj = Linear(tape, "w1", hidden, width, dtype, bias=False)
        self.down_proj = Linear(tape, "w2", width, hidden, dtype, bias=False)
        self.up_proj = Linear(tape, "w3", hidden, width, dtype, bias=False)
        self.act = ACTIVATIONS[recipe.shape.activation]
        self.kernel = gated_kernel(tape)


class SeparateExperts:
    """The router, a linear layer, and the experts, of which each takes the tokens that are sent to it."""

    expert: type[GatedMLP] = GatedMLP
    finds_hit = True  # an expert that got no token is left out, of which the mean says that there is none

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.counts = experts_of(recipe)
        hidden, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.gate = Linear(tape, "gate", hidden, self.counts.routed, dtype, bias=False)
        with tape.building("experts"):
            width = self.counts.intermediate_size
            self.repeats = recipe.modules_repeat
            self.experts = [self.expert(tape, recipe, width) for _ in self.played(tape)]

    def __call__(self, hidden: Tensor) -> Tensor:
        """Of rows of tokens."""
        tape, (tokens, width), batched = hidden.tape, hidden.shape, hidden.batched
        count, active = self.counts.routed, self.counts.active
        _logits = self.gate(hidden)
        weights, _chosen = top_k(softmax(_logits, FP32), active)
        if self.counts.normalized:
            weights = div_in_place(weights, sum_last(weights))
        weights = to(weights, hidden.dtype)
        final = tape.new("zeros", (tokens, width), hidden.dtype, batched)
        _mask = tape.new("one_hot", (tokens, active, count), INT64, batched)
        _hit = self.hit(tape) if self.finds_hit else None
        rows = -(-tokens * active // count)
        _state: Tensor | None = None
        _result: Tensor | None = None
        _places: Tensor | None = None
        for expert, _ in zip(self.experts, self.played(tape), strict=True):
            of_one = tape.new("index", (active, tokens), INT64, batched) if self.finds_hit else None
            _places = tape.new("nonzero", (rows, 2), INT64, batched)  # the choice and the token of each, as two views
            del of_one
            _state = index_rows(hidden, _places)
            output = expert(_state)
            chosen = index_places(weights, _places)
            _result = mul(output, chosen)
            del output, chosen
            final = index_add_in_place(final, _places, to(_result, hidden.dtype))
        del _state, _result, _places
        return final

    def played(self, tape: Tape) -> Iterator[int]:
        """The experts to play: where they may repeat, the ends and one of those between them.

        The first and the last meet the outside. Of the gradients of what all experts share the last makes the first, to
        which the one before it adds, and the second is the last that finds what the first makes.
        """
        count = self.counts.routed
        apart = (1, count - 2) if self.repeats else range(count)
        return (index for index, _ in tape.repeat(count, stride=0, apart=apart))

    def hit(self, tape: Tape) -> Tensor:
        """The numbers of the experts that got a token."""
        count = self.counts.routed
        sums = tape.new("sum", (count,), INT64, False)
        greater = tape.new("greater", (count,), BOOL, False)
        del sums
        found = tape.new("nonzero", (count, 1), INT64, False)
        del greater
        return found


class MixtralExperts(SeparateExperts):
    """Those of MixtralSparseMoeBlock."""

    expert = MixtralExpert


class OlmoeExperts(SeparateExperts):
    """Those of OlmoeSparseMoeBlock, which runs them all."""

    finds_hit = False
