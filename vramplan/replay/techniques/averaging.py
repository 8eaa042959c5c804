"""An exponential moving average of the weights, beside the model: torch.optim.swa_utils.AveragedModel."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32, INT64, Parameter
from vramplan.values.parallel import is_fsdp

FULLY_SHARD = 2  # the version of FSDP whose parameters stay parameters


def average_states(
    parameters: Sequence[Parameter], buffers: Sequence[int], *, sharded: bool = False
) -> list[StandingState]:
    """A copy of every weight and every buffer, in its own dtype; tied weights once. `sharded`: by FSDP2.

    That of a shard on the host is there, too; buffers are on the device.

    Source: torch/optim/swa_utils.py, AveragedModel.__init__.
    """
    size = sum(sum(map(rounded, copied_bytes(one, sharded=sharded))) * one.copies for one in parameters)
    return [StandingState("ema", size + sum(rounded(buffer) for buffer in buffers), 0)]


def copied_bytes(parameter: Parameter, *, sharded: bool = False) -> tuple[int, ...]:
    """Bytes of each tensor of a weight's copy.

    A layer with 4-bit weights knows what belongs to their numbers by two names, its own and that of the weight, and
    the weight copies it without the memory of what is copied: it is there twice. A bias is copied as it was loaded.
    Of a shard of FSDP2 the layer alone knows them, and its weight is copied as a DTensor.
    Source: bitsandbytes 0.50.2, nn/modules.py, Params4bit.__deepcopy__ and _quantize, Int8Params.__deepcopy__;
    torch/distributed/fsdp/_fully_shard/_fsdp_param.py, FSDPParam._init_sharded_param.
    """
    if is_elsewhere(parameter):
        return parameter.quantized
    if not has_codes(parameter):
        return (parameter.elements * parameter.dtype.itemsize,)
    codes, *others = parameter.quantized
    return (codes, *others) if sharded or codes == parameter.elements else (codes, *others, *others)


def is_elsewhere(parameter: Parameter) -> bool:
    """Whether the numbers of a weight are on the host, and nothing but what belongs to them is on the device."""
    return bool(parameter.quantized) and not parameter.quantized[0]


def has_codes(parameter: Parameter) -> bool:
    """Whether a weight is integers of few bits, and what belongs to them."""
    return len(parameter.quantized) > 1


def update_average(tape: Tape, *, sharded: bool = False) -> None:
    """After the step, in place, while the gradients still live; the count of updates is copied to the device.

    Integers have no operator in place: each weight of few bits is computed in fp32, both parts and their sum. FSDP2
    shards only what is stored as floating-point numbers, which are averaged in place whatever their bits say. Shards on
    the host are averaged there.
    Source: torch/optim/swa_utils.py, AveragedModel.update_parameters and get_ema_multi_avg_fn.
    """
    tape.category = "temporaries"
    if any(is_elsewhere(one) for one in tape.parameters):
        return
    count = tape.new("_to_copy", (), INT64, False)
    for one in tape.parameters:
        if has_codes(one) and not sharded:
            codes = (one.quantized[0],)  # of a byte each
            old = tape.new("mul", codes, FP32, False)
            new = tape.new("mul", codes, FP32, False)
            total = tape.new("add", codes, FP32, False)
            del old, new, total
    del count


def is_fully_sharded(setup: Setup) -> bool:
    """Whether weights are DTensors of FSDP2."""
    return setup.sharding is not None and is_fsdp(setup.sharding.kind) and setup.sharding.version == FULLY_SHARD


class Averages(Technique):
    """AveragedModel beside the model."""

    def after_step(self) -> None:
        """`update_parameters`."""
        update_average(self.tape, sharded=is_fully_sharded(self.setup))

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """The averaged model."""
        return average_states(self.tape.parameters, buffers, sharded=is_fully_sharded(self.setup))
