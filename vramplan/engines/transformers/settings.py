"""The settings of the Trainer."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py"


class TrainerSettings(SettingsBehaviour):
    """Fields of `TrainingArguments`. Its switch makes a checkpoint of each block, and there is no other."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per device, and accumulation."""
        return (
            Setting("per_device_train_batch_size", str(plan.micro_batch_size), SOURCE),
            Setting("gradient_accumulation_steps", str(plan.gradient_accumulation_steps), SOURCE),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """On or off."""
        if not (plan.stores_all or plan.of_each_block):
            return None
        return (Setting("gradient_checkpointing", str(not plan.stores_all), SOURCE),)


BEHAVIOUR = TrainerSettings()
