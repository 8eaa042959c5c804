"""Stacked weights of experts in few bits, beneath adapters or alone: dequantized whole when a module looks at them.

They are no linear layers, so Transformers leaves them as they are; Axolotl's `quantize_moe_experts` puts a
parametrization over each while it loads. What a module looks at is kept until the module has returned.
Source: axolotl 0.18.0, monkeypatch/moe_quant.py; bitsandbytes 0.50.2, nn/parametrize.py, replace_parameter_4bit;
torch/nn/utils/parametrize.py, cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from vramplan.replay.observers import entered
from vramplan.replay.operators.quantized import dequantize_4bit, dequantize_8bit
from vramplan.replay.techniques.quantized import stored_bytes_4bit
from vramplan.replay.tensors import FP32, Parameter, Tensor

STACKED = 3  # dimensions: a router has two, and so have the biases of experts


class QuantizedTensors:
    """A module whose stacked weights are quantized."""

    def __init__(self, weights: Mapping[str, Parameter], quantization: str) -> None:
        self.weights, self.quantization = weights, quantization
        self.nested = quantization == "nf4-double"
        for weight in weights.values():
            if self.is_quantized(weight):
                weight.quantized = self.stored(weight)

    @staticmethod
    def is_quantized(weight: Parameter) -> bool:
        """Whether a weight is one of all experts."""
        return len(weight.shape) >= STACKED

    def stored(self, weight: Parameter) -> tuple[int, ...]:
        """Bytes of the tensors of a weight; 8 bits have a number in fp32 for each row."""
        if self.quantization == "int8":
            return (weight.elements, prod(weight.shape[:-1]) * FP32.itemsize)
        return stored_bytes_4bit(weight.elements, nested=self.nested)

    def weight(self, name: str) -> Tensor:
        """A weight as a module sees it; 8 bits are given back in fp32."""
        weight = self.weights[name]
        return entered(lambda _: self.dequantized(weight), weight, weight) if self.is_quantized(weight) else weight

    def dequantized(self, weight: Parameter) -> Tensor:
        """The module of the parametrization, which is given nothing, and has the weight."""
        if self.quantization == "int8":
            return dequantize_8bit(weight)
        return dequantize_4bit(weight, weight.dtype, nested=self.nested)

    def __call__(self, run: Callable[..., Any], *arguments: Tensor) -> Any:
        """The module with its weights looked up, each once."""
        kept: dict[str, Tensor] = {}

        def look(name: str) -> Tensor:
            if name not in kept:
                kept[name] = self.weight(name)
            return kept[name]

        return run(*arguments, look)
