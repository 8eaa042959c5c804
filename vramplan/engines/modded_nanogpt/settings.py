"""The settings of modded-nanogpt."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = (
    "https://github.com/KellerJordan/modded-nanogpt/blob/55393e8511a1b244c6be497971256eb42f939dbc/records/"
    "121724_SparsifyEmbeds/165384d5-5a41-4fba-9b79-8ecc372616ea.txt"
)


class ModdedSettings(SettingsBehaviour):
    """Fields of its `Hyperparameters`. Each GPU takes one sequence at a time."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """The sequences of a step over all GPUs, and their length."""
        return (
            Setting("batch_size", str(plan.global_batch_size), SOURCE),
            Setting("sequence_length", str(plan.job.sequence_length), SOURCE),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """It has no switch."""
        return () if plan.stores_all else None


BEHAVIOUR = ModdedSettings()
