"""Linear layers with quantized weights, as Transformers and bitsandbytes make them: nf4, nf4-double and int8.

Every linear layer is quantized but heads, and layers of a class of their own; embeddings and norms
are no linear layers. Source: transformers 5.23.0,
integrations/bitsandbytes.py, replace_with_bnb_linear; quantizers/base.py, get_keys_to_not_convert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramplan.replay.models.modules import Linear
from vramplan.replay.operators.quantized import BLOCK, FourBits, matmul_4bit, matmul_8bit
from vramplan.replay.recorder import rounded
from vramplan.replay.techniques.adapters import GPTQ
from vramplan.replay.techniques.bitsandbytes import (
    AT_ONCE_SINCE,
    CODES_COPIED_SINCE,
    FP16_UNTIL,
    INPUTS_DROPPED_SINCE,
    NEWEST,
    release,
)
from vramplan.replay.techniques.gptq import dequantizing, is_quantized, quantize_gptq
from vramplan.replay.tensors import FP16, FP32, DType, Parameter, Tensor

NESTED_BLOCK = 256  # maxima that share one maximum of theirs (functional.py, quantize_4bit, blocksize of state2)
LEVELS_4BIT, LEVELS_8BIT = 16, 256  # values of a code, each of fp32

Quantized = Callable[[Linear, Tensor], Tensor]


def stored_bytes_4bit(elements: int, *, nested: bool, bitsandbytes: str | None = None) -> tuple[int, ...]:
    """Bytes of the tensors of a 4-bit weight: two weights a byte, the maxima of blocks of 64, and the code.

    With double quantization the maxima have a byte each, with an offset, maxima of blocks of 256 of them, and a copy of
    their code, where a release of bitsandbytes makes one.
    Source: bitsandbytes 0.50.2, functional.py, quantize_4bit and quantize_blockwise; arXiv:2305.14314, section 3.
    """
    blocks = -(-elements // BLOCK)
    packed, code = -(-elements // 2), LEVELS_4BIT * FP32.itemsize
    if not nested:
        return packed, blocks * FP32.itemsize, code
    nested_maxima = -(-blocks // NESTED_BLOCK) * FP32.itemsize
    found = packed, blocks, code, FP32.itemsize, nested_maxima
    copied = release(bitsandbytes or NEWEST) >= CODES_COPIED_SINCE
    return (*found, LEVELS_8BIT * FP32.itemsize) if copied else found


def four_bits(
    compute: DType, *, nested: bool, bitsandbytes: str | None = None, quantized_from: DType | None = None
) -> FourBits:
    """What a release of bitsandbytes does with 4-bit weights; None is the newest that was read.

    `quantized_from` is the dtype that a runtime brings weights to first; None leaves that to bitsandbytes.
    Source: vramplan/replay/techniques/bitsandbytes.py.
    """
    number = release(bitsandbytes or NEWEST)
    return FourBits(
        compute,
        quantized_from or (FP16 if number < FP16_UNTIL else compute),
        nested,
        at_once=number >= AT_ONCE_SINCE,
        keeps_input=number < INPUTS_DROPPED_SINCE,
    )


def quantize(
    module: Linear,
    quantization: str,
    compute: DType,
    part: Sequence[str],
    bitsandbytes: str | None = None,
    quantized_from: DType | None = None,
    by_index: bool = False,
) -> Quantized | None:
    """Store the layer's weight in few bits; what runs in place of the layer, which is in this part of the model."""
    if quantization == GPTQ:
        if not is_quantized(part):
            return None
        quantize_gptq(module)
        return dequantizing
    if not module.quantizes:
        return None
    weight, bias = module.weight, module.bias
    if module.transposed:
        weight.shape = weight.shape[::-1]  # Conv1D becomes an ordinary linear layer
        module.transposed = False
    if quantization == "int8":
        weight.quantized = (weight.elements, weight.shape[0] * FP32.itemsize)
        return eight_bits
    nested = quantization == "nf4-double"
    weight.quantized = stored_bytes_4bit(weight.elements, nested=nested, bitsandbytes=bitsandbytes)
    if bias is not None:
        leave_in(bias, compute)
    bits = four_bits(compute, nested=nested, bitsandbytes=bitsandbytes, quantized_from=quantized_from)
    if by_index:
        bits = FourBits(compute, compute, nested=False, by_index=True)
    return lambda module, x: matmul_4bit(x, module.weight, module.bias, bits)


def leave_in(bias: Parameter, dtype: DType) -> None:
    """The first forward pass leaves a bias in a dtype; where it is trained, its gradient and its states have it too."""
    if bias.node is not None:
        bias.dtype = dtype
    else:
        bias.quantized = (bias.elements * dtype.itemsize,)


def as_left(bias: Parameter, dtype: DType) -> Tensor:
    """A bias that somebody else computes with: a layer with few bits has left it in the dtype of its input."""
    return bias.tape.constant(bias.shape, dtype, False, bias.name) if bias.quantized else bias


def eight_bits(module: Linear, x: Tensor) -> Tensor:
    """Linear8bitLt: the first forward pass leaves the bias in the dtype of the input."""
    if module.bias is not None:
        leave_in(module.bias, x.dtype)
    return matmul_8bit(x, module.weight, module.bias)


def shared_bytes(quantization: str) -> int:
    """The 8-bit code that double quantization keeps once for all layers, and which newer releases copy for each.

    Source: bitsandbytes 0.50.2, functional.py, quantize_blockwise, name2qmap.
    """
    return rounded(LEVELS_8BIT * FP32.itemsize) if quantization == "nf4-double" else 0
