"""The settings of LitGPT."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

ARGUMENTS = "https://github.com/Lightning-AI/litgpt/blob/v0.5.13/litgpt/args.py"
STRATEGY = "https://github.com/Lightning-AI/litgpt/blob/v0.5.13/litgpt/finetune/lora.py"


class LitgptSettings(SettingsBehaviour):
    """Arguments of its commands. Checkpoints are an argument of the strategy that its scripts build."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU, and that of a step, from which accumulation follows."""
        return (
            Setting("train.micro_batch_size", str(plan.micro_batch_size), ARGUMENTS),
            Setting("train.global_batch_size", str(plan.global_batch_size), ARGUMENTS),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """A policy of `FSDPStrategy`, which the scripts build where there are several GPUs."""
        if not (plan.stores_all or plan.of_each_block):
            return None
        if plan.stores_all and plan.job.data_parallel_size == 1:
            return ()
        blocks = "None" if plan.stores_all else "{Block}"
        return (Setting("FSDPStrategy activation_checkpointing_policy", blocks, STRATEGY),)


BEHAVIOUR = LitgptSettings()
