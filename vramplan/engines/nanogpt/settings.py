"""The settings of nanoGPT."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = "https://github.com/karpathy/nanoGPT/blob/master/train.py"


class NanogptSettings(SettingsBehaviour):
    """Values above its configurator."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU. Its accumulation counts the micro-batches of all GPUs, and is divided among them."""
        steps = plan.gradient_accumulation_steps * plan.job.data_parallel_size
        return (
            Setting("batch_size", str(plan.micro_batch_size), SOURCE),
            Setting("gradient_accumulation_steps", str(steps), SOURCE),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """It has no switch."""
        return () if plan.stores_all else None


BEHAVIOUR = NanogptSettings()
