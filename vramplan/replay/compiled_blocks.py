"""A tape that plays a step of which each block is compiled by itself, and all else runs operator by operator.

A block is a graph of its own: what it is given is there, what it returns is stored, and backward gets the gradient of
that and gives those of its input and its weights together. Between the two the rules of compiled.py decide.
Source: torchtitan/models/llama3/infra/parallelize.py, apply_compile; torchtune/training/_compile.py, compile_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.compiled import CompiledTape
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import Storage, Tensor


class BlockwiseTape(CompiledTape):
    """Records one iteration of a model whose blocks are compiled."""

    def __init__(self, batch: int, *, direct: bool = False) -> None:
        super().__init__(batch, direct=direct, one_graph=False, returns_logits=False)

    def phase(self, name: str) -> None:
        """No phase begins inside of a graph."""
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
        self.enter_graph()
        return self.leave_graph(run(given))

    def enter_graph(self) -> None:
        """From here on kernels are fused."""
        self.fusing, self.outside, self.reading = True, False, ()

    def leave(self) -> None:
        """Backward has given all gradients of a graph."""
        self.fusing, self.outside, self.reading = False, True, ()
        self.outputs.clear()

    def _leave(self, inputs: Sequence[Tensor | None]) -> None:
        """A checkpoint is a whole graph, or a part of one: what it gives is returned, and stays."""

    def _hold(self, storage: Storage | None) -> None:
        """No graph hands its buffers on to another."""
