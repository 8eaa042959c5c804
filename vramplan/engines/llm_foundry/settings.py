"""The settings of llm-foundry."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = "https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/yamls/pretrain/mpt-7b.yaml"


class FoundrySettings(SettingsBehaviour):
    """Keys of its YAML file."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU, and that of a step, from which accumulation follows."""
        return (
            Setting("device_train_microbatch_size", str(plan.micro_batch_size), SOURCE),
            Setting("global_train_batch_size", str(plan.global_batch_size), SOURCE),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """On or off, for each block."""
        if not (plan.stores_all or plan.of_each_block):
            return None
        return (Setting("fsdp_config.activation_checkpointing", str(not plan.stores_all).lower(), SOURCE),)


BEHAVIOUR = FoundrySettings()
