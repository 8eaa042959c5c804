"""The settings of torchtitan."""

from __future__ import annotations

from vramplan.answers.settings import SettingsBehaviour, SettingsPlan
from vramplan.results import Setting

SOURCE = "https://github.com/pytorch/torchtitan/blob/v0.2.0/torchtitan/config/job_config.py"
BATCH, MODE = "[training] local_batch_size", "[activation_checkpoint] mode"
SELECTIVE = "[activation_checkpoint] selective_ac_option"


class TitanSettings(SettingsBehaviour):
    """Keys of its TOML file, each with its section."""

    def batch(self, plan: SettingsPlan) -> tuple[Setting, ...]:
        """A batch per GPU. Accumulation follows from the global batch; a pipeline cuts the batch of a GPU instead."""
        split, micro = plan.job.split, plan.micro_batch_size
        if split is not None and split.pipeline > 1:
            return (
                Setting(BATCH, str(micro * plan.gradient_accumulation_steps), SOURCE),
                Setting("[parallelism] pipeline_parallel_microbatch_size", str(micro), SOURCE),
            )
        return (
            Setting(BATCH, str(micro), SOURCE),
            Setting("[training] global_batch_size", str(plan.global_batch_size), SOURCE),
        )

    def checkpointing(self, plan: SettingsPlan) -> tuple[Setting, ...] | None:
        """`none`, `full`, or `selective` by operators or by blocks."""
        name, _, every = plan.activation_checkpointing.partition(":")
        if name in ("selective-op", "selective-layer"):
            return (Setting(MODE, '"selective"', SOURCE), Setting(SELECTIVE, f'"{every or "op"}"', SOURCE))
        if plan.stores_all or plan.of_each_block:
            return (Setting(MODE, '"none"' if plan.stores_all else '"full"', SOURCE),)
        return None


BEHAVIOUR = TitanSettings()
