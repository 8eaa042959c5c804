"""What DeepSpeed leaves on a device before its first iteration, as the caching allocator sees it.

The weights come whole, in 16 bits. Stage 3 cuts each as it is made (zero.Init), and moves the parts to the host and
back into one buffer, with an empty cache between. Stages 1 and 2 copy all into one buffer beside them where the device
has room for that, else through the host. Then the fp32 copy is made beside a copy that passes by, and a gradient that
only the optimizer's preparation needs.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/partition_parameters.py (Init._zero_init_param, _partition_param);
utils.py, defragment; stage3.py (_create_fp32_partitions, initialize_optimizer_states, _setup_for_real_optimizer,
create_reduce_and_remove_grad_hooks); stage_1_and_2.py (DeepSpeedZeroOptimizer.__init__, initialize_optimizer_states).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.recorder import rounded
from vramplan.replay.start import Start, Starting
from vramplan.replay.tensors import FP32, DType
from vramplan.tuples import NamedTuple


class Weight(NamedTuple):
    """One parameter, in bytes."""

    whole: int
    part: int  # of the device, under stage 3
    is_trained: bool


def start_of_stage_3(
    weights: Sequence[Weight], groups: Sequence[int], dtype: DType, bucket_bytes: int, *, offload: frozenset[str]
) -> Start:
    """`groups`: elements of the device's parts that are stepped at a time."""
    made, elements = Starting(), sum(groups)
    kept, steps_here = "parameters" not in offload, "optimizer" not in offload
    cut: list[int] = []
    for one in weights:
        whole = made.make(one.whole)
        if kept:
            part = made.make(one.part)
            if one.is_trained:
                cut.append(part)
        made.let_go(whole)
    made.let_go(*cut)
    made.give_back()
    if kept and elements:
        made.make(rounded(elements * dtype.itemsize))
    if steps_here and dtype is not FP32:
        converted: list[int] = []
        for group in groups:  # a variable holds what the group before was converted to
            converted.append(made.make(rounded(group * FP32.itemsize)))
            made.let_go(*converted[-2:-1])
            made.make(rounded(group * FP32.itemsize))
        made.let_go(*converted[-1:])
    if steps_here and groups:
        made.pass_by(rounded(max(groups) * FP32.itemsize))
    if bucket_bytes:
        made.make(bucket_bytes)
    if steps_here and elements:
        made.make(rounded(elements * dtype.itemsize))
    for one in weights:  # create_reduce_and_remove_grad_hooks gathers each, to hang a hook on it
        if one.is_trained:
            whole = made.make(one.whole)
            if not kept:
                made.pass_by(one.part)
            made.let_go(whole)
    return Start(tuple(made.sizes), tuple(made.events))


def start_of_stages_1_and_2(
    weights: Sequence[Weight], flat: int, part: int, dtype: DType, *, flat_on_device: bool, steps_on_host: bool
) -> Start:
    """`flat`: elements of the buffer of all that is trained; `part`: of the device's."""
    made = Starting()
    numbers = [(made.make(one.whole), one.is_trained) for one in weights]
    trained = [number for number, is_trained in numbers if is_trained]
    before = len(made.events)
    buffer = made.make(rounded(flat * dtype.itemsize))
    needed = sum(made.sizes)
    made.let_go(*trained)
    behind = len(made.events)
    half = made.make(rounded(part * dtype.itemsize))
    if not steps_on_host:
        made.make(rounded(part * FP32.itemsize))
    made.let_go(half)
    if steps_on_host:  # through which gradients come back
        made.make(max((one.whole for one in weights if one.is_trained), default=0))
    else:
        made.pass_by(rounded(part * FP32.itemsize))
    events = tuple(made.events)
    through_host = (*events[:before], *(~one for one in trained), None, buffer, *events[behind:])
    if not flat_on_device:
        return Start(tuple(made.sizes), through_host)
    return Start(tuple(made.sizes), events, needed, through_host)
