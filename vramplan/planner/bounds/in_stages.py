"""What the stages of a pipeline compute at least, from one replay of the whole model that its other devices split.

A device of tensor, context or expert parallelism runs smaller products, and point-wise kernels on what they leave
whole; so one that has every block bounds every pipeline, and every way to share states, beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.planner.bounds.least import Work, filled
from vramplan.planner.bounds.plain import Plain, plain_setup, simpler
from vramplan.planner.checkpoints import SELECTIVE, SELECTIVE_OP
from vramplan.planner.time.kernels import Micro
from vramplan.replay.kernels import PRODUCT, Kernel, together
from vramplan.replay.models.parts import block_kinds, make_ups
from vramplan.replay.pipeline.stages import blocks_of_parts
from vramplan.replay.setup import Setup
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import ENDS_AS_BLOCKS, Split

PER_BLOCK = (None, "none", "full", SELECTIVE, SELECTIVE_OP)
"""Checkpoints that compute the same in each block, however many a stage has."""


def stage_setup(job: ResolvedJob) -> Setup | None:
    """The iteration of a device that has all blocks of its part of a model; None where it bounds nothing.

    That is where no device splits a replica by its program's own code, and where checkpoints reach over several blocks:
    in a stage they begin anew. Those of each block compute no more, unless what they compute is compiled.
    """
    split = job.split
    if split is None or split.devices == 1 or job.planned is not None:
        return None
    simple = job if job.compile or split.pipeline == 1 else simpler(job)
    if split.pipeline > 1 and simple.activation_checkpointing not in PER_BLOCK:
        return None
    whole = split._replace(pipeline=1, virtual=1, schedule=Split().schedule, pipeline_split=None)
    return plain_setup(simple, whole=True)._replace(split=whole)


class KernelsOfStage(NamedTuple):
    """What a stage runs of a micro-batch at least."""

    blocks: int
    kernels: tuple[Kernel, ...]
    others: tuple[Kernel, ...] | None  # what each of the others runs at least on average; None: as much
    micros: dict[tuple[object, ...], Micro]  # of the kernels, priced before

    def beside(self, work: Work) -> Work:
        """Some work with these kernels in place of its own; its states and weights stay."""
        return work._replace(kernels=self.kernels, micros=self.micros)


def kernels_of_stages(job: ResolvedJob, plain: Plain, *, is_filled: bool = False) -> list[KernelsOfStage]:
    """The stages that may take longest, from the record of `stage_setup`; `is_filled` is that of `work_of`.

    That is the last one, which has the head, and the one with most blocks; where blocks differ it is the mean of all.
    """
    split = job.split or Split()
    blocks, stages = job.model.blocks, split.pipeline
    own = tuple(filled(one) if is_filled and one.kind == PRODUCT else one for one in plain.kernel_classes)
    inside = together(_anywhere(one, 1) for one in own if one.unit)
    if stages == 1 or not _are_alike(job):
        outside = together(_anywhere(one, 0) for one in own if not one.unit)
        return [KernelsOfStage(blocks // stages, _times((*inside, *outside), 1, stages), None, {})]
    sizes = blocks_of_parts(blocks, stages * split.virtual, counts_ends=split.pipeline_split == ENDS_AS_BLOCKS)
    each = [sum(sizes[number::stages]) for number in range(stages)]
    no_head: tuple[Kernel, ...] = ()
    head = together(_anywhere(one, 0) for one in _behind_blocks(own))
    found = []
    for number, outside in ((each.index(max(each)), no_head), (stages - 1, head)):
        kernels = (*_times(inside, each[number], blocks), *outside)
        others = _times(inside, blocks - each[number], blocks * (stages - 1))
        found.append(KernelsOfStage(each[number], kernels, others, {}))
    return found


def _are_alike(job: ResolvedJob) -> bool:
    """Whether all blocks of a model compute the same."""
    shape = job.model
    made = make_ups(shape)
    kinds = set(zip(block_kinds(shape), map(made, range(shape.layers)), strict=True))
    return len(kinds) == 1 and len(shape.stacks) == 1


def _anywhere(kernel: Kernel, unit: int) -> Kernel:
    """A kernel without where it runs and on which shapes, but whether that is in a block."""
    return kernel._replace(unit=unit, shapes=())


def _behind_blocks(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Those that run first between the blocks' forward and backward: of the last norm, the head and the loss."""
    inside = [number for number, one in enumerate(kernels) if one.unit]
    if not inside:
        return ()
    return tuple(one for one in kernels[inside[0] : inside[-1]] if not one.unit)


def _times(kernels: Iterable[Kernel], part: int, whole: int) -> tuple[Kernel, ...]:
    """Of the runs of each kernel so many as a part of the blocks has, or fewer: whole ones."""
    return tuple(one._replace(times=one.times * part // whole) for one in kernels if one.times * part >= whole)
