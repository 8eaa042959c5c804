"""Operator rules of a TorchScript function, as its interpreter runs it: what is recorded is a graph, not its operators.

TorchScript may fuse the operators of such a graph on a GPU, which then makes fewer temporaries; that is not modelled.
"""

from __future__ import annotations

from vramplan.replay.operators.indexing import stack_last
from vramplan.replay.operators.views import Grads, cat, narrow, select, view
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, Tensor


def scripted_rotary(x: Tensor, cache: Tensor) -> Tensor:
    """`apply_rotary_pos_emb` of ChatGLM, a TorchScript function: neighbours in the first part of each head are turned.

    x is [S, B, a, d], the cosines and sines [S, 1, r, 2] need no gradient.
    Source: THUDM/chatglm3-6b, modeling_chatglm.py, apply_rotary_pos_emb; torch/csrc/jit/runtime/autodiff.cpp.
    """
    length, batch, heads, width = x.shape
    rotated = 2 * cache.shape[2]
    part, rest = narrow(x, -1, rotated), narrow(x, -1, width - rotated)
    pairs = view(part, (length, batch, heads, rotated // 2, 2))
    first, second = select(pairs, 4), select(pairs, 4)
    del part, pairs
    turn = turned_pairs if x.tape.autocast is None else turned_pairs_in_autocast
    turned = turn(first, second, cache)
    del first, second
    stacked = view(stack_last(turned), (length, batch, heads, rotated))
    del turned
    return cat([stacked, rest], -1)


def turned_pairs(first: Tensor, second: Tensor, cache: Tensor) -> list[Tensor]:
    """The difference and the sum of four products with cosines and sines: each of the two one recorded graph.

    Saves `cache`: the gradients are the incoming ones times cosines and sines.
    Backward: two products of the sum; the negative of the difference's, and its two products.
    Source: torch/csrc/jit/runtime/autodiff.cpp; torch/csrc/jit/runtime/graph_executor.cpp, DifferentiableGraphBackward.
    """
    tape = first.tape

    def difference_backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        negative = tape.like("neg", grad)
        second_gradient = tape.like("mul", negative)
        del negative
        return (tape.like("mul", grad), second_gradient)

    def sum_backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        return (tape.like("mul", grad), tape.like("mul", grad))

    results = []
    for operator, backward in (("sub", difference_backward), ("add", sum_backward)):
        _one = tape.like("mul", first)
        _other = tape.like("mul", first)
        node = tape.record(operator, (first, second), backward, (cache,))
        results.append(tape.like(operator, first, None, node))
        del _one, _other
    return results


def _in_fp32(cache: Tensor) -> Tensor:
    """The cosines or the sines: a part of the cache, or a copy in fp32."""
    if cache.dtype is FP32:
        return cache
    length, _, pairs, _ = cache.shape
    return cache.tape.new("to", (length, 1, 1, pairs), FP32, False)


def turned_pairs_in_autocast(first: Tensor, second: Tensor, cache: Tensor) -> list[Tensor]:
    """The same in autocast, which TorchScript writes into the graph: one recorded graph, with casts to fp32.

    Saves `cache`: the gradients are the incoming ones times cosines and sines, where these are in fp32.
    Saves `cosines`: the gradients are the incoming ones times their casts to fp32.
    Saves `sines`: the same.
    Backward: the negative of the difference's gradient, two products and their sum, two more and theirs.
    Source: torch/csrc/jit/passes/autocast.cpp; torch/csrc/jit/runtime/autodiff.cpp.
    """
    tape = first.tape

    def backward(grads: list[Tensor | None], saved: Saved) -> Grads:
        grad = grads[0]
        assert grad is not None
        tape = grad.tape
        negative = tape.like("neg", grad)
        one, other = tape.like("mul", negative), tape.like("mul", grad)
        first_sum = tape.like("add", one)
        del one, other
        one = tape.like("mul", grad)
        del negative
        other = tape.like("mul", grad)
        second_sum = tape.like("add", one)
        del one, other
        return (first_sum, second_sum)

    wide_first = tape.like("to", first, FP32)
    cosines, wide_second = _in_fp32(cache), tape.like("to", second, FP32)
    sines = _in_fp32(cache)
    _one, _other = tape.like("mul", wide_first), tape.like("mul", wide_second)
    node = tape.record("add", (first, second), backward, (cosines, sines))
    total = tape.like("add", wide_first)
    del _one, _other
    _one = tape.like("mul", wide_first)
    del wide_first
    _other = tape.like("mul", wide_second)
    del wide_second
    difference = tape.like("sub", _one, None, node)
    del _one, _other
    return [difference, total.alias(total.shape, total.strides, node, 1)]
