"""Operator rules of megatron-core's mixture of experts, whose experts are spread over devices.

Tokens are copied for each of their experts, sent to the devices that have these, sorted by expert, and come back the
same way. Tokens are rows [T, H]; how many a device receives depends on the data, and is given.
Files are those of megatron-core 0.16, under core/transformer/moe; its MoEAlltoAllTokenDispatcher and SequentialMLP.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, INT32, INT64, Parameter, Tensor


def gating(x: Tensor, weight: Parameter) -> Tensor:
    """`router_gating_linear`: a number for each token and expert, new.

    Saves `x`: the gradient of the weight needs it; it is saved beside a frozen weight too.
    Backward: the gradients of both.
    Source: moe_utils.py, RouterGatingLinearFunction, with Transformer Engine's product.
    """
    rows, width = x.shape
    experts, batched, dtype = weight.shape[0], x.batched, x.dtype
    work = 2 * rows * width * experts

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(2 * work)
        of_x = tape.new("general_gemm", (rows, width), dtype, batched)
        return (of_x, tape.new("general_gemm", (experts, width), dtype, False))

    node = x.tape.record("router_gating", (x, weight), backward, (x,))
    x.tape.work(work)
    return x.tape.new("general_gemm", (rows, experts), dtype, batched, None, node)


def routed(scores: Tensor, indices: Tensor, experts: int, *, kept: bool = True) -> tuple[Tensor, Tensor]:
    """The weights of all experts for each token, most of them zero, and which are meant, as booleans.

    If `kept`, the dispatcher keeps both until the next micro-batch is routed: they belong to the states.
    Saves `indices`: the gradient of a weight is found by them.
    Backward: 1 new, as large as the scores.
    Source: moe_utils.py, topk_routing_with_score_function; token_dispatcher.py, MoEAlltoAllTokenDispatcher.probs.
    """
    tape, shape = scores.tape, (scores.shape[0], experts)
    given, batched = scores.shape, scores.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("gather", given, grad.dtype, batched),)

    node = tape.record("scatter", (scores,), backward, (indices,))
    _zeros = tape.new("zeros_like", shape, scores.dtype, batched)
    if kept:
        weights = tape.constant(shape, scores.dtype, bool(batched)).alias(shape, None, node)
    else:
        weights = tape.new("scatter", shape, scores.dtype, batched, None, node)
    _zeros = tape.new("zeros_like", shape, scores.dtype, batched)
    _zeros = tape.new("to", shape, INT32, batched)
    _marked = tape.new("scatter", shape, INT32, batched)
    return weights, tape.constant(shape, BOOL, bool(batched)) if kept else tape.new("to", shape, BOOL, batched)


def masked_select(x: Tensor, mask: Tensor, count: int) -> Tensor:
    """`masked_select`: as many elements as are given, new.

    Saves `x`: for its shape.
    Saves `mask`: where they came from.
    Backward: zeros of the shape of x, filled in place.
    Source: tools/autograd/derivatives.yaml, masked_select.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("zeros_like", saved[0], grad.dtype),)

    node = x.tape.record("masked_select", (x,), backward, (x, mask))
    return x.tape.new("masked_select", (count,), x.dtype, x.batched, None, node)


def copied_rows(x: Tensor, indices: Tensor) -> Tensor:
    """`index_select(0, indices)`: a copy of each row that is named, new.

    Saves `indices`: which rows they were.
    Backward: zeros of the shape of x, added to in place.
    Source: tools/autograd/derivatives.yaml, index_select.
    """
    whole, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index_select_backward", whole, grad.dtype, batched),)

    node = x.tape.record("index_select", (x,), backward, (indices,))
    return x.tape.new("index_select", (*indices.shape, *whole[1:]), x.dtype, batched, None, node)


def all_to_all(x: Tensor, rows: int, devices: int) -> Tensor:
    """`_AllToAll`: what a device receives of all, new; one device keeps what it has.

    Backward: 1 new, what was sent.
    Source: core/tensor_parallel/mappings.py, _AllToAll.
    """
    if devices == 1:
        return x
    return _exchanged("all_to_all", x, (rows, *x.shape[1:]))


def gather_rows(x: Tensor, devices: int) -> Tensor:
    """The rows of all devices that share each expert, new; backward sums them and keeps a part, new.

    Backward: 1 new.
    Source: core/tensor_parallel/mappings.py, _GatherFromSequenceParallelRegion.
    """
    return x if devices == 1 else _exchanged("all_gather", x, (x.shape[0] * devices, *x.shape[1:]))


