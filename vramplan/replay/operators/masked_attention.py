"""Operator rules of scaled_dot_product_attention with a mask: the mask as numbers, and the kernels that take one.

The flash kernel takes none. The memory-efficient kernel adds the mask to the scores, and keeps it for backward. Neither
takes fewer key-value heads than heads without `enable_gqa`: then it is matrix products and a softmax, in fp32.
"""

from __future__ import annotations

from vramplan.replay.operators.elementwise import add, add_in_place, dropout, mul_scalar
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import Grads, autocast_half, expand, repeat_interleave, to, transpose
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, FP32, DType, Shape, Tensor, contiguous_strides, normalised

ALIGNMENT = 8  # elements; attention.cpp, preprocess_mask, mem_eff_alignment


def additive_mask(mask: Tensor, dtype: DType) -> Tensor:
    """A boolean mask as numbers that are added to the scores, 0 or minus infinity: new; two scalars go.

    A mask of numbers is taken as it is.
    Source: aten/src/ATen/native/transformers/attention.cpp, convert_boolean_attn_mask.
    """
    if mask.dtype is not BOOL:
        return mask
    tape = mask.tape
    _infinity = tape.new("scalar_tensor", (), dtype, False)
    _zero = tape.new("scalar_tensor", (), dtype, False)
    return tape.new("where", mask.shape, dtype, True)


def aligned_mask(mask: Tensor, scores: Shape) -> Tensor:
    """A mask [B, 1, S, S] or [B, a, S, S] whose rows begin at multiples of 8 elements, seen as wide as the scores.

    New where the rows do not: padded to the next multiple of 8; else nothing new. A mask needs no gradient.
    Source: aten/src/ATen/native/transformers/attention.cpp, preprocess_mask and pad_bias.
    """
    strides = mask.strides or contiguous_strides(mask.shape)
    if any(stride % ALIGNMENT for stride in strides[:-1]):
        shape = (*mask.shape[:-1], mask.shape[-1] + ALIGNMENT - mask.shape[-1] % ALIGNMENT)
        mask = mask.tape.new("constant_pad_nd", shape, mask.dtype, mask.batched)
        strides = contiguous_strides(shape)
    wide = tuple(0 if a == 1 != b else step for a, b, step in zip(mask.shape[:3], scores[:3], strides, strict=False))
    return mask.alias(scores, normalised(scores, (*wide, strides[-1])), None)


def broadcast_matmul(a: Tensor, b: Tensor, *, squares: bool = False) -> Tensor:
    """`a @ b` of [B, a, m, k] and [B, a or 1, k, n]: the second operand is expanded, and copied if it must be.

    Source: aten/src/ATen/native/LinearAlgebra.cpp, _matmul_impl.
    """
    a, b = autocast_half(a), autocast_half(b)
    return matmul(a, expand(b, (*a.shape[:2], *b.shape[2:])), squares=squares)


def unfused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    *,
    causal: bool = True,
    squares: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` without a kernel of its own: products, mask and softmax, in fp32 whatever q is.

    Without a mask it repeats keys and values for the queries of their group, and where it is causal and there is more
    than one query, it makes the triangle itself.
    With one there is a key-value head for each head, or a single one, which the product expands. A bias that needs a
    gradient has that of the scores, summed over the samples.
    `squares` says that queries and keys are each those of all samples, which stand in one row.
    Its locals live until it returns; so does a copy of the probabilities in the dtype of q, its second result.
    Source: aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math.
    """
    tape, dtype = q.tape, q.dtype
    autocast, tape.autocast = tape.autocast, None  # the operator as a whole is what autocast casts for
    query_acc, key_acc, value_acc = to(q, FP32), to(k, FP32), to(v, FP32)
    query = mul_scalar(query_acc)
    key, value = key_acc, value_acc
    if mask is None:
        mask = triangle(q) if causal and q.shape[2] > 1 else None
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            key, value = repeat_interleave(key_acc, groups), repeat_interleave(value_acc, groups)
    scores = broadcast_matmul(query, mul_scalar(transpose(key, -2, -1)), squares=squares)
    if mask is not None and tape.selective:
        scores = add(scores, mask)  # elsewhere in place (areAnyTensorSubclassLike: a checkpoint follows the operators)
    elif mask is not None and mask.node is not None:
        scores = add_in_place(scores, mask)
    scores = safe_softmax(scores)
    scores = dropout(scores, dropout_p)
    _weights = to(scores, dtype)
    output = to(broadcast_matmul(scores, value), dtype)
    tape.autocast = autocast
    return output


def triangle(q: Tensor) -> Tensor:
    """The scores of earlier tokens alone, as numbers [S, S] in fp32 that are added: new; what it is made of goes.

    Source: aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math, is_causal.
    """
    tape, shape = q.tape, (q.shape[2], q.shape[2])
    ones = tape.new("ones", shape, BOOL, False)
    lower = tape.new("tril", shape, BOOL, False)
    del ones
    _infinity, _zero = (tape.new("scalar_tensor", (), FP32, False) for _ in range(2))
    added = tape.new("where", shape, FP32, False)
    del lower
    return added


def safe_softmax(x: Tensor) -> Tensor:
    """A softmax whose rows of minus infinity are zero: new, from the softmax and a mask of those rows, which go.

    Saves `out`: the gradient is the result times the incoming one less their row sum.
    Backward: 1 new.
    Source: aten/src/ATen/native/transformers/attention.cpp, _safe_softmax; tools/autograd/derivatives.yaml.
    """
    dtype = x.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("_softmax_backward_data", saved[0], dtype),)

    tape = x.tape
    node = tape.record("_safe_softmax", (x,), backward)
    _plain = tape.like("_softmax", x)
    _infinity = tape.new("scalar_tensor", (), dtype, False)
    _masked = tape.like("eq", x, BOOL)
    _rows = tape.new("all", (*x.shape[:-1], 1), BOOL, bool(x.batched))
    _zero = tape.new("scalar_tensor", (), dtype, False)
    out = tape.like("_safe_softmax", x, None, node)
    tape.save(node, out)
    return out
