"""MLPs that run in tiles along the sequence: which weights backward records."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.observers import TiledWeights
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import Parameter


class TilesMLP(Technique, TiledWeights):
    """MLPs run in tiles: backward records their weights."""

    records_in_backward = True

    def before_model(self) -> None:
        """Nothing has run in tiles yet."""
        self.late: set[int] = set()
        self.tape.enlist(TiledWeights, self)

    def tiled(self, weights: Sequence[Parameter]) -> None:
        """These weights are of an MLP that backward comes to."""
        self.late.update(id(one) for one in weights)

    def never_walked(self) -> Sequence[Parameter]:
        """Weights that forward has not come to, and that are in no such MLP.

        Reentrant checkpoints record in backward too, and say by themselves what is outside of them.
        """
        if self.tape.told.checkpointed:
            return ()
        return [one for one in self.tape.parameters if id(one) not in self.late]
