"""LoRA over convolutions, as PEFT 0.21 has it: a second path of two convolutions, the second of kernel 1."""

from __future__ import annotations

from typing import Any

from vramplan.replay.observers import Outer
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar
from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import DType, Tensor
from vramplan.values.job import Adapter


class LoraConvolution:
    """lora.Conv2d: the first of its convolutions has the kernel, the stride and the padding of the layer.

    Source: peft 0.21.2, tuners/lora/layer.py, _ConvNd.update_layer and forward.
    """

    def __init__(self, tape: Tape, module: Any, name: str, adapter: Adapter, dtype: DType) -> None:
        outputs, inputs, kernel, _ = module.weight.shape
        self.p = adapter.dropout
        self.lora_A = tape.parameter(f"{name}.lora_A.weight", (adapter.rank, inputs, kernel, kernel), dtype)
        self.lora_B = tape.parameter(f"{name}.lora_B.weight", (outputs, adapter.rank, 1, 1), dtype)

    def __call__(self, module: Any, x: Tensor) -> Tensor:
        with Outer(x, read=(self.lora_A,)):
            result: Tensor = module.base(x)
            dtype = result.dtype
            x = to(x, self.lora_A.dtype)
            inner = conv2d(dropout(x, self.p), self.lora_A, stride=module.stride, padding=module.padding)
            result = add(result, mul_scalar(conv2d(inner, self.lora_B, stride=1)))
            result = to(result, dtype)
        return result
