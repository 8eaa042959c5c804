"""The settings of a loop in plain PyTorch."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

LOADER = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/data/dataloader.py"
MODEL = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_utils.py"


class PytorchSettings(SettingsBehaviour):
    """What a loop around a model of Transformers calls."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """The batch of the loader; the loop itself accumulates."""
        return (
            Setting("DataLoader batch_size", str(plan.micro_batch_size), LOADER),
            Setting("backward() calls per optimizer.step()", str(plan.gradient_accumulation_steps)),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """The method of the model, which makes a checkpoint of each block."""
        if plan.stores_all:
            return (Setting("model.gradient_checkpointing_disable()", "", MODEL),)
        return (Setting("model.gradient_checkpointing_enable()", "", MODEL),) if plan.of_each_block else None


BEHAVIOUR = PytorchSettings()
