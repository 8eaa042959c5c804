"""An exponential moving average of the weights, beside the model: torch.optim.swa_utils.AveragedModel."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.record import StandingState
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import INT64, Parameter


def average_states(parameters: Sequence[Parameter], buffers: Sequence[int]) -> list[StandingState]:
    """A copy of every weight and every buffer, in its own dtype; tied weights once.

    Source: torch/optim/swa_utils.py, AveragedModel.__init__.
    """
    size = sum(rounded(one.elements * one.dtype.itemsize) * one.copies for one in parameters)
    return [StandingState("ema", size + sum(rounded(buffer) for buffer in buffers), 0)]


def update_average(tape: Tape) -> None:
    """After the step, in place, while the gradients still live; the count of updates is copied to the device.

    Source: torch/optim/swa_utils.py, AveragedModel.update_parameters and get_ema_multi_avg_fn.
    """
    tape.category = "temporaries"
    count = tape.new("_to_copy", (), INT64, False)
    del count


class Averages(Technique):
    """AveragedModel beside the model."""

    def after_step(self) -> None:
        """`update_parameters`."""
        update_average(self.tape)

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """The averaged model."""
        return average_states(self.tape.parameters, buffers)
