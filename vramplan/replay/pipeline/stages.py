"""The stages of a pipeline: which blocks each has, and how many micro-batches are in flight on it.

Source: megatron-core 0.16, core/pipeline_parallel/schedules.py; arXiv:1811.06965 (GPipe), arXiv:2104.04473 (1F1B and
its interleaved form).
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.tuples import NamedTuple
from vramplan.values.parallel import ENDS_AS_BLOCKS, Split

UNBOUNDED = 2**40  # stands for as many micro-batches as fill the pipeline


class StagePass(NamedTuple):
    """A forward or backward pass of one part, and how many micro-batches of each part wait beside it."""

    part: int
    waiting: tuple[int, ...]


class Stage(NamedTuple):
    """What one device of a pipeline does."""

    number: int  # from 0
    parts: tuple[int, ...]  # blocks of each part of the model that it has; one part but for an interleaved schedule
    first: bool  # it has the embeddings
    last: bool  # and the head
    in_flight: int  # micro-batches, each of one part, whose backward pass has yet to come while the newest one runs
    moments: tuple[StagePass, ...] = ()  # of an interleaved schedule
    whole: tuple[int, ...] = ()  # of one part of a device that has several: all of them
    steady: bool = False  # variables of the schedule still hold what the micro-batch before has exchanged
    micro_batches: int | None = None  # of a step; None: nobody has said how many
    starts: tuple[int, ...] = ()  # the number of the first block of each part, among all of the model

    @property
    def device_parts(self) -> tuple[int, ...]:
        """The parts of the whole device, where this is one of them."""
        return self.whole or self.parts

    @property
    def blocks(self) -> int:
        """All blocks of the device."""
        return sum(self.parts)


def contenders(stages: tuple[Stage, ...], make_up: Callable[[int], object] = lambda number: None) -> list[int]:
    """The numbers of the stages that may hold most: of those with equal parts the first, which has most in flight.

    `make_up`: what a block of the model is made of, by its number.
    """
    seen: dict[object, int] = {}
    for stage in stages:
        seen.setdefault(make_up_of(stage, make_up), stage.number)
    return list(seen.values())


def make_up_of(stage: Stage, make_up: Callable[[int], object]) -> object:
    """What a stage is made of: stages that are alike have the same of it."""
    parts = zip(stage.starts, stage.parts, strict=True)
    made = tuple(make_up(number) for start, blocks in parts for number in range(start, start + blocks))
    return (stage.parts, stage.first, stage.last, made)


def stages_of(split: Split, blocks: int, micro_batches: int | None) -> tuple[Stage, ...]:
    """All stages of a pipeline; `micro_batches` are those of one step, None: as many as fill it."""
    count, virtual = split.pipeline, split.virtual
    sizes = blocks_of_parts(blocks, count * virtual, counts_ends=split.pipeline_split == ENDS_AS_BLOCKS)
    found = []
    for number in range(count):
        parts = tuple(sizes[number::count])
        starts = tuple(sum(sizes[:part]) for part in range(number, count * virtual, count))
        found.append(
            Stage(
                number,
                parts,
                first=number == 0,
                last=number == count - 1,
                in_flight=in_flight(split, number, micro_batches or UNBOUNDED),
                steady=split.schedule != "gpipe",
                moments=tuple(moments_of(split, number, micro_batches)) if virtual > 1 else (),
                micro_batches=micro_batches,
                starts=starts,
            )
        )
    return tuple(found)


def blocks_of_parts(blocks: int, parts: int, *, counts_ends: bool) -> list[int]:
    """Blocks of each part of a model, as equal as can be; the first parts have the ones that are left over.

    With `counts_ends` the embeddings and the head count as a block each, so the first and the last part have one less.
    Source: deepspeed/runtime/utils.py, partition_balanced; megatron-core, account_for_embedding_in_pipeline_split.
    """
    if parts == 1:
        return [blocks]
    total = blocks + (2 if counts_ends else 0)
    each, over = divmod(total, parts)
    sizes = [each + (i < over) for i in range(parts)]
    if counts_ends:
        sizes[0] -= 1
        sizes[-1] -= 1
    return sizes


def moments_of(split: Split, number: int, micro_batches: int | None) -> list[StagePass]:
    """The moments of an interleaved schedule on one device, each that differs once.

    Micro-batches go through a part in groups, by themselves of as many as there are stages; backward takes the parts in
    reverse.
    Source: megatron-core 0.16, core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving and
    get_schedule_table.
    """
    virtual, group = split.virtual, group_of(split)
    most = 4 * group + (micro_batches or 0) % group  # from then on groups repeat
    table = _parts_in_turn(min(micro_batches or UNBOUNDED, most), virtual, group)
    warm_up = in_flight(split, number, micro_batches or UNBOUNDED) - 1
    waiting = [0] * virtual
    found: dict[StagePass, None] = {}

    backward = 0
    for forward, part in enumerate(table):
        found[StagePass(part, tuple(waiting))] = None
        waiting[part] += 1
        if forward >= warm_up:
            part = virtual - 1 - table[backward]
            waiting[part] -= 1
            found[StagePass(part, tuple(waiting))] = None
            backward += 1
    return list(found)


def group_of(split: Split) -> int:
    """Micro-batches that go through a part of an interleaved schedule one after another."""
    return split.group or split.pipeline


def _parts_in_turn(micro_batches: int, virtual: int, group: int) -> list[int]:
    """The part of each pass: each group goes through all parts, and the last one has what is left."""
    groups = [min(group, micro_batches - first) for first in range(0, micro_batches, group)]
    return [part for size in groups for part in range(virtual) for _ in range(size)]


def in_flight(split: Split, number: int, micro_batches: int) -> int:
    """Forward passes of one part that wait for their backward pass while the newest one runs, itself among them.

    1F1B: as many as there are stages from this one on. Interleaved: the warm-up of
    get_pp_rank_microbatches and the one that runs. GPipe: all.
    """
    count, virtual = split.pipeline, split.virtual
    if count == 1:
        return 1
    if split.schedule == "gpipe":
        return micro_batches
    if virtual > 1:
        warm_up = (count - number - 1) * 2 + (virtual - 1) * group_of(split)
        return min(warm_up + 1, micro_batches * virtual)
    return min(count - number, micro_batches)
