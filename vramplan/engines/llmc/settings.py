"""The settings of llm.c."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = "https://github.com/karpathy/llm.c/blob/f1e2ace651495b74ae22d45d1723443fd00ecd3a/train_gpt2.cu"
RECOMPUTED = {"none": "0", "gelu": "1", "gelu-norms": "2"}


class LlmcSettings(SettingsBehaviour):
    """Flags of `train_gpt2cu`, as its `error_usage` prints them."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU, its length, and the tokens of a step, from which accumulation follows."""
        length = plan.job.sequence_length
        return (
            Setting("-b", str(plan.micro_batch_size), SOURCE),
            Setting("-t", str(length), SOURCE),
            Setting("-d", str(plan.global_batch_size * length), SOURCE),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """What each block computes again."""
        level = RECOMPUTED.get(plan.activation_checkpointing)
        return None if level is None else (Setting("-r", level, SOURCE),)


BEHAVIOUR = LlmcSettings()
