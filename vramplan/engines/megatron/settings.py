"""The settings of Megatron-LM."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.16.1/megatron/training/arguments.py"


class MegatronSettings(SettingsBehaviour):
    """Its arguments."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU, and that of a step, from which accumulation follows."""
        return (
            Setting("--micro-batch-size", str(plan.micro_batch_size), SOURCE),
            Setting("--global-batch-size", str(plan.global_batch_size), SOURCE),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """The core of attention, or whole layers in equal parts."""
        if plan.stores_all:
            return ()  # the default of the argument
        granularity = "--recompute-granularity"
        if plan.activation_checkpointing == "selective":
            return (Setting(granularity, "selective", SOURCE),)
        at_once = plan.blocks_at_once
        if at_once is None:
            return None
        return (
            Setting(granularity, "full", SOURCE),
            Setting("--recompute-method", "uniform", SOURCE),
            Setting("--recompute-num-layers", str(at_once), SOURCE),
        )


BEHAVIOUR = MegatronSettings()
