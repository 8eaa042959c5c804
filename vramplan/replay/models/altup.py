"""Hidden states side by side, of which a block computes with one, as transformers 5.23 has it in Gemma 3n
(models/gemma3n/modeling_gemma3n.py, Gemma3nTextAltUp and Gemma3nTextModel.forward).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.gemma4 import RMSNorm
from vramplan.replay.models.modules import Linear, Recipe
from vramplan.replay.observers import Outer
from vramplan.replay.operators.alternating import add_to_permuted, mean_over, repeat_first, sqrt, stack_first
from vramplan.replay.operators.elementwise import add_in_place, add_scalar, mean_last, mul, pow_scalar, tanh
from vramplan.replay.operators.experts import divide
from vramplan.replay.operators.indexing import permute, unsqueeze
from vramplan.replay.operators.latent import sub
from vramplan.replay.operators.piecewise import clamp
from vramplan.replay.operators.products import linear, matmul
from vramplan.replay.operators.views import contiguous, select, to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, DType, Tensor


class Unquantized(Linear):
    """A layer that nothing makes one of few bits."""

    quantizes = False


class AltUp:
    """Gemma3nTextAltUp."""

    def __init__(self, tape: Tape, recipe: Recipe, states: int) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.states, self.clips = states, not recipe.evaluates
        self.correct_output_scale = tape.parameter("altup.correct_output_scale", (width,), dtype)
        self.correction_coefs = Unquantized(tape, "correction_coefs", states, states, dtype, bias=False)
        self.prediction_coefs = Unquantized(tape, "prediction_coefs", states, states**2, dtype, bias=False)
        self.modality_router = Linear(tape, "modality_router", width, states, dtype, bias=False)
        self.router_norm = RMSNorm(tape, "router_norm", width, dtype)
        self.input_scale = tape.constant((), dtype, False)  # a buffer of one number

    def modalities(self, x: Tensor) -> Tensor:
        """compute_router_modalities."""
        _inputs = mul(self.router_norm(x), self.input_scale)
        routed = self.modality_router(_inputs)
        return to(tanh(to(routed, FP32)), x.dtype)

    def predict(self, hidden: Tensor) -> Tensor:
        """What each of the hidden states becomes before the block has run: a mixture of all."""
        states, (_, batch, length, _) = self.states, hidden.shape
        modalities = self.modalities(select(hidden, 0))
        coefficients = view(self.prediction_coefs(modalities), (batch, length, states, states))
        coefficients = permute(coefficients, (0, 1, 3, 2))
        predictions = matmul(permute(hidden, (1, 2, 3, 0)), coefficients)
        predictions = add_to_permuted(predictions, (3, 0, 1, 2), hidden)
        return to(contiguous(predictions), hidden.dtype)

    def correct(self, predictions: Tensor, activated: Tensor) -> Tensor:
        """What each of them becomes after it: as far as the one that it ran with has moved."""
        _modalities = self.modalities(activated)
        innovation = sub(activated, select(predictions, 0))
        innovation = repeat_first(innovation, self.states)
        coefficients = self.corrections(_modalities)
        coefficients = unsqueeze(permute(coefficients, (2, 0, 1)), 3)
        corrected = mul(innovation, coefficients)
        corrected = add_in_place(corrected, predictions)
        return to(contiguous(corrected), activated.dtype)

    def corrections(self, modalities: Tensor) -> Tensor:
        """How far each goes: weights are clipped in training alone."""
        if not self.clips:
            return add_scalar(self.correction_coefs(modalities))
        _weight = clamp(self.correction_coefs.weight)
        return add_scalar(linear(modalities, _weight))

    def scaled(self, corrected: Tensor) -> Tensor:
        """scale_corrected_output, which is the module's own forward."""
        scale = self.correct_output_scale
        with Outer(corrected, own=(scale,)):
            return to(mul(to(corrected, scale.dtype), scale), corrected.dtype)


def magnitude(x: Tensor) -> Tensor:
    """The root of the mean of the squares, as a power."""
    return pow_scalar(mean_last(pow_scalar(x)))


class Projections:
    """`altup_projections` or `altup_unembed_projections`: what makes the other hidden states of the first, or back."""

    def __init__(self, tape: Tape, recipe: Recipe, name: str, states: int, last: type[Linear] = Linear) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        kinds: list[type[Linear]] = [*[Linear] * (states - 2), last]
        self.layers = [kind(tape, f"{name}.{i}", width, width, dtype, bias=False) for i, kind in enumerate(kinds)]


class States:
    """Gemma3nTextModel.forward: the hidden states before the first block and after the last one.

    Its variables live until it returns, or until the second time overwrites them.
    """

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.target: Tensor | None = None
        self.found: list[Tensor] = []
        self.beside: tuple[Tensor, ...] = ()

    def expanded(self, first: Tensor, projections: Projections) -> Tensor:
        """Those of all inputs."""
        self.target = magnitude(first)
        self.found = [first]
        for layer in projections.layers:
            self.found.append(self.of_size(layer(first)))
        return stack_first(self.found)

    def joined(self, hidden: Tensor, projections: Projections) -> Tensor:
        """Their mean."""
        self.target = magnitude(select(hidden, 0))
        self.found = [select(hidden, 0)]
        for layer in projections.layers:
            self.found.append(self.of_size(layer(select(hidden, 0))))
        del hidden
        return mean_over(stack_first(self.found), 0)

    def of_size(self, projected: Tensor) -> Tensor:
        """Another hidden state, as large as the first."""
        assert self.target is not None
        current = to(projected, self.dtype)
        size = mean_last(pow_scalar(current))
        size = sqrt(clamp(size, both=False))
        current = divide(mul(current, self.target), size)
        self.beside = (projected, current, size)
        return current
