"""Operator rules of megatron-core where each expert takes so many tokens of a device and no more.

A router drops what is above the capacity; a dispatcher may pad what is below it, so that every expert gets the same.
Files are those of megatron-core 0.16, under core/transformer/moe.
"""

from __future__ import annotations

from vramplan.engines.megatron.token_dispatcher import copied_rows
from vramplan.replay.operators.views import Grads, contiguous, to, transpose, view
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, INT64, DType, Tensor

INT8 = DType("int8", 1)


def within_capacity(weights: Tensor, chosen: Tensor, capacity: int, *, pad: bool) -> tuple[Tensor, Tensor]:
    """`apply_router_token_dropping`: the weights of the tokens that each expert takes, and which these are.

    With `pad` an expert takes as many tokens as it has room for, whether they have chosen it or not.
    The dispatcher keeps both results until the next micro-batch is routed: they belong to the states.
    Source: moe_utils.py, apply_router_token_dropping, whose drop_policy is probs.
    """
    taken = _likeliest(weights, capacity)
    if not pad:
        _both = weights.tape.new("logical_and", chosen.shape, BOOL, chosen.batched)
    kept = taken.tape.constant(taken.shape, BOOL, bool(taken.batched))
    return masked_weights(weights, kept), kept


def _likeliest(weights: Tensor, capacity: int) -> Tensor:
    """Of each expert the tokens that it has the largest weights for, as booleans; all where there are no more."""
    tape, shape, batched = weights.tape, weights.shape, weights.batched
    if capacity > shape[0]:
        _ones = tape.new("ones_like", shape, weights.dtype, batched)
    else:
        best = (capacity, shape[1])
        _values, _places = tape.new("topk", best, weights.dtype, batched), tape.new("topk", best, INT64, batched)
        zeros = tape.new("zeros_like", shape, weights.dtype, batched)
        _marked = tape.new("scatter", shape, weights.dtype, batched)
        del zeros
    return tape.new("to", shape, BOOL, batched)


def masked_weights(weights: Tensor, kept: Tensor) -> Tensor:
    """The product of the weights and the booleans, which the dispatcher keeps.

    Saves `kept`: the gradient goes where they are true.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, mul.Tensor.
    """
    tape, shape, batched = weights.tape, weights.shape, weights.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("mul", shape, grad.dtype, batched),)

    node = tape.record("mul", (weights,), backward, (kept,))
    _product = tape.new("mul", shape, weights.dtype, batched)  # which then takes the place of the one before
    return tape.constant(shape, weights.dtype, bool(batched)).alias(shape, None, node)


def places_of_capacity(mask: Tensor, capacity: int) -> Tensor:
    """The numbers of the tokens that each expert takes, all of its room; the dispatcher keeps them.

    Source: moe_utils.py, permute with drop_and_pad, `sorted_indices`.
    """
    tape, experts, tokens = mask.tape, mask.shape[1], mask.shape[0]
    as_numbers = to(mask, INT8)
    _by_expert = contiguous(transpose(as_numbers, 0, 1))
    del as_numbers
    values = tape.new("sort", (experts, tokens), INT8, mask.batched)
    _places = tape.new("sort", (experts, tokens), INT64, mask.batched)
    del values
    return tape.constant((experts * capacity,), INT64, bool(mask.batched))


def weights_of_capacity(weights: Tensor, places: Tensor) -> Tensor:
    """The weights of these tokens for their experts: the weights by expert, of which some are copied.

    Source: moe_utils.py, permute with drop_and_pad, `permuted_probs`.
    """
    tape, (tokens, experts) = weights.tape, weights.shape
    by_expert = view(contiguous(transpose(weights, 0, 1)), (experts * tokens,))
    _numbers = tape.new("arange", (experts, 1), INT64, False)
    scaled = tape.new("mul", (experts, 1), INT64, False)
    _places = tape.new("add", places.shape, INT64, places.batched)
    del scaled
    return copied_rows(by_expert, _places)


def sorted_rooms(x: Tensor, devices: int, experts: int) -> Tensor:
    """Equal rooms of rows, of each expert of each device, in the order of the other of both: new if both are several.

    Backward: 1 new.
    Source: token_dispatcher.py, MoEAlltoAllTokenDispatcher, dispatch_postprocess and combine_preprocess.
    """
    if devices == 1 or experts == 1:
        return x
    whole, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("clone", whole, grad.dtype, batched),)

    node = x.tape.record("clone", (x,), backward)
    return x.tape.new("clone", whole, x.dtype, batched, None, node)
