"""A few blocks are trained at a time, and others after some steps.

LISA (arXiv:2403.17919) as Axolotl has it: the optimizer keeps the states of every block that has been trained.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import optimizer_states
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import Parameter


class KeepsStates(Technique):
    """The states of blocks that are not trained now. Nothing frees them, so in the end those of all blocks are there.

    Source: axolotl, utils/callbacks/lisa.py, which sets `requires_grad` and knows nothing of the optimizer; torch/optim
    makes the states of a weight when it has its first gradient.
    """

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """Those of every weight that has no gradient now."""
        found: list[StandingState] = []
        frozen = [one for one in self.tape.parameters if one.node is None]
        for one in frozen:
            stands = Parameter(self.tape, one.name, one.shape, one.dtype, one.copies, trainable=True)
            stands.is_table, stands.in_linear, stands.path = one.is_table, one.in_linear, one.path
            setup = self.setup
            found += optimizer_states([stands], setup.optimizer, setup.optimizer_implementation, self.precision)
            stands.node = None  # it is its own accumulator
        return found
