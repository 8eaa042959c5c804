"""Operator rules of torchao's layers that multiply in MXFP4 and NVFP4: 4 bits a number, and a scale for each block.

Read off torchao 0.18, torchao/prototype (qat/mx.py, qat/nvfp4.py; mx_formats/mx_tensor.py, nvfp4_tensor.py, kernels.py,
utils.py; custom_fp_utils.py). What is multiplied is kept for backward in its 4 bits. Names that start with an
underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.operators.elementwise import add
from vramplan.replay.operators.float8 import E4M3
from vramplan.replay.operators.views import Grads, to
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import BOOL, BYTE, FP32, INT32, DType, Parameter, Shape, Tensor, reshape_gradient
from vramplan.tuples import NamedTuple

E8M0, INT16 = DType("float8_e8m0fnu", 1), DType("int16", 2)
MX_BLOCK, NVFP4_BLOCK = 32, 16  # consecutive numbers that share a scale
TILE_ROWS, TILE_COLUMNS = 128, 4  # of scales, as cuBLAS reads them


class Packed(NamedTuple):
    """A matrix in 4 bits a number: two of them in a byte, the scales of its blocks, and that of the whole."""

    data: Tensor
    scale: Tensor
    whole: Tensor | None = None


def mx_linear(x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
    """MXFakeQuantizedLinear: input and weight are rounded to MXFP4, unpacked again and multiplied; new.

    Saves `x_data`: two numbers of the input in a byte, and no copy in high precision.
    Saves `x_scale`: a byte for 32 numbers of the input.
    Saves `w_data`: the weight in the same way.
    Saves `w_scale`: and its scales.
    Backward: both are unpacked again; then both gradients, whatever needs one. The bias gets none.
    Source: torchao/prototype/qat/mx.py, _MXQuantizedForwardFakeQuantizedBackward; mx_formats/mx_tensor.py,
    _addmm_mx_dispatch with KernelPreference.EMULATED.
    """
    tape, rows, batched = x.tape, _rows(x), x.batched
    shape, dtype, columns = x.shape, x.dtype, weight.shape[0]
    work = 2 * rows * weight.elements

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        x_data, x_scale, w_data, w_scale = saved
        _x = _from_mx(Packed(x_data, x_scale), dtype)
        _weight = _from_mx(Packed(w_data, w_scale), weight.dtype)
        flat = reshape_gradient(grad, (rows, columns))
        tape.work(2 * work)
        of_x = tape.new("mm", shape, flat.dtype, batched)
        return (of_x, tape.new("mm", weight.shape, flat.dtype, False))

    node = tape.record("mx_linear", (x, weight), backward)
    tape.work(work)
    _x, _weight = _to_mx(_flat(x)), _to_mx(weight)
    wide_x, wide_weight = _from_mx(_x, dtype), _from_mx(_weight, weight.dtype)
    out = tape.new("mm" if bias is None else "addmm", (*shape[:-1], columns), dtype, batched)
    del wide_x, wide_weight
    x_data, x_scale, w_data, w_scale = _x.data, _x.scale, _weight.data, _weight.scale
    tape.save(node, x_data, x_scale, w_data, w_scale)
    return out.alias(out.shape, None, node)


def nvfp4_linear(x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
    """NVFP4FakeQuantizedLinear: input and weight are rounded to NVFP4 and multiplied so; new, in the dtype of x.

    The product is scaled, and the bias added, by operators of their own.
    Saves `x_data`: two numbers of the input in a byte.
    Saves `x_scale`: a byte for 16 numbers of the input.
    Saves `x_whole`: a scale for all of them.
    Saves `w_data`: the weight in the same way.
    Saves `w_scale`: its scales, as cuBLAS reads them.
    Saves `w_whole`: and the one for all of them.
    Backward: both are unpacked; then both gradients, whatever needs one. The bias gets none.
    Source: torchao/prototype/qat/nvfp4.py, _NVFP4QuantizedForwardFakeQuantizedBackward; mx_formats/nvfp4_tensor.py,
    _addmm_nvfp4_dispatch.
    """
    tape, rows, batched, autocast = x.tape, _rows(x), x.batched, x.tape.autocast
    shape, dtype, columns = x.shape, x.dtype, weight.shape[0]
    work = 2 * rows * weight.elements

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        x_data, x_scale, x_whole, w_data, w_scale, w_whole = saved
        _x = _from_nvfp4(Packed(x_data, x_scale, x_whole), dtype)
        _weight = _from_nvfp4(Packed(w_data, w_scale, w_whole), weight.dtype, turned=weight.shape)
        flat = reshape_gradient(grad, (rows, columns))
        tape.work(2 * work)
        of_x = _product(flat, _weight, autocast, shape, batched)
        of_weight = _product(flat, _x, autocast, weight.shape, False)
        del _x, _weight, x_data, x_scale, x_whole, w_data, w_scale, w_whole
        return (to(of_x, dtype), to(of_weight, weight.dtype))

    node = tape.record("nvfp4_linear", (x, weight), backward)
    tape.work(work)
    _most, whole = _scale_of_all(x)
    _x = _to_nvfp4(_flat(x), whole)
    _most, whole = _scale_of_all(weight)
    _weight = _to_nvfp4(weight, whole)
    _weight = _weight._replace(scale=_tiled(_weight.scale))
    _blocked = _tiled(_x.scale)
    _both = _scalar(tape, "mul", FP32)
    out = tape.new("_scaled_mm", (*shape[:-1], columns), dtype, batched)
    cast = _scalar(tape, "_to_copy", dtype) if dtype is not FP32 else None
    out = _run("mul", out, dtype)
    del cast
    if bias is not None:
        plain = to(bias, dtype).alias(bias.shape, None, None)
        out = add(out, plain)
        del plain
    x_data, x_scale, x_whole = _x
    w_data, w_scale, w_whole = _weight
    tape.save(node, x_data, x_scale, x_whole, w_data, w_scale, w_whole)
    return out.alias(out.shape, None, node)


def _rows(x: Tensor) -> int:
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    return rows


def _flat(x: Tensor) -> Tensor:
    return x.alias((_rows(x), x.shape[-1]), None, None)


def _seen_as(x: Tensor, dtype: DType) -> Tensor:
    found = x.alias(x.shape, x.strides, None)
    found.dtype = dtype
    return found


def _product(grad: Tensor, other: Tensor, autocast: DType | None, shape: Shape, batched: int) -> Tensor:
    """One of the two products of a backward pass, whose operands autocast casts."""
    _grad, _other = (x if autocast is None or x.dtype is not FP32 else to(x, autocast) for x in (grad, other))
    return grad.tape.new("mm", shape, _grad.dtype, batched)


def _run(operator: str, x: Tensor, dtype: DType, *, of: Shape | None = None) -> Tensor:
    """A kernel that reads a tensor and writes one without gradients, of its shape unless it is said."""
    x.tape.launch(operator, (x,))
    return x.tape.new(operator, of or x.shape, dtype, x.batched)


def _scalar(tape: Tape, operator: str, dtype: DType) -> Tensor:
    return tape.new(operator, (), dtype, False)


def _to_mx(x: Tensor) -> Packed:
    """`to_mx` with the scales of RCEIL: one power of two for 32 numbers."""
    rows, columns = x.shape
    blocks = (rows, columns // MX_BLOCK)
    magnitudes = _run("abs", x, x.dtype)
    _most = _run("amax", magnitudes, x.dtype, of=blocks)
    del magnitudes
    _wide = x if x.dtype is FP32 else _run("_to_copy", x, FP32)
    if x.dtype is not FP32:
        _most = _run("_to_copy", _most, FP32)
    scaled, exponent = _by_power_of_two(_wide, _most)
    unpacked = _four_bits(scaled)
    del scaled
    return Packed(_pairs(unpacked), _seen_as(exponent, E8M0))


def _by_power_of_two(x: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """`_to_mx_rceil`: what is scaled, and the exponents."""
    tape = x.tape

    def step(operator: str, of: Tensor, dtype: DType = FP32) -> Tensor:
        return _run(operator, of, dtype)

    def chosen(condition: Tensor, dtype: DType) -> Tensor:
        scalar = _scalar(tape, "scalar_tensor", dtype)
        found = step("where", condition, dtype)
        del scalar
        return found

    _descale = step("div", most)
    no_number = step("isnan", _descale, BOOL)
    infinite = step("isinf", _descale, BOOL)
    one = step("log2", _descale)
    for operator in ("ceil", "clamp", "add"):
        one = step(operator, one)
    exponent = step("_to_copy", one, BYTE)
    del one
    exponent = chosen(infinite, BYTE)
    del infinite
    exponent = chosen(no_number, BYTE)
    del no_number
    first, second, third = (step("eq", exponent, BOOL) for _ in range(3))
    one = step("_to_copy", exponent)
    for operator in ("rsub", "exp2"):
        one = step(operator, one)
    one = chosen(third, FP32)
    del third
    one = chosen(second, FP32)
    del second
    _inverse = step("where", first)
    del first, one
    scaled = step("mul", x)
    return step("clamp", scaled), exponent


def _four_bits(x: Tensor) -> Tensor:
    """`_f32_to_floatx_unpacked`: a byte for each number in fp32, made of its bits as int32.

    Source: torchao/prototype/custom_fp_utils.py.
    """
    _sign = _run("bitwise_and", x, INT32)
    bits = _run("bitwise_xor", x, INT32)
    _large = _run("ge", bits, BOOL)
    other = _run("logical_not", _large, BOOL)
    below = _run("lt", bits, BOOL)
    _small = _run("logical_and", other, BOOL)
    del other, below
    either = _run("logical_or", _large, BOOL)
    _normal = _run("logical_not", either, BOOL)
    del either
    moved = _run("add", bits, FP32)
    bits.tape.launch("sub_", (moved,))
    _of_small = _run("_to_copy", moved, BYTE)
    del moved
    shifted = _run("__rshift__", bits, INT32)
    _odd = _run("bitwise_and", shifted, INT32)
    del shifted
    bits.tape.launch("add_", (bits,))
    bits.tape.launch("add_", (bits, _odd))
    shifted = _run("__rshift__", bits, INT32)
    _of_normal = _run("_to_copy", shifted, BYTE)
    del shifted
    found = _run("full_like", bits, BYTE)
    del bits
    found = _run("where", found, BYTE)
    found = _run("where", found, BYTE)
    shifted = _run("__rshift__", _sign, INT32)
    _of_sign = _run("_to_copy", shifted, BYTE)
    del shifted
    _of_sign = _run("bitwise_and", _of_sign, BYTE)
    return _run("bitwise_or", found, BYTE)


def _pairs(unpacked: Tensor) -> Tensor:
    """`pack_uint4`: two numbers in a byte."""
    rows, columns = unpacked.shape
    _shifted = _run("__lshift__", unpacked, BYTE, of=(rows, columns // 2))
    return _run("bitwise_or", _shifted, BYTE)


def _apart(data: Tensor) -> Tensor:
    """`unpack_uint4`: one number in a byte."""
    rows, columns = data.shape
    first, _second = _run("bitwise_and", data, BYTE), _run("__rshift__", data, BYTE)
    return _run("stack", first, BYTE, of=(rows, 2 * columns))


def _widened(unpacked: Tensor) -> Tensor:
    """`_floatx_unpacked_to_f32`: 4 bytes for each number, made of its bits as int32.

    Source: torchao/prototype/custom_fp_utils.py.
    """
    _sign = _run("bitwise_and", unpacked, BYTE)
    _bits = _run("bitwise_xor", unpacked, BYTE)
    _zero = _run("eq", _bits, BOOL)
    above = _run("gt", _bits, BOOL)
    shifted = _run("__rshift__", _bits, BYTE)
    low = _run("eq", shifted, BOOL)
    del shifted
    _small = _run("logical_and", above, BOOL)
    del above, low
    _exponent = _run("__rshift__", _bits, BYTE)
    less = _run("sub", _exponent, BYTE)
    biased = _run("add", less, BYTE)
    del less
    wide = _run("_to_copy", biased, INT32)
    _shifted = _run("__lshift__", wide, INT32)
    del wide, biased
    masked = _run("bitwise_and", _bits, BYTE)
    _mantissa = _run("_to_copy", masked, INT32)
    del masked
    _placed = _run("__lshift__", _mantissa, INT32)
    found = _run("bitwise_or", _shifted, INT32)
    found.tape.launch("index_put_", (found, _zero))
    found.tape.launch("index_put_", (found, _small))
    wide = _run("_to_copy", _sign, INT32)
    _of_sign = _run("__lshift__", wide, INT32)
    del wide
    return _seen_as(_run("bitwise_or", found, INT32), FP32)


def _from_mx(packed: Packed, dtype: DType) -> Tensor:
    """`to_dtype`: unpacked, cast, and scaled."""
    _unpacked = _apart(packed.data)
    _bits = _widened(_unpacked)
    wide = _bits if dtype is FP32 else _run("_to_copy", _bits, dtype)
    _scale = _powers(packed.scale)
    if dtype is not FP32:
        _scale = _run("_to_copy", _scale, dtype)
    return _run("mul", wide, dtype)


def _powers(exponent: Tensor) -> Tensor:
    """`get_fp_scale`."""
    wide = _run("_to_copy", exponent, INT16)
    _offset = _run("sub", wide, INT16)
    del wide
    _two = _run("full_like", _offset, FP32)
    found = _run("pow", _two, FP32)
    number = _run("ne", exponent, BOOL)
    _none = _scalar(exponent.tape, "scalar_tensor", FP32)
    found = _run("where", number, FP32)
    return found


def _scale_of_all(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest magnitude, and `per_tensor_amax_to_scale` of it: a scalar in fp32."""
    magnitudes = _run("abs", x, x.dtype)
    x.tape.launch("max", (magnitudes,))
    most = _scalar(x.tape, "max", x.dtype)
    del magnitudes
    _wide = most if x.dtype is FP32 else _scalar(x.tape, "_to_copy", FP32)
    return most, _scalar(x.tape, "div", FP32)


