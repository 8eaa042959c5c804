"""An exponential moving average of the weights, beside the model: torch.optim.swa_utils.AveragedModel."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.record import StandingState
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32, INT64, Parameter


def average_states(parameters: Sequence[Parameter], buffers: Sequence[int]) -> list[StandingState]:
    """A copy of every weight and every buffer, in its own dtype; tied weights once.

    Source: torch/optim/swa_utils.py, AveragedModel.__init__.
    """
    size = sum(sum(map(rounded, copied_bytes(one))) * one.copies for one in parameters)
    return [StandingState("ema", size + sum(rounded(buffer) for buffer in buffers), 0)]


def copied_bytes(parameter: Parameter) -> tuple[int, ...]:
    """Bytes of each tensor of a weight's copy.

    A layer with 4-bit weights knows what belongs to their numbers by two names, its own and that of the weight, and
    the weight copies it without the memory of what is copied: it is there twice. A bias is copied as it was loaded.
    Source: bitsandbytes 0.50.2, nn/modules.py, Params4bit.__deepcopy__ and _quantize, Int8Params.__deepcopy__.
    """
    if not has_codes(parameter):
        return (parameter.elements * parameter.dtype.itemsize,)
    codes, *others = parameter.quantized
    return (codes, *others) if codes == parameter.elements else (codes, *others, *others)


def has_codes(parameter: Parameter) -> bool:
    """Whether a weight is integers of few bits, and what belongs to them."""
    return len(parameter.quantized) > 1


def update_average(tape: Tape) -> None:
    """After the step, in place, while the gradients still live; the count of updates is copied to the device.

    Integers have no operator in place: each weight of few bits is computed in fp32, both parts and their sum.
    Source: torch/optim/swa_utils.py, AveragedModel.update_parameters and get_ema_multi_avg_fn.
    """
    tape.category = "temporaries"
    count = tape.new("_to_copy", (), INT64, False)
    for one in tape.parameters:
        if has_codes(one):
            codes = (one.quantized[0],)  # of a byte each
            old = tape.new("mul", codes, FP32, False)
            new = tape.new("mul", codes, FP32, False)
            total = tape.new("add", codes, FP32, False)
            del old, new, total
    del count


class Averages(Technique):
    """AveragedModel beside the model."""

    def after_step(self) -> None:
        """`update_parameters`."""
        update_average(self.tape)

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """The averaged model."""
        return average_states(self.tape.parameters, buffers)
