"""Kin of LoRA, as PEFT 0.21 has them: two thin matrices, of which little is trained, or which are made of other things.

Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer
from vramplan.replay.operators.adapters import div_by_one
from vramplan.replay.operators.elementwise import add, add_in_place, add_scalar, dropout, mul, mul_scalar
from vramplan.replay.operators.views import to
from vramplan.replay.techniques.adapter_target import Over, Target, product
from vramplan.replay.tensors import FP32, DType, Parameter, Tensor
from vramplan.values.adapter_kinds import BITSANDBYTES


def turned(weight: Parameter) -> Tensor:
    """A view of a weight, transposed, which autocast casts at each use: here as it is multiplied by, [out, in]."""
    return weight.alias(weight.shape, None, weight.node)


class AdaLoRA(Over):
    """adalora.SVDLinear: a number for each rank between the two matrices, and the whole divided by the rank.

    Source: peft 0.21.2, tuners/adalora/layer.py, SVDLinear.forward; arXiv:2303.10512.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        rank, self.p = target.adapter.rank, target.adapter.dropout
        self.lora_A = target.parameter("lora_A", rank, target.inputs)
        self.lora_B = target.parameter("lora_B", target.outputs, rank)
        self.lora_E = target.parameter("lora_E", rank, 1)
        self.ranknum = target.parameter("ranknum", 1, trainable=False)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        with Outer(x, own=(self.lora_A, self.lora_B, self.lora_E, self.ranknum)):
            result = self.base(module, x)
            _ranknum = add_scalar(self.ranknum)
            x = to(x, self.lora_A.dtype)
            result = add_in_place(result, div_by_one(mul_scalar(self.change(x)), _ranknum))
        return result

    def change(self, x: Tensor) -> Tensor:
        """What the matrices make of the input."""
        inner = product(dropout(x, self.p), mul(self.lora_A, self.lora_E), patched=False)
        return product(inner, turned(self.lora_B), patched=False)


class QuantizedAdaLoRA(AdaLoRA):
    """The same over quantized weights; what is added to a result of 8-bit ones is not written into it.

    Source: peft 0.21.2, tuners/adalora/bnb.py, SVDLinear4bit.forward and SVDLinear8bitLt.forward.
    """

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        converts = x.tape.autocast is None
        with Outer(x, own=(self.lora_A, self.lora_B, self.lora_E, self.ranknum)):
            result = self.cloned_base(module, x)
            _ranknum = add_scalar(self.ranknum)
            dtype = result.dtype
            if converts:
                x = to(x, self.lora_A.dtype if self.clones else FP32)
            output = self.change(x)
            if converts:
                output = to(output, dtype)
            output = div_by_one(mul_scalar(output), _ranknum)
            result = add_in_place(result, output) if self.clones else add(result, output)
        return result


def adalora(target: Target) -> AdaLoRA:
    """The one or the other; over GPTQ it is as over whole weights."""
    return QuantizedAdaLoRA(target) if target.bits in BITSANDBYTES else AdaLoRA(target)


class VeRA(Over):
    """vera.Linear: two random matrices that all layers share, and of each layer a vector between them and one after.

    The matrices are as large as the widest layer needs, and are buffers: each layer looks at its part of them.
    Source: peft 0.21.2, tuners/vera/layer.py, Linear.forward; tuners/vera/model.py, _init_vera_A_vera_B;
    arXiv:2310.11454.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        rank, self.p = target.adapter.rank, target.adapter.dropout
        tape, dtype = target.tape, target.frozen_dtype()
        self.vera_lambda_b = target.parameter("vera_lambda_b", target.outputs)
        self.vera_lambda_d = target.parameter("vera_lambda_d", rank)
        self.vera_A = tape.constant((rank, target.inputs), dtype, False, "vera_A")
        self.vera_B = tape.constant((target.outputs, rank), dtype, False, "vera_B")
        target.shared.setdefault("vera", SharedProjections(rank, dtype)).fit(target.inputs, target.outputs)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        previous = x.dtype
        with Outer(x, own=(self.vera_lambda_b, self.vera_lambda_d)):
            result = self.cloned_base(module, x)
            dtype = result.dtype
            x = to(x, self.vera_lambda_d.dtype)
            result = add(result, mul(self.vera_lambda_b, self.change(x)))
            result = to(result, dtype)
            result = to(result, previous)
        return result

    def change(self, x: Tensor) -> Tensor:
        """What the shared matrices make of the input, with the first vector between them."""
        return product(mul(self.vera_lambda_d, product(dropout(x, self.p), self.vera_A)), self.vera_B)


class SharedProjections:
    """The two matrices of VeRA."""

    def __init__(self, rank: int, dtype: DType) -> None:
        self.rank, self.dtype = rank, dtype
        self.inputs = self.outputs = 0

    def fit(self, inputs: int, outputs: int) -> None:
        """A layer of these widths looks at them."""
        self.inputs, self.outputs = max(self.inputs, inputs), max(self.outputs, outputs)

    def places(self) -> list[int]:
        """Bytes of each."""
        return [self.rank * width * self.dtype.itemsize for width in (self.inputs, self.outputs)]
