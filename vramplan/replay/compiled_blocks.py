"""A tape that plays a step of which each block is compiled by itself, and all else runs operator by operator.

A block is a graph of its own: what it is given is there, what it returns is stored, and backward gets the gradient of
that and gives those of its input and its weights together. Between the two the rules of compiled.py decide.
Source: torchtitan/models/llama3/infra/parallelize.py, apply_compile; torchtune/training/_compile.py, compile_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.compiled import CompiledTape
from vramplan.replay.deferred import Deferred
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import DType, Shape, Storage, Tensor

SUMS = ("sum", "_fused_rms_norm_backward", "native_layer_norm_backward")  # over the rows of a micro-batch


class BlockwiseTape(CompiledTape):
    """Records one iteration of a model whose blocks are compiled."""

    def __init__(self, batch: int, *, direct: bool = False, unrolled: bool = False) -> None:
        super().__init__(batch, direct=direct, unrolled=unrolled, one_graph=False, returns_logits=False)
        self.puts_off = False  # what is made now
        self.vectors: list[Deferred] = []  # gradients of the weights of norms, which the end of backward makes
        self.returning: list[Any] = []  # what a graph in a checkpoint gives for a backward pass, which nobody keeps

    def phase(self, name: str) -> None:
        """No phase begins inside of a graph; a first block whose input needs no gradient is left here."""
        self.leave()
        super().phase(name)
        self.fusing, self.outside = False, True

    def graph(self, run: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
        """What a compiled function gives; backward leaves its graph with the gradient of what it was given."""

        def left(grad: Any, saved: Saved) -> Sequence[Tensor | None]:
            self.consume((grad,))
            self.leave()
            return (grad,)

        node = Tape.record(self, "view", (given,), left)
        if node is not None:
            given = given.alias(given.shape, given.strides, node)
        if type(given.storage) is Deferred:  # no product of this graph has read it
            given.storage.read = given.storage.closed = False
            given.storage.origins = ()
        self.in_checkpoint = self.frame is not None or self.recomputing is not None
        self.enter_graph()
        result = self.leave_graph(run(given))
        self.returning.clear()
        return result

    def enter_graph(self) -> None:
        """From here on kernels are fused."""
        self.fusing, self.outside, self.reading = True, False, ()

    def new(
        self,
        operator: str,
        shape: Shape,
        dtype: DType,
        batched: int,
        strides: Shape | None = None,
        node: Any = None,
        category: str | None = None,
    ) -> Tensor:
        """A tensor; the gradient of the weight of a norm is put off, and with it goes what it is the sum of.

        Sums over the rows of a block are one kernel, as they all read what the block was given.
        Source: torch/_inductor/scheduler.py, Scheduler.can_fuse_horizontal.
        """
        is_sum = operator in SUMS and self.in_backward and len(shape) == 1 and not batched
        self.puts_off = is_sum and any(one.batched for one in self.reading)
        result = super().new(operator, shape, dtype, batched, strides, node, category)
        if self.puts_off and type(result.storage) is Deferred:
            self.vectors.append(result.storage)
        self.puts_off = False
        return result

    def _is_kept(self, operator: str, dtype: DType, shape: Shape, batched: int, parents: tuple[Storage, ...]) -> bool:
        return not self.puts_off and super()._is_kept(operator, dtype, shape, batched, parents)

    def relabel(self, tensor: Tensor, category: str) -> None:
        """Count a storage under another component from now on, or from when it is there."""
        storage = tensor.storage
        if type(storage) is Deferred and storage.index < 0 and any(one is storage for one in self.vectors):
            storage.birth = (*storage.birth[:-1], category)
        else:
            super().relabel(tensor, category)

    def accumulated(self, gradient: Tensor) -> None:
        """What is added to a gradient that is there is made first."""
        self.store(gradient)
        super().accumulated(gradient)

    def leave(self) -> None:
        """Backward has given all gradients of a graph."""
        for one in self.vectors:
            if one.index < 0:
                self._store(one)
        self.vectors.clear()
        self.fusing, self.outside, self.reading = False, True, ()
        self.outputs.clear()

    def save(self, node: Any, *tensors: Any) -> None:
        """A graph does not know of the checkpoint around it: it returns what its backward would ask for."""
        if self.fusing and self.frame is not None and self.in_checkpoint:
            self.returning.extend(tensors)
        super().save(node, *tensors)

    def _leave(self, inputs: Sequence[Tensor | None]) -> None:
        """A checkpoint is a whole graph, or a part of one: what it gives is returned, and stays."""

    def _hold(self, storage: Storage | None) -> None:
        """No graph hands its buffers on to another."""
