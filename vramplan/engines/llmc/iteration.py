"""An iteration of llm.c: everything is allocated before the first step, and nothing until the last one is over.

Source: karpathy/llm.c, train_gpt2.cu, gpt2_allocate_weights, gpt2_allocate_state and common_start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines.llmc.model import ATTENTION, CLASSIFIER, arena, kernels, parameters, weights
from vramplan.replay.kernels import Launches
from vramplan.replay.precision import precision_of
from vramplan.replay.record import Record
from vramplan.replay.recorder import Path, Tape, rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import BYTE, FP32, INT32, DType, Shape
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import ZERO1

if TYPE_CHECKING:
    from vramplan.replay.setup import Setup

CUBLASLT_WORKSPACE_BYTES = 32 << 20  # llmc/cublas_common.h, cublaslt_workspace_size
MOMENTS = 2  # m_memory and v_memory, always in fp32
FP32_STATES = "-32bit"  # of the optimizer's name, where the weights have no copy (option -w 0)


def replay_llmc(setup: Setup, tape: Tape) -> Record:
    """One iteration: the arena is one allocation, and each phase has all of it."""
    dtype = precision_of(setup.precision).weights
    shape, length = setup.model, setup.sequence_length
    selects = setup.segments[0].selects
    buffers = arena(shape, length, setup.attention, selects)
    kept, scratch = (
        sum(one.elements * (FP32 if one.wide else dtype).itemsize for one in buffers if one.scratch is wanted)
        for wanted in (False, True)
    )
    for one in weights(shape):
        tape.parameter(one.name, (one.elements * one.copies,), dtype)

    tape.phase("forward")
    held = [
        tape.new("cudaMalloc", (tape.batch, size), BYTE, True, category=category)
        for size, category in ((kept, "activations"), (scratch, "temporaries"))
    ]
    ran = Launches(tape)
    _run(ran, tape, setup, dtype, "forward")
    saved_at = len(tape.events)
    tape.phase("backward")
    _run(ran, tape, setup, dtype, "backward")
    tape.phase("step")
    held.clear()

    count, share = parameters(shape), parameters(shape) // shards_of(setup)
    states = [StandingState("weights", rounded(count * dtype.itemsize), 0)]
    if not setup.optimizer.endswith(FP32_STATES):
        states.append(StandingState("master", rounded(share * FP32.itemsize), 0))
    states += [
        StandingState("optimizer", MOMENTS * rounded(share * FP32.itemsize), 0),
        StandingState("gradients", rounded(count * dtype.itemsize), 0),
        StandingState("inputs", 0, length * INT32.itemsize, 2),
        StandingState("workspace", CUBLASLT_WORKSPACE_BYTES, 0),
        StandingState("buffers", rounded(FP32.itemsize), 0),  # accumulated_mean_loss
    ]
    record = Record(tape, states, saved_at, ran=ran)
    tape.tell(())
    for parameter in tape.parameters:
        parameter.node = None
    tape.parameters.clear()
    return record


def _run(ran: Launches, tape: Tape, setup: Setup, dtype: DType, direction: str) -> None:
    """List the kernels of a pass: backward has a gradient of each operand, and reads each again.

    Source: train_gpt2.cu, gpt2_forward and gpt2_backward_and_reduce: their calls, in their order.
    """
    shape, length = setup.model, setup.sequence_length
    twice = 2 if direction == "backward" else 1
    for one in kernels(shape, length, setup.attention):
        if direction == "backward" and one.name == CLASSIFIER:
            continue  # it has made the gradient of the logits in place of them
        copies = one.copies * (twice if one.flops else 1)
        operands: list[tuple[Shape, DType, int, Shape | None]]
        operands = [((tape.batch, *size), dtype, True, None) for size in one.operands]
        operands += [(size, dtype, False, None) for size in one.weights]
        path: Path = ((0, copies),) if copies > 1 else ()
        ran.launches.append((len(tape.events), one.name, direction, path, operands * (1 if one.flops else twice)))
        if one.flops:
            count = one.flops * tape.batch
            ran.flops[direction] += count * copies
            head = shape.head_size if one.name == ATTENTION else 0
            ran.counted.append((len(ran.launches) - 1, count, 0, head))


def shards_of(setup: Setup) -> int:
    """Devices that share the optimizer's states (set_zero_configs, option -z 1)."""
    sharding = setup.sharding
    return sharding.shards if sharding is not None and sharding.kind == ZERO1 else 1


def falls_back(record: Record, device_bytes: int, usable_bytes: int) -> tuple[str, ...]:
    """What is said where the rest would fit without the states: those are allocated last, and may be on the host.

    Source: llmc/cuda_utils.cuh, cudaMallocConditionallyManaged.
    """
    states = sum(one.at(1) for one in record.states if one.category in ("master", "optimizer"))
    if device_bytes - states > usable_bytes:
        return ()
    return (
        "llm.c would start all the same: states for which there is no room go to managed memory on the host, and each "
        "step waits for them",
    )


def basis_of_llmc(record: Record, job: ResolvedJob) -> dict[str, str]:
    """What each component is, in words."""
    count, width = f"{record.parameters:,}", 4 if job.precision == "fp32" else 2
    shared = ""
    if job.sharding is not None and job.sharding.kind == ZERO1:
        shared = f", / {job.sharding.shards} devices"
    return {
        "weights": f"{count} x {width} B, the vocabulary padded",
        "master": f"fp32 copy of the weights{shared}",
        "optimizer": f"m and v in fp32{shared}",
        "gradients": f"{count} x {width} B, buffers that stay",
        "temporaries": "logits and scratch of the arena",
        "workspace": "of cuBLASLt",
        "buffers": "the loss",
        "inputs": "token ids and targets, 4 B each",
    }
