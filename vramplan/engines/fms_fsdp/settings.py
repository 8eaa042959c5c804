"""The settings of fms-fsdp."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = "https://github.com/foundation-model-stack/fms-fsdp/blob/main/fms_fsdp/config/training.py"


class FmsSettings(SettingsBehaviour):
    """Fields of `train_config`. It has none for accumulation."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU."""
        settings = (Setting("batch_size", str(plan.micro_batch_size), SOURCE),)
        steps = plan.gradient_accumulation_steps
        return settings if steps == 1 else (*settings, Setting("gradient accumulation in the loop", str(steps)))

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """On or off, for each block."""
        if not (plan.stores_all or plan.of_each_block):
            return None
        return (Setting("fsdp_activation_checkpointing", str(not plan.stores_all), SOURCE),)


BEHAVIOUR = FmsSettings()
