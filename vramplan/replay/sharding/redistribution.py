"""Tensor parallelism by DTensor: what happens to a gradient before FSDP sums it over the data-parallel devices."""

from __future__ import annotations

from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Parameter


class Redistribution:
    """Brings a gradient to the layout of its parameter.

    That of a norm is a part of a sum, as the device has seen a part of each sequence: it is summed, into a new tensor.
    That of a table is of the whole vocabulary: the device's part is copied out of it.
    Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, FSDPParam._get_grad_inner_tensor.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def __call__(self, parameter: Parameter) -> None:
        """Replace the gradient, if its layout is another."""
        gradient = parameter.grad
        if gradient is None:
            return
        operator = None
        if len(parameter.shape) == 1:
            operator = "all_reduce"
        elif gradient.shape != parameter.shape:
            operator = "clone"
        if operator is not None:
            parameter.grad = self.tape.new(operator, parameter.shape, gradient.dtype, False, category="gradients")