def _to_nvfp4(x: Tensor, whole: Tensor) -> Packed:
    """`nvfp4_quantize` with a scale of the whole: one scale in fp8 for 16 numbers."""
    rows, columns = x.shape
    blocks, tape = (rows, columns // NVFP4_BLOCK), x.tape
    _wide = x if x.dtype is FP32 else _run("_to_copy", x, FP32)
    magnitudes = _run("abs", _wide, FP32)
    _most = _run("amax", magnitudes, FP32, of=blocks)
    del magnitudes
    _of_blocks = _run("div", _most, FP32)
    _over_all = _run("div", _of_blocks, FP32)
    clamped = _run("clamp", _over_all, FP32)
    scale = _run("_to_copy", clamped, E4M3)
    del clamped
    _scale = _run("_to_copy", scale, FP32)
    reciprocal = _scalar(tape, "reciprocal", FP32)
    times = _scalar(tape, "mul", FP32)
    del reciprocal
    _inverse = _run("div", _scale, FP32)
    del times
    _scaled = _run("mul", _wide, FP32)
    _scaled = _run("clamp", _scaled, FP32)
    unpacked = _four_bits(_scaled)
    return Packed(_pairs(unpacked), scale, whole)


def _tiles(shape: Shape) -> tuple[int, int]:
    return -(-shape[0] // TILE_ROWS), -(-shape[1] // TILE_COLUMNS)


def _tiled(scale: Tensor) -> Tensor:
    """`to_blocked`: scales as cuBLAS reads them, in tiles of 128 rows and 4 columns; what is no multiple is padded.

    Rows of a micro-batch are padded together, which counts as no padding.
    """
    rows, columns = scale.shape
    down, across = _tiles(scale.shape)
    padded = scale
    if rows % TILE_ROWS or columns % TILE_COLUMNS:
        whole = (rows if scale.batched else down * TILE_ROWS, across * TILE_COLUMNS)
        padded = scale.tape.new("zeros", whole, scale.dtype, scale.batched)
        scale.tape.launch("copy_", (scale,))
    blocks = _run("clone", padded, scale.dtype) if down > 1 and across > 1 else padded
    return _run("clone", blocks, scale.dtype)


def _from_tiles(scale: Tensor, across: int) -> Tensor:
    """`from_blocked`: the same in rows; what was padded is passed over."""
    blocks = _run("clone", scale, scale.dtype)
    return _run("clone", blocks, scale.dtype) if across > 1 else blocks


def _from_nvfp4(packed: Packed, dtype: DType, turned: Shape | None = None) -> Tensor:
    """`NVFP4Tensor.dequantize`; `turned`: of a weight of this shape, whose scales lie in tiles."""
    _unpacked = _apart(packed.data)
    _wide = _widened(_unpacked)
    _scale = packed.scale
    if turned is not None:
        blocks = (turned[0], turned[1] // NVFP4_BLOCK)
        _scale = _from_tiles(packed.scale, _tiles(blocks)[1])
        wide = _run("_to_copy", _scale, FP32, of=blocks)
    else:
        wide = _run("_to_copy", _scale, FP32)
    _scale = _run("mul", wide, FP32)
    del wide
    _scaled = _run("mul", _wide, FP32)
    return _scaled if dtype is FP32 else _run("_to_copy", _scaled, dtype)
