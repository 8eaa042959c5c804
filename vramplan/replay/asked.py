"""Token embeddings that are asked for their gradient, so that checkpoints of frozen blocks have something to train."""

from __future__ import annotations

from vramplan.replay.observers import Observer
from vramplan.replay.recorder import ASKED, Tape
from vramplan.replay.tensors import Parameter, Tensor


def asked(tensor: Tensor, name: str = ASKED) -> Tensor:
    """A tensor that was made to need a gradient: a leaf, which lives with its gradient until backward is over.

    A gradient of another layout, as that of patches behind a class token, is copied. An input of a model is no weight,
    which whoever follows weights knows by its storage: one of no bytes, as the input is a state.
    Source: torch/csrc/autograd/functions/accumulate_grad.h: the accumulator holds the variable; obeys_layout_contract.
    """
    accumulator = Parameter(tensor.tape, name, tensor.shape, tensor.dtype, 1, trainable=True)
    accumulator.storage = tensor.storage or tensor.tape.allocate("view", 0, tensor.batched, None)
    if tensor.strides is None:
        accumulator.shared = False
    tensor.tape.held.append(accumulator)
    leaf = tensor.alias(tensor.shape, tensor.strides, accumulator)
    leaf.storage = accumulator.storage
    return leaf


class AsksInputs(Observer):
    """Makes the output of the first table, that of the tokens, need a gradient, and that of the first module of images.

    Such a tensor and its gradient live until backward is over.
    Source: transformers, modeling_utils.py, enable_input_require_grads, which its switch for checkpointing calls.
    """

    walks_others = False

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.table: Parameter | None = None
        self.modules: dict[int, tuple[Parameter, ...]] = {}  # by the leaf: the weights of what has made it

    def looked_up(self, tensor: Tensor, table: Parameter | None, module: tuple[Parameter, ...]) -> Tensor:
        """The tensor, or a leaf in its place."""
        if table is not None:
            self.table = self.table or table
            if table is not self.table:
                return tensor
            module = (table,)
        if tensor.node is not None:
            return tensor
        found = asked(tensor)
        self.modules[id(found.node)] = module
        return found

    def leaf_reached(self, leaf: Parameter) -> None:
        """Backward has come to the module whose output was asked."""
        module = self.modules.get(id(leaf))
        for reached in self.tape.told.module_reached if module else ():
            reached(module)
