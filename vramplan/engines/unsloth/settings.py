"""The settings of Unsloth."""

from __future__ import annotations

from vramplan.answers.settings import SettingsPlan
from vramplan.engines.transformers.settings import TrainerSettings
from vramplan.results import Setting

SOURCE = "https://github.com/unslothai/unsloth/blob/main/unsloth/models/llama.py"


class UnslothSettings(TrainerSettings):
    """The batch is the Trainer's; checkpoints are an argument of `FastLanguageModel.get_peft_model`."""

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """On or off, for each block; "unsloth" keeps what the checkpoints hold on the host."""
        if not (plan.stores_all or plan.of_each_block):
            return None
        on = '"unsloth"' if plan.job.offload_activations else "True"
        return (Setting("use_gradient_checkpointing", "False" if plan.stores_all else on, SOURCE),)


BEHAVIOUR = UnslothSettings()
