"""A stage of torch.distributed.pipelining over FSDP2, as torchtitan runs it.

Parameters stay whole from the first micro-batch to the last, and gradients whole and in the type of the reduction until
the last one, whose backward reduces them. A stage keeps of each micro-batch in flight what its forward has saved, its
input and its output; what it receives, it receives into buffers of its own for every micro-batch of the step, and the
last stage keeps the logits of all of them, which it concatenates at the end. Every stage has the tokens and the labels
of all micro-batches. Variables of the schedule hold the hidden states that it has given last, and the gradient that it
has sent last: until the next one, and while gradients are reduced.
Source: torch/distributed/pipelining/stage.py, _PipelineStageBase (fwd_cache, args_recv_info, grad_recv_info,
output_chunks) and backward_maybe_with_nosync; schedules.py, Schedule1F1B and ScheduleGPipe (output, bwd_sends, ops) and
PipelineScheduleSingle.step (return_outputs); torchtitan/parallelisms/parallelize_llama.py, apply_fsdp with pp_enabled;
torchtitan 0.1.0, train.py, forward_backward_step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.replay.pipeline.parts import part_of
from vramplan.replay.pipeline.stages import Stage, StagePass
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.sharding.units import COMMUNICATION, GATHERED
from vramplan.replay.standing import StandingState
from vramplan.replay.step import Iteration
from vramplan.replay.tensors import BF16, BYTE, FP32, INT64

if TYPE_CHECKING:
    from vramplan.replay.setup import Setup

IN_FLIGHT = "in_flight"  # component of the answer
STAYING = (GATHERED, COMMUNICATION, "gradients")  # components that belong to no micro-batch


def replay_pipelined(setup: Setup, tape: Tape) -> Record:
    """The moment of a step at which a stage holds most, beside all that is in flight then."""
    stage = setup.stage
    assert stage is not None
    parts = [part_of(setup, i)._replace(hold_outputs=True) for i in range(len(stage.parts))]
    within = [_replayed(part, tape, reduces=False) for part in parts]
    states = [[*_own(record), *_received(part, tape)] for record, part in zip(within, parts, strict=True)]
    states.append(_tokens(setup, tape))
    whole = [_whole(setup, record) for record in within]
    moments = stage.moments or (StagePass(0, (stage.in_flight - 1,)),)
    candidates: list[tuple[Record, StagePass, list[StandingState]]] = []
    sent = _each(tape, COMMUNICATION, _hidden(setup), 1) if stage.steady and _sends_back(stage) else []
    if not stage.moments and stage.in_flight == stage.micro_batches:
        # all wait for the first one's backward, which alone finds no gradients
        moments = (StagePass(0, (max(stage.in_flight - 2, 0),)),)
        first = _replayed(parts[0], tape, reduces=False, accumulating=False)
        candidates.append((first, StagePass(0, (stage.in_flight - 1,)), []))

    def beside(record: Record, own: int, waiting: tuple[int, ...], held: list[StandingState]) -> Record:
        found = [*held, *(state for one in states for state in one)]
        found += [state for i, one in enumerate(whole) if i != own for state in one]
        for other, count in zip(within, waiting, strict=True):
            found += _in_flight(other, count)
        found += _given(parts[-1], tape, waiting[-1])
        return record.with_states(found)

    idle = (0,) * len(parts)
    candidates += [(within[moment.part], moment, sent) for moment in moments]
    candidates += [(_replayed(part, tape, reduces=True), StagePass(i, idle), []) for i, part in enumerate(parts)]
    records = [beside(record, moment.part, moment.waiting, held) for record, moment, held in candidates]
    number = max(range(len(records)), key=lambda number: records[number].peak_bytes(tape.batch))
    worst, own = records[number], candidates[number][1].part
    worst.beside = tuple(record for part, record in enumerate(within) if part != own)
    worst.weight_bytes = tuple(size for record in within for size in record.weight_bytes)
    worst.state_bytes = tuple(sizes for record in within for sizes in record.state_bytes)
    for name in ("parameters", "trainable_parameters", "reached_parameters"):
        setattr(worst, name, sum(getattr(record, name) for record in within))
    return worst


def _replayed(setup: Setup, tape: Tape, *, reduces: bool, accumulating: bool = True) -> Record:
    """One micro-batch; with `reduces` the last one, after whose backward all logits are concatenated for nobody.

    Until then the gradient that was sent last is there.
    """
    of_one, own = setup._replace(reduces=reduces, accumulating=accumulating), Tape(tape.batch, direct=tape.direct)
    iteration = Iteration(of_one, own)
    loss = [iteration.forward()]
    saved_at = len(own.events)
    stage = setup.stage
    assert stage is not None
    sends = reduces and _sends_back(stage)
    sent = own.new("isend", (own.batch, _hidden(setup)), BYTE, True, category=COMMUNICATION) if sends else None
    iteration.backward(loss)
    del sent
    if reduces and stage.last:
        _merged = own.new("cat", (own.batch, _steps(stage) * _logits(setup)), BF16, True)
        del _merged
    iteration.step()
    return iteration.record(saved_at)


def _own(record: Record) -> list[StandingState]:
    """The states of a part, but for its tokens, which the stage has whole."""
    return [state for state in record.states if state.category != "inputs"]


def _tokens(setup: Setup, tape: Tape) -> list[StandingState]:
    """The tokens and the labels of all micro-batches; with what a device has of them, where devices share sequences."""
    stage, split = setup.stage, setup.split
    assert stage is not None
    assert split is not None
    part = _steps(stage) * (setup.sequence_length // split.context) * INT64.itemsize
    cut = _each(tape, "inputs", part, 2) if split.context > 1 else []
    return [*_each(tape, "inputs", part * split.context, 2), *cut]


def _sends_back(stage: Stage) -> bool:
    """Whether a variable of the schedule holds a gradient that was sent; those of interleaved ones are others."""
    return not stage.first and len(stage.device_parts) == 1


def _hidden(setup: Setup) -> int:
    """Bytes of the hidden states of a sequence between two stages."""
    split = setup.split
    assert split is not None
    length = setup.sequence_length // split.context
    return length // split.tensor * setup.model.hidden_size * BF16.itemsize


def _logits(setup: Setup) -> int:
    """Logits of a sequence that a device has."""
    split = setup.split
    assert split is not None
    return setup.sequence_length // split.context * (setup.model.vocabulary_size // split.tensor)


def _in_flight(record: Record, others: int) -> list[StandingState]:
    """What forward has kept, once for each other micro-batch in flight."""
    return [
        StandingState(IN_FLIGHT, record.fixed[storage], record.per_sample[storage], copies * others)
        for storage, copies in record.kept().items()
        if others and record.categories[storage] not in STAYING
    ]


def _received(setup: Setup, tape: Tape) -> list[StandingState]:
    """The buffers for what is received, each for one micro-batch."""
    stage = setup.stage
    assert stage is not None
    return _each(tape, COMMUNICATION, _hidden(setup), _steps(stage) * (2 - stage.first - stage.last))


def _given(setup: Setup, tape: Tape, waiting: int) -> list[StandingState]:
    """The logits and losses that the last stage keeps, but those of micro-batches that are counted with what waits."""
    stage = setup.stage
    assert stage is not None
    others = _steps(stage) - 1 - waiting
    if not stage.last or others < 1:
        return []
    return [
        *_each(tape, IN_FLIGHT, _logits(setup) * BF16.itemsize, others),
        StandingState(IN_FLIGHT, rounded(FP32.itemsize), 0, others),
    ]


def _steps(stage: Stage) -> int:
    return stage.micro_batches or stage.in_flight


def _each(tape: Tape, category: str, size: int, copies: int) -> list[StandingState]:
    fixed = tape.batch if tape.direct else 0
    return [StandingState(category, size * fixed, 0 if fixed else size, copies)] if copies else []


def _whole(setup: Setup, record: Record) -> list[StandingState]:
    """The whole parameters and gradients of a part, while another one works."""
    assert setup.sharding is not None
    shards = sum(state.at(0) for state in record.states if state.category == "weights")
    elements = shards // FP32.itemsize * setup.sharding.shards
    return [
        StandingState(GATHERED, elements * BF16.itemsize, 0),
        StandingState("gradients", elements * FP32.itemsize, 0),
    ]
