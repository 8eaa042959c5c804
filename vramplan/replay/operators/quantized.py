"""Operator rules of linear layers with quantized weights: bitsandbytes 0.50.2 on CUDA, and older 4-bit products.

The weights need no gradient. They are stored in few bits, and each product makes a working copy in 16 or 32 bits first:
once in forward, once more in backward.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.kernels import DEQUANTIZED
from vramplan.replay.observers import Sharding
from vramplan.replay.operators.views import Grads, to, view
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import BOOL, FP16, FP32, INT64, DType, Parameter, Tensor, reshape_gradient
from vramplan.tuples import NamedTuple

INT8, INT32 = DType("int8", 1), DType("int32", 4)
MULTIPLE_8BIT = 4  # of which the inner size of an 8-bit product has to be (int8_linear_matmul)
BLOCK = 64  # weights that share one maximum (functional.py, quantize_4bit, blocksize)


class FourBits(NamedTuple):
    """How 4-bit weights are multiplied; what a release of bitsandbytes does is in replay/techniques."""

    compute: DType  # of the products
    stored: DType  # that the weights had when they were quantized, and that they are given back in
    nested: bool  # double quantization
    at_once: bool = True  # forward makes its working copy in the dtype of the products at once
    keeps_input: bool = False
    by_index: bool = False  # torchao's NF4Tensor, operator by operator


def matmul_4bit(x: Tensor, weight: Parameter, bias: Parameter | None, bits: FourBits) -> Tensor:
    """`Linear4bit.forward` with a weight [out, in] that is not trained: new.

    The input is cast to the dtype of the products, and the result back.
    A working copy of the weight goes when the product is made; with double quantization the maxima of the blocks are
    made in fp32 first, twice. For up to 1536 tokens there are kernels without a copy, which depend on the GPU; the
    copy is counted there too.
    Releases before 0.50.0 make the copy in the dtype that the weight was quantized from and then cast it.
    Saves nothing: the weight is there anyway.
    Keeps the weight until backward is over, checkpoint or not, where it was gathered and the whole of it is freed by
    taking other data for it: a view of it hangs on the context of the function itself.
    Keeps `x` as long in releases before 0.43.2: it hangs on the context of the
    function itself.
    Backward: the gradient of the bias, then a working copy of the weight again, cast where it was quantized from
    another dtype, then 1 new, the gradient of x.
    Source: bitsandbytes 0.50.2, nn/modules.py, Linear4bit.forward; autograd/_functions.py, MatMul4Bit (0.41.1, 0.43.0,
    0.43.2 and 0.49.2 too); backends/cuda/ops.py, _dequant_linear_fallback; functional.py, dequantize_4bit.
    """
    tape, dtype = x.tape, x.dtype
    x = to(x, bits.compute)
    outputs, inputs = weight.shape
    x_shape, batched, rows = x.shape, x.batched, prod(x.shape[:-1])
    work, needs_x = 2 * rows * inputs * outputs, x.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        of_bias = _summed(grad, bias)
        if not needs_x:
            return (None, None, of_bias)
        copy = _dequantized(weight, bits)
        flat = reshape_gradient(grad, (rows, outputs))
        tape.launch("MatMul4Bit", (flat, copy))
        tape.work(work)
        result = tape.new("mm", x_shape, bits.compute, batched)
        del flat, copy
        return (result, None, of_bias)

    node = tape.record("MatMul4Bit", (x, weight, bias), backward)
    maxima = offset = None
    if not bits.at_once:
        copy = _dequantized(weight, bits)
    else:
        if bits.nested:
            blocks = -(-outputs * inputs // BLOCK)
            tape.launch("dequantize_blockwise", ())
            maxima = tape.new("dequantize_blockwise", (blocks,), FP32, False)
            offset = tape.new("add", (blocks,), FP32, False)
        halves = looked_up(weight, bits.compute) if bits.by_index else None
        tape.launch(DEQUANTIZED, (weight,))
        copy = tape.new("dequantize_4bit", weight.shape, bits.compute, False, category="weight_casts")
        del halves
    flat = view(x.alias(x.shape, x.strides, None), (rows, inputs))
    tape.launch("MatMul4Bit", (flat, copy))
    tape.work(work)
    out = tape.new("MatMul4Bit", (*x_shape[:-1], outputs), bits.compute, batched, None, node)
    del maxima, offset, copy, flat
    if node is not None and needs_x:
        whole = tape.role(Sharding).held_whole(weight)
        if whole is not None:
            tape.held.append((node, whole))
        if bits.keeps_input:
            tape.held.append((node, x))
    return to(out, dtype)


def _summed(grad: Tensor, bias: Parameter | None) -> Tensor | None:
    """The sum over the first dimension alone, in the dtype of the bias; the engine sums over the others.

    Source: bitsandbytes 0.50.2, autograd/_functions.py, MatMul4Bit.backward and MatMul8bitLt.backward.
    """
    if bias is None or bias.node is None:
        return None
    return grad.tape.new("sum", grad.shape[1:], bias.dtype, False)


def _dequantized(weight: Parameter, bits: FourBits) -> Tensor:
    """The working copy of a product, cast where the weight was quantized from another dtype."""
    if bits.by_index:
        halves = looked_up(weight, bits.compute)
        copy = weight.tape.new("cat", weight.shape, bits.compute, False, category="weight_casts")
        del halves
        return copy
    return to(dequantize_4bit(weight, bits.stored, nested=bits.nested), bits.compute, category="weight_casts")


def looked_up(weight: Parameter, dtype: DType) -> list[Tensor]:
    """What is alive when torchao joins the two halves of a weight [out, in] whose 4-bit codes lie in one byte.

    Of each half: the codes as int64, what the table has for them, and that times the maxima of the blocks.
    Source: torchao 0.18, dtypes/nf4tensor.py, NF4Tensor.get_original_weight and LinearNF4.
    """
    tape, half = weight.tape, (-(-weight.elements // 2),)
    made = (("_to_copy", INT64), ("index_select", dtype), ("mul", dtype))
    return [tape.new(name, half, one, False, category="temporaries") for name, one in made for _ in range(2)]


def dequantize_4bit(weight: Parameter, stored: DType, *, nested: bool) -> Tensor:
    """`functional.dequantize_4bit` of a weight [out, in]: new, in the dtype that it had; nothing saved.

    With double quantization the maxima of the blocks are made in fp32 first.
    Source: bitsandbytes 0.50.2, functional.py, dequantize_4bit.
    """
    tape, blocks = weight.tape, -(-weight.elements // BLOCK)
    tape.launch("dequantize_blockwise", ())
    maxima = tape.new("dequantize_blockwise", (blocks,), FP32, False) if nested else None
    tape.launch(DEQUANTIZED, (weight,))
    whole = tape.new("dequantize_4bit", weight.shape, stored, False, category="weight_casts")
    del maxima
    return whole


def dequantize_8bit(weight: Parameter) -> Tensor:
    """`functional.int8_vectorwise_dequant` of a weight [out, in]: new, in fp32, from another one; nothing saved.

    Source: bitsandbytes 0.50.2, _ops.py, int8_vectorwise_dequant.
    """
    first = weight.tape.new("mul", weight.shape, FP32, False, category="weight_casts")
    whole = weight.tape.new("mul", weight.shape, FP32, False, category="weight_casts")
    del first
    return whole


def matmul_8bit(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """`Linear8bitLt.forward` with a weight [out, in] that is not trained: new, in the dtype of the input.

    The input is cast to fp16 and quantized row by row, the product is made in int32 and turned to fp16, then to the
    dtype of the input. Columns with outliers, which depend on the data, are left out. With an inner size that is no
    multiple of four the product is made in fp32.
    Keeps `x` until backward is over, checkpoint or not, as it hangs on the context of the function itself, but where
    the bias alone is trained.
    Backward: the gradient of the bias, a working copy of the weight in the dtype of x, then 1 new, the gradient of x.
    Source: bitsandbytes 0.50.2, autograd/_functions.py, MatMul8bitLt; backends/cuda/ops.py, int8_vectorwise_quant and
    int8_mm_dequant; backends/default/ops.py, int8_mixed_scaled_mm and int8_scaled_mm; arXiv:2208.07339.
    """
    tape, dtype = x.tape, x.dtype
    outputs, inputs = weight.shape
    x_shape, batched, rows = x.shape, x.batched, prod(x.shape[:-1])
    work, needs_x = 2 * rows * inputs * outputs, x.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        of_bias = _summed(grad, bias)
        if not needs_x:
            return (None, None, of_bias)
        flat = reshape_gradient(grad, (rows, outputs))
        if flat.strides is not None:
            flat = tape.new("clone", flat.shape, flat.dtype, batched)
        copy = tape.new("to", (outputs, inputs), dtype, False, category="weight_casts")
        scales = tape.new("mul", (outputs, 1), FP32, False)
        del scales
        tape.launch("MatMul8bitLt", (flat, copy))
        tape.work(work)
        result = tape.new("mm", x_shape, dtype, batched)
        del flat, copy
        return (result, None, of_bias)

    node = tape.record("MatMul8bitLt", (x, weight, bias), backward)
    flat = view(x.alias(x.shape, x.strides, None), (rows, inputs))
    rounded = to(flat, FP16)
    codes, statistics = _quantized_rows(rounded)
    tape.launch("int8_linear_matmul", (rounded, weight))  # timed as in 16 bits
    del rounded
    product = tape.new("int8_linear_matmul", (rows, outputs), INT32, batched)
    tape.work(work)
    if inputs % MULTIPLE_8BIT:
        _multiplied_in_fp32(tape, rows, inputs, outputs, batched)
    tape.launch("int8_mm_dequant", (product,))
    half = tape.new("int8_mm_dequant", (rows, outputs), FP16, batched)
    out = to(half, dtype)
    del half, product, codes, statistics
    if node is not None and needs_x:
        tape.held.append((node, flat))
    tape.role(Sharding).takes_own(weight)
    return out.alias((*x_shape[:-1], outputs), None, node)


def _multiplied_in_fp32(tape: Tape, rows: int, inputs: int, outputs: int, batched: int) -> None:
    """What a product that cuBLASLt does not take needs beside its result: both factors in fp32, and their product."""
    left = tape.new("float", (rows, inputs), FP32, batched)
    right = tape.new("float", (outputs, inputs), FP32, False, category="weight_casts")
    product = tape.new("mm", (rows, outputs), FP32, batched)
    del left, right
    cast = tape.new("to", (rows, outputs), INT32, batched)
    del product, cast


def _quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8_vectorwise_quant with a threshold: the rows in 8 bits, and what each was scaled by."""
    tape = x.tape
    tape.launch("int8_vectorwise_quant", (x,))
    statistics = tape.new("int8_vectorwise_quant", (x.shape[0],), FP32, x.batched)
    codes = tape.new("int8_vectorwise_quant", x.shape, INT8, x.batched)
    absolute = tape.new("abs", x.shape, x.dtype, x.batched)
    outliers = tape.new("ge", x.shape, BOOL, x.batched)
    del absolute
    some = tape.new("any", (), BOOL, False)
    del some, outliers
    return codes, statistics
