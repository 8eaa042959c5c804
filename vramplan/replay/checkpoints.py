"""Non-reentrant checkpoints: what one holds until backward has computed its segment again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.layouts import DType
from vramplan.replay.ledger import Path

Saved = Sequence[Any]


class Recomputed:
    """Stands for the node of a tensor that is recomputed: such tensors need gradients, but nobody walks their graph."""


RECOMPUTED = Recomputed()


class StopRecomputation(Exception):
    """Everything that backward will ask for has been recomputed."""


# what a selective checkpoint keeps: the results of matrix products and of fused attention, as PyTorch's own list of
# compute-intensive operators has them (torch/_functorch/partitioners.py, get_default_op_list)
MATMULS = "matmuls"
ALTERNATE_MATMULS = "alternate-matmuls"  # the same, but of linear layers only the first, third, ... of the checkpoint


class Frame:
    """One checkpoint: how to compute its segment again, and what that gave.

    It lives as long as a node of its segment that saved something has not run: so long its inputs stay alive, and so
    do the results that it keeps and that recomputation, which stops early, has not asked for.
    Source: torch/utils/checkpoint.py, _CheckpointFrame and create_selective_checkpoint_contexts.
    """

    __slots__ = (
        *("__weakref__", "asked", "autocast", "function", "inputs", "keeps"),
        *("kept", "path", "products", "saves", "taken"),
    )

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Saved,
        path: Path,
        autocast: DType | None,
        keeps: str | None = None,
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.path = path
        self.autocast = autocast  # the element type of autocast, in recomputation too
        self.saves = 0  # tensors that its operators have saved in forward
        self.taken: list[Any] | None = None  # the same tensors, computed again
        self.keeps = keeps  # None: nothing; MATMULS or ALTERNATE_MATMULS
        self.kept: list[Saved | None] = []  # in the order of the operators; None is computed again
        self.products = 0  # products of linear layers that forward has run
        self.asked = 0  # operators of its list that recomputation has come to

    def take(self, tensors: Saved) -> None:
        """Tensors that an operator saves in recomputation.

        Raises StopRecomputation when backward has all that it will ask for.
        """
        taken = self.taken
        assert taken is not None
        for tensor in tensors:
            taken.append(tensor)
            if len(taken) == self.saves:
                raise StopRecomputation

    def keep(self, product: bool, results: Saved) -> None:
        """Keep what an operator of the list gave in forward, or note that it is computed again.

        `product` says that it is the product of a linear layer, of which ALTERNATE_MATMULS keeps every second one. A
        kept result is another view of the storage, which needs no gradient.
        """
        self.products += product
        kept = not product or self.keeps == MATMULS or self.products % 2 == 1
        self.kept.append(tuple(x.alias(x.shape, x.strides, None) for x in results) if kept else None)

    def recall(self) -> Any:
        """What was kept of the operator that is computed again now, handed out once; None if it has to run."""
        results, self.kept[self.asked] = self.kept[self.asked], None
        self.asked += 1
        return results
