"""The settings of DeepSpeed's engine."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

CONFIG = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/constants.py"
MODEL = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_utils.py"


class DeepspeedSettings(SettingsBehaviour):
    """Keys of its JSON configuration; the model of Transformers has the switch for checkpoints."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU, and accumulation."""
        return (
            Setting("train_micro_batch_size_per_gpu", str(plan.micro_batch_size), CONFIG),
            Setting("gradient_accumulation_steps", str(plan.gradient_accumulation_steps), CONFIG),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """The method of the model, which makes a checkpoint of each block."""
        if plan.stores_all:
            return (Setting("model.gradient_checkpointing_disable()", "", MODEL),)
        return (Setting("model.gradient_checkpointing_enable()", "", MODEL),) if plan.of_each_block else None


BEHAVIOUR = DeepspeedSettings()
