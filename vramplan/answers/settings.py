"""A plan in the words of the training program: the settings that a person types into their own script or file."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.engines import behaviour_of
from vramplan.replay.models.capable import has_switch
from vramplan.results import Setting
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob

ROOM = "settings"


class SettingsPlan(NamedTuple):
    """What is to be set: a batch, and the checkpoints of the blocks."""

    job: ResolvedJob
    micro_batch_size: int
    gradient_accumulation_steps: int
    activation_checkpointing: str
    checkpoints: tuple[tuple[int, int], ...]  # first and last block of each, numbered through all stacks
    stacks: tuple[int, ...]  # blocks of each stack of the model, or of each part of a pipeline

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step over all GPUs."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.job.data_parallel_size

    @property
    def stores_all(self) -> bool:
        """Whether nothing is computed again."""
        return self.activation_checkpointing == "none"

    @property
    def of_each_block(self) -> bool:
        """Whether each block is one checkpoint, whatever the strategy is called."""
        return self.blocks_at_once == 1

    @property
    def blocks_at_once(self) -> int | None:
        """How many blocks each checkpoint has, where they cover all blocks in equal parts but for the last."""
        if self.activation_checkpointing.startswith("selective") or not self.checkpoints:
            return None
        size = max(last - first + 1 for first, last in self.checkpoints)
        equal, at = [], 0
        for blocks in self.stacks:
            equal += [(at + first, at + min(first + size, blocks) - 1) for first in range(0, blocks, size)]
            at += blocks
        return size if list(self.checkpoints) == equal else None


class SettingsBehaviour:
    """The words of no program in particular; the folder of a program has its own."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """The batch on each GPU, and how often it is accumulated."""
        return (
            Setting("batch size per GPU", str(plan.micro_batch_size)),
            Setting("gradient accumulation", str(plan.gradient_accumulation_steps)),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """The switches for the checkpoints; None where the program has none for these, and code has to place them."""
        return (Setting("activation checkpointing", plan.activation_checkpointing),)


DEFAULT = SettingsBehaviour()


def settings_of(
    job: ResolvedJob,
    micro: int,
    steps: int,
    strategy: str,
    checkpoints: Sequence[tuple[int, int]],
    stacks: Sequence[int],
) -> tuple[Setting, ...]:
    """The settings of a plan in the words of the job's program; none for checkpoints that it has no switch for.

    `checkpoints` are the first and the last block of each, numbered through the `stacks` of so many blocks each.
    """
    words: SettingsBehaviour = behaviour_of(job.runtime.engine, ROOM, DEFAULT)
    plan = SettingsPlan(job, micro, steps, strategy, tuple(checkpoints), tuple(stacks))
    switches = words.checkpointing(plan) if has_switch(job.model.family) else None
    return (*words.batch(plan), *(switches or ()))
