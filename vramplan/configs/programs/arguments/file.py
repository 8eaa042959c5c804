"""A file of TrainingArguments while it is read."""

from __future__ import annotations

from typing import Any

from vramplan.configs.sheet import BY_DEEPSPEED, Meaning, Sheet

OF_LORA_CONFIG = ("target_modules", "lora_rank", "r", "task_type", "init_lora_weights")
"""Words of PEFT's LoraConfig that TRL has other names for: a file that has them is of somebody's own script."""


class TrainingFile:
    """The settings, the job that they mean, and how the devices share the model so far, with the keys that say so."""

    def __init__(self, sheet: Sheet, meaning: Meaning, is_trl: bool) -> None:
        self.sheet, self.meaning, self.is_trl = sheet, meaning, is_trl
        self.sharding = str(sheet.beside.get("parallel.sharding") or "")
        self.sharding_of: tuple[str, ...] = ()
        self.by_deepspeed = BY_DEEPSPEED in sheet.beside
        self.half_of_zero: str | None = sheet.beside.get("zero_precision")
        self.is_of_peft = any(name in sheet.written for name in OF_LORA_CONFIG)

    def whole(self, key: str, value: Any, default: int) -> int:
        """A whole number of one or more inside a mapping; anything else is a problem of its key."""
        try:
            number = default if value is None else int(value)
        except (TypeError, ValueError, OverflowError):
            number = 0
        if number < 1:
            self.sheet.problem(key, f"{value!r} is not a whole number of 1 or more")
            return default
        return number
