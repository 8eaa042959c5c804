"""DoRA and IA3 over quantized weights of bitsandbytes, as PEFT 0.21 has them."""

from __future__ import annotations

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, dropout, mul
from vramplan.replay.operators.quantized import dequantize_4bit, dequantize_8bit
from vramplan.replay.operators.views import clone, to
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapter_target import Adapting
from vramplan.replay.techniques.adapters import IA3, DoRA
from vramplan.replay.tensors import FP32, DType, Tensor
from vramplan.values.job import Adapter


class QuantizedDoRA(DoRA):
    """DoRA over a quantized layer: the whole weight is made anew in each forward pass, to be measured.

    Source: peft 0.21.2, tuners/lora/bnb.py, Linear4bit.forward and Linear8bitLt.forward; tuners/lora/dora.py,
    DoraLinearLayer.forward; utils/integrations.py, dequantize_bnb_weight.
    """

    def __init__(
        self,
        tape: Tape,
        name: str,
        inputs: int,
        outputs: int,
        adapter: Adapter,
        dtype: DType,
        quantized: Adapting,
        quantization: str,
        compute: DType,
    ) -> None:
        super().__init__(tape, name, inputs, outputs, adapter, dtype)
        self.quantized, self.quantization, self.compute = quantized, quantization, compute

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        converts = x.tape.autocast is None
        with Outer(x, read=(self.lora_A,) if converts else ()):
            result = self.quantized(module, x)
            if self.quantization != "int8":
                result = clone(result)
            dtype = result.dtype
            if converts:
                x = to(x, self.lora_A.dtype)
            if self.p:
                result = add(result, self.scaled(module, dropout(x, self.p), None))
            else:
                result = add(result, self.scaled(module, x, result))
            if converts:
                result = to(result, dtype)
        return result

    def weight(self, module: Linear, dtype: DType) -> Tensor:
        """The whole weight, in few bits before."""
        if self.quantization == "int8":
            return to(dequantize_8bit(module.weight), dtype)
        return to(dequantize_4bit(module.weight, self.compute, nested=self.quantization == "nf4-double"), dtype)

    def bias(self, module: Linear, result: Tensor) -> Tensor | None:
        """The bias, which has a narrower dtype than the result of the layer, or its own."""
        bias = module.bias
        return None if bias is None else Tensor(bias.tape, None, bias.shape, result.dtype, False)


class QuantizedIA3(IA3):
    """IA3 over a quantized layer; without autocast its input is brought to fp32, and the result stays there.

    Source: peft 0.21.2, tuners/ia3/bnb.py, Linear4bit.forward and Linear8bitLt.forward.
    """

    def __init__(
        self, tape: Tape, name: str, width: int, dtype: DType, quantized: Adapting, *, feedforward: bool, clones: bool
    ) -> None:
        super().__init__(tape, name, width, dtype, feedforward=feedforward)
        self.quantized, self.clones = quantized, clones

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        with Outer(x, own=(self.ia3_l,)):
            scaling = self.scaling()
            if x.tape.autocast is None:
                x = to(x, FP32)
            if self.feedforward:
                result = self.quantized(module, mul(x, scaling))
            else:
                result = self.quantized(module, x)
                result = mul(result, scaling)
            if self.clones:
                result = clone(result)
        return result
