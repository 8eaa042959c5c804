"""RandLoRA as PEFT 0.21 has it: a change of full rank, made of random matrices that all layers share.

Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer
from vramplan.replay.operators.changes import scaled_bases
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar
from vramplan.replay.operators.views import clone, to, transpose, view
from vramplan.replay.techniques.adapter_target import Over, Target, product
from vramplan.replay.tensors import DType, Tensor
from vramplan.values.adapter_kinds import BITSANDBYTES


class RandLoRA(Over):
    """randlora.Linear: as many bases as fill the smaller width, of which `rank` rows each are trained as scales.

    Source: peft 0.21.2, tuners/randlora/layer.py, Linear.forward and get_scaled_bases; arXiv:2502.00987.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.rank, self.p = target.adapter.rank, target.adapter.dropout
        self.least, self.most = sorted(target.widths)
        self.widens = target.inputs == self.least
        self.bases = -(-self.least // self.rank)
        self.randlora_lambda = target.parameter("randlora_lambda", self.rank, self.bases)
        self.randlora_gamma = target.parameter("randlora_gamma", self.bases, self.least)
        self.shared = target.shared.setdefault("randlora", SharedBases(self.rank, target.frozen_dtype()))
        self.shared.fit(target.inputs, target.outputs)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        previous = x.dtype
        with Outer(x, own=(self.randlora_lambda, self.randlora_gamma)):
            result = self.base(module, x)
            first, second = self.scaled(x)
            x = to(x, second.dtype)
            result = add(result, mul_scalar(product(product(dropout(x, self.p), first), second)))
            result = to(result, previous)
        return result

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """get_scaled_bases: what the input is multiplied by, and then what that is."""
        tape, rows = x.tape, self.rank * self.bases
        large = tape.constant((self.most, rows), self.shared.dtype, False, "randlora_B")
        small = tape.constant((self.rank, 1, self.least), self.shared.dtype, False, "randlora_A")
        small = view(scaled_bases(small, self.randlora_lambda, self.randlora_gamma), (rows, self.least))
        return (small, large) if self.widens else (transpose(large, 0, 1), transpose(small, 0, 1))


class QuantizedRandLoRA(RandLoRA):
    """The same over quantized weights; without autocast the result has the element type of the bases.

    Source: peft 0.21.2, tuners/randlora/bnb.py, Linear8bitLt.forward and Linear4bit.forward.
    """

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        converts = x.tape.autocast is None
        with Outer(x, own=(self.randlora_lambda, self.randlora_gamma)):
            result = self.base(module, x)
            if self.clones:
                result = clone(result)
            _first, _second = self.scaled(x)
            dtype = result.dtype
            if converts:
                x = to(x, _second.dtype)
            _given = dropout(to(x, _second.dtype), self.p)
            output = product(product(_given, _first), _second)
            if converts:
                output = to(output, dtype)
            result = add(result, mul_scalar(output))
            return to(result, x.dtype)


class SharedBases:
    """The two stacks of random matrices."""

    def __init__(self, rank: int, dtype: DType) -> None:
        self.rank, self.dtype = rank, dtype
        self.inputs = self.outputs = 0

    @property
    def bases(self) -> int:
        """How many there are."""
        return -(-min(self.inputs, self.outputs) // self.rank)

    def fit(self, inputs: int, outputs: int) -> None:
        """A layer of these widths looks at them."""
        self.inputs, self.outputs = max(self.inputs, inputs), max(self.outputs, outputs)

    def places(self) -> list[int]:
        """Bytes of each: the smaller one has one matrix, the larger one as many as there are bases."""
        least, most = sorted((self.inputs, self.outputs))
        return [width * self.rank * self.dtype.itemsize for width in (least, most * self.bases)]


def randlora(target: Target) -> RandLoRA:
    """The one or the other."""
    return QuantizedRandLoRA(target) if target.bits in BITSANDBYTES else RandLoRA(target)
