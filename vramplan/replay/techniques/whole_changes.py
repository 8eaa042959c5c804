"""Adapters that make a change of the whole weight in every forward pass, as PEFT 0.21 has them.

The change is multiplied by beside the layer, which keeps it until backward.
"""

from __future__ import annotations

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer
from vramplan.replay.operators.changes import hadamard, inverse_fft, kron
from vramplan.replay.operators.elementwise import add, mul_scalar
from vramplan.replay.operators.folded import factors_product
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import to
from vramplan.replay.techniques.adapter_target import Over, Target
from vramplan.replay.tensors import Parameter, Tensor


class Change(Over):
    """What is multiplied by in addition to the layer's weight, made of the adapter's."""

    own: tuple[Parameter, ...] = ()

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        previous = x.dtype
        with Outer(x, own=self.own):
            result = self.base(module, x)
            result = add(result, self.activations(x))
            result = to(result, previous)
        return result

    def activations(self, x: Tensor) -> Tensor:
        """_get_delta_activations: what the change makes of the input."""
        change = self.change()
        x = to(x, change.dtype)
        return linear(x, change)

    def change(self) -> Tensor:
        """get_delta_weight: [out, in]."""
        raise NotImplementedError


class LoHa(Change):
    """loha.Linear: the product, element by element, of two products of thin matrices.

    Source: peft 0.21.2, tuners/loha/layer.py, LoHaLayer.forward and get_delta_weight; arXiv:2108.06098.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        rank, inputs, outputs = target.adapter.rank, target.inputs, target.outputs
        self.factors = (
            target.parameter("hada_w1_a", outputs, rank),
            target.parameter("hada_w1_b", rank, inputs),
            target.parameter("hada_w2_a", outputs, rank),
            target.parameter("hada_w2_b", rank, inputs),
        )
        self.own = self.factors

    def change(self) -> Tensor:
        """make_weight."""
        return hadamard(*self.factors)


def factorization(dimension: int, factor: int | None = None) -> tuple[int, int]:
    """The two factors of a width, the smaller one first, which is the given one where that divides the width.

    Source: peft 0.21.2, tuners/lokr/layer.py, factorization.
    """
    if factor is not None and dimension % factor == 0:
        return factor, dimension // factor
    most = dimension if factor is None else factor
    small, large = 1, dimension
    while small < large:
        higher = next(one for one in range(small + 1, dimension + 1) if dimension % one == 0)
        if higher + dimension // higher > small + large or higher > most:
            break
        small, large = higher, dimension // higher
    return min(small, large), max(small, large)


class LoKr(Change):
    """lokr.Linear: Kronecker's product of a small matrix and of a larger one, which is low-rank where that is less.

    Source: peft 0.21.2, tuners/lokr/layer.py, LoKrLayer.update_layer, get_delta_weight and make_kron; arXiv:2309.14859.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        rank, factor = target.adapter.rank, target.adapter.decompose_factor
        (across, along), (outer, inner) = factorization(target.inputs, factor), factorization(target.outputs, factor)
        self.w1 = target.parameter("lokr_w1", outer, across)
        self.w2: tuple[Parameter, ...]
        if rank < max(inner, along) / 2:
            self.w2 = (target.parameter("lokr_w2_a", inner, rank), target.parameter("lokr_w2_b", rank, along))
        else:
            self.w2 = (target.parameter("lokr_w2", inner, along),)
        self.own = (self.w1, *self.w2)

    def change(self) -> Tensor:
        """make_kron."""
        return mul_scalar(kron(self.w1, self.w2[0] if len(self.w2) == 1 else factors_product(*self.w2)))


class FourierFT(Change):
    """fourierft.FourierFTLinear: some numbers of the change's spectrum, at places that are random.

    Source: peft 0.21.2, tuners/fourierft/layer.py, FourierFTLinear.forward and get_delta_weight; arXiv:2405.03003.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        assert target.adapter.frequencies is not None
        self.spectrum = target.parameter("fourierft_spectrum", target.adapter.frequencies)
        self.widths = target.widths
        self.own = (self.spectrum,)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        """The change and the input in its dtype are there until the sum is in the dtype of before."""
        previous = x.dtype
        with Outer(x, own=self.own):
            result = self.base(module, x)
            change = self.change()
            x = to(x, change.dtype)
            result = add(result, linear(x, change))
            result = to(result, previous)
        return result

    def change(self) -> Tensor:
        """get_delta_weight."""
        inputs, outputs = self.widths
        return to(inverse_fft(self.spectrum, outputs, inputs), self.spectrum.dtype)
