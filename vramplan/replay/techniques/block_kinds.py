"""Adapters that share a matrix among blocks of a layer's inputs, or turn them, as PEFT 0.21 has them."""

from __future__ import annotations

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer
from vramplan.replay.operators.adapters import eye
from vramplan.replay.operators.changes import column_norms, mm, sub, sum_groups
from vramplan.replay.operators.contrastive import div
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import pad_last, select, to, transpose, view
from vramplan.replay.techniques.adapter_target import Over, Target, product
from vramplan.replay.tensors import FP32, Tensor


class MiSS(Over):
    """miss.MissLinear: the inputs are summed over blocks of `rank`, and one matrix [rank, out] is the change of each.

    What PEFT called Bone before is the same.
    Source: peft 0.21.2, tuners/miss/layer.py, MissLinear.forward; arXiv:2409.15371.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.rank, self.p = target.adapter.rank, target.adapter.dropout
        self.block = target.parameter("miss_block", self.rank, target.outputs)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        previous = x.dtype
        with Outer(x, own=(self.block,)):
            result = self.cloned_base(module, x)
            if x.shape[-1] % self.rank:
                x = pad_last(x, -x.shape[-1] % self.rank)
            x = to(x, self.block.dtype)
            result = add(result, product(self.summed(x), self.block, transposed=True, patched=False))
            result = to(result, previous)
        return result

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the blocks."""
        return sum_groups(view(dropout(x, self.p), (*x.shape[:-1], x.shape[-1] // self.rank, self.rank)))


class HRA(Over):
    """hra.HRALinear: the weight is reflected `rank` times, each time by a matrix as large as its inputs squared.

    The product with the changed weight is in the place of the layer's own.
    Source: peft 0.21.2, tuners/hra/layer.py, HRALinear.forward and get_delta_weight; arXiv:2405.17484.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.rank, self.inputs = target.adapter.rank, target.inputs
        self.hra_u = target.parameter("hra_u", target.inputs, target.adapter.rank)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        previous = x.dtype
        biases = () if module.bias is None else (module.bias,)
        with Outer(x, own=(self.hra_u, module.weight, *biases)):
            weight = eye(x.tape, self.inputs, FP32)
            _delta = self.reflected()
            weight = mm(to(weight, _delta.dtype), _delta)
            _original = to(module.weight, weight.dtype)
            weight = mm(_original, weight)
            bias = None if module.bias is None else to(module.bias, weight.dtype)
            x = to(x, weight.dtype)
            result = linear(x, weight, bias)
            result = to(result, previous)
        return result

    def reflected(self) -> Tensor:
        """get_delta_weight: one reflection after another, of an identity matrix."""
        unit = div(self.hra_u, column_norms(self.hra_u))
        weight = eye(unit.tape, self.inputs, unit.dtype)
        for _ in range(self.rank):
            vector = view(select(unit, 1), (self.inputs, 1))
            weight = sub(weight, mm(mm(mul_scalar(weight), vector), transpose(vector, 0, 1)))
        return weight
