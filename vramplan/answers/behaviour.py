"""What is said of the runs of a training program: what most have in common, for those that differ to say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vramplan.engines import OWNERS, behaviour_of
from vramplan.replay.record import Record
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob

if TYPE_CHECKING:
    from vramplan.planner.decision import Decision
    from vramplan.replay.pipeline.stages import Stage

ROOM = "answers"


class WordedDevice(NamedTuple):
    """One device of a run, whose components are put into words."""

    record: Record
    job: ResolvedJob
    stage: Stage | None  # of a pipeline
    parameters: int  # of the whole model
    shared: Callable[[], dict[str, str]]  # what plain data-parallel devices have of each component, in words


class AnswersBehaviour:
    """What a program may say differently; a subclass in its folder does."""

    underived: tuple[str, str] | None = None  # why `explain` does not derive its step, and what to do instead
    allocated_by: str | None = None  # what prints the allocated bytes, where it is not PyTorch
    counts_a_part: bool = False  # whether a device's parameters are those of a part of the model

    def basis(self, device: WordedDevice) -> dict[str, str]:
        """What components of a device are, in words, where they differ from one device alone."""
        return device.shared()

    def basis_of_shards(self, record: Record, job: ResolvedJob, alone: dict[str, str]) -> dict[str, str]:
        """What each device has of states that it shares with others; `alone` is what one device would have, in words.

        Asked of the program that brings this way to share them.
        """
        raise NotImplementedError

    def remarks(self, decision: Decision) -> tuple[str, ...]:
        """What else to know of an answer."""
        return ()


DEFAULT = AnswersBehaviour()


def wording_of_sharding(kind: str) -> AnswersBehaviour | None:
    """What the program says that brings a way to share states; None of those that PyTorch has."""
    name = OWNERS.get(kind)
    return None if name is None else behaviour_of(name, ROOM, DEFAULT)


def wording_of(job: ResolvedJob) -> AnswersBehaviour:
    """What is said differently of the runs of the job's program."""
    return behaviour_of(job.runtime.engine, ROOM, DEFAULT)