def reduce_scatter_rows(x: Tensor, devices: int) -> Tensor:
    """The sum over the devices that share each expert, of which each keeps its rows, new; backward gathers them.

    Backward: 1 new.
    Source: core/tensor_parallel/mappings.py, _ReduceScatterToSequenceParallelRegion.
    """
    return x if devices == 1 else _exchanged("reduce_scatter", x, (x.shape[0] // devices, *x.shape[1:]))


def sort_chunks(x: Tensor) -> Tensor:
    """`sort_chunks_by_idxs`: the same rows in another order, new.

    Backward: 1 new.
    Source: moe_utils.py, sort_chunks_by_idxs (a split and a cat).
    """
    return _exchanged("cat", x, x.shape)


def _exchanged(name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows that come in place of others, in both directions."""
    given, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new(name, given, grad.dtype, batched),)

    node = x.tape.record(name, (x,), backward)
    return x.tape.new(name, shape, x.dtype, batched, None, node)


def split_rows(x: Tensor, parts: int) -> list[Tensor]:
    """`torch.split` into equal parts along the rows: views, nothing new.

    Backward: 1 new, the gradients of the parts concatenated.
    Source: tools/autograd/derivatives.yaml, split.
    """
    whole, batched = x.shape, x.batched

    def backward(grads: Tensor, saved: Saved) -> Grads:
        return (x_tape.new("cat", whole, dtype, batched),)

    x_tape, dtype = x.tape, x.dtype
    node = x.tape.record("split", (x,), backward)
    shape = (whole[0] // parts, *whole[1:])
    return [x.alias(shape, None, node, i) for i in range(parts)]


def weighted_swiglu(x: Tensor, weights: Tensor) -> Tensor:
    """`weighted_bias_swiglu_impl`: new, half as wide as its input, each row times its weight.

    Saves `x`: the gradients of both halves need both.
    Saves `weights`: they scale the gradient.
    Backward: 1 new, as wide as the input, and that of the weights.
    Source: core/fusions/fused_bias_swiglu.py, WeightedSwiGLUFunction.
    """
    given, batched = weights.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        both = tape.like("weighted_swiglu_back", saved[0])
        return (both, tape.new("weighted_swiglu_back", given, grad.dtype, batched))

    node = x.tape.record("weighted_swiglu", (x, weights), backward, (x, weights))
    return x.tape.new("weighted_swiglu", (*x.shape[:-1], x.shape[-1] // 2), x.dtype, batched, None, node)


def weighted_squared_relu(x: Tensor, weights: Tensor) -> Tensor:
    """`weighted_squared_relu_impl`: new, each row times its weight.

    Saves `x`: the slope is a function of it.
    Saves `weights`: they scale the gradient.
    Backward: 1 new, and that of the weights.
    Source: core/fusions/fused_weighted_squared_relu.py, WeightedSquaredReLUFunction.
    """
    given, batched = weights.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        both = tape.like("weighted_squared_relu_back", saved[0])
        return (both, tape.new("weighted_squared_relu_back", given, grad.dtype, batched))

    node = x.tape.record("weighted_squared_relu", (x, weights), backward, (x, weights))
    return x.tape.like("weighted_squared_relu", x, None, node)


def sum_rows(x: Tensor, indices: Tensor, rows: int) -> Tensor:
    """`unpermute`: each token's results are added to zeros, new.

    Saves `indices`: which rows they belong to.
    Backward: 1 new, the gradient's rows once for each result.
    Source: moe_utils.py, unpermute; tools/autograd/derivatives.yaml, scatter_add.
    """
    given, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("gather", given, grad.dtype, batched),)

    node = x.tape.record("scatter_add_", (x,), backward, (indices,))
    return x.tape.new("zeros", (rows, *given[1:]), x.dtype, batched, None, node)


def indices_of(tape_of: Tensor, mask: Tensor, count: int) -> Tensor:
    """The numbers of the tokens that each expert gets, which the dispatcher keeps like the weights.

    Source: moe_utils.py, permute; token_dispatcher.py, reversed_local_input_permutation_mapping.
    """
    tape = tape_of.tape
    _arange = tape.new("arange", (mask.shape[1],), INT64, mask.batched)
    return tape.constant((count,), INT64, bool(mask.batched))


def kept_by_dispatcher(tokens: int, experts: int, sent: int, itemsize: int) -> list[int]:
    """Bytes of the weights, the booleans and the indices."""
    return [tokens * experts * itemsize, tokens * experts, sent * INT64.itemsize]
