"""Operator rules of attention with sinks and of clamped gates: gpt-oss."""

from __future__ import annotations

from vramplan.replay.operators.elementwise import broadcast
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import INT64, Parameter, Tensor


def max_last(x: Tensor) -> Tensor:
    """`x.max(dim=-1, keepdim=True).values`: new, and the places of the largest (int64), which go with their result.

    Saves `indices`: the gradient goes where the values were taken.
    Backward: 1 new of the full size, zeros with the gradient written into them in place.
    Source: tools/autograd/derivatives.yaml, max.dim; torch/csrc/autograd/FunctionsManual.cpp,
    value_selecting_reduction_backward.
    """
    tape, whole = x.tape, x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("new_zeros", whole, grad.dtype, grad.batched),)

    node = tape.record("max", (x,), backward)
    shape = (*whole[:-1], 1)
    values = tape.new("max", shape, x.dtype, x.batched, None, node)
    indices = tape.new("max", shape, INT64, x.batched)
    tape.save(node, indices)
    return values


def beside_sinks(output: Tensor, sinks: Parameter) -> Tensor:
    """The result of an attention kernel that takes sinks as an argument: nothing new.

    Backward: the gradient of the sinks, which the kernel makes beside those of queries, keys and values.
    Source: kernels-community/vllm-flash-attn3, flash_attn_interface.py, `s_aux`.
    """
    tape = output.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return grad, grad.tape.new("flash_attention_backward", sinks.shape, sinks.dtype, False)

    node = tape.record("flash_attention_sinks", (output, sinks), backward)
    return output.alias(output.shape, output.strides, node)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """a - b of one dtype: new, nothing saved.

    Backward: nothing new for a, whose gradient is the incoming one; 1 new for b, that one negated.
    Source: tools/autograd/derivatives.yaml, sub.Tensor.
    """
    shape, _ = broadcast(a, b)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad.tape.like("neg", grad))

    node = a.tape.record("sub", (a, b), backward)
    return a.tape.new("sub", shape, a.dtype, a.batched or b.batched, None, node)


def rows_of_table(table: Parameter, places: Tensor) -> Tensor:
    """`table[places]`, rows of a weight by their numbers: new.

    Saves `places`: the gradient is added where the rows were taken.
    Backward: 1 new of the weight's size, zeros with the rows added in place.
    Source: tools/autograd/derivatives.yaml, index.Tensor; torch/csrc/autograd/FunctionsManual.cpp, index_backward.
    """
    tape, whole = table.tape, table.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("new_zeros", whole, grad.dtype, False),)

    node = tape.record("index", (table,), backward, (places,))
    return tape.new("index", (*places.shape, *whole[1:]), table.dtype, places.batched, None, node)
