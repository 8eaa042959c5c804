"""The settings of torchtune's recipes."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = "https://github.com/pytorch/torchtune/blob/v0.6.1/recipes/configs/llama3_1/8B_full.yaml"


class TorchtuneSettings(SettingsBehaviour):
    """Keys of a recipe's configuration."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU, and accumulation."""
        return (
            Setting("batch_size", str(plan.micro_batch_size), SOURCE),
            Setting("gradient_accumulation_steps", str(plan.gradient_accumulation_steps), SOURCE),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """On or off, for each layer."""
        if not (plan.stores_all or plan.of_each_block):
            return None
        return (Setting("enable_activation_checkpointing", str(not plan.stores_all), SOURCE),)


BEHAVIOUR = TorchtuneSettings()
