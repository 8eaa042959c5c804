"""What a Megatron command asks for, and what only its caller knows."""

from __future__ import annotations

from vramplan.configs import shell
from vramplan.configs.sheet import Meaning, Sheet


class Asked:
    """The settings of a command, and the job that they mean."""

    def __init__(self, sheet: Sheet, meaning: Meaning) -> None:
        self.sheet, self.meaning = sheet, meaning

    def count(self, key: str, asks: str | None = None) -> int | None:
        """A whole number; what only the caller knows is asked for under `asks`."""
        value = self.sheet.get(key)
        if isinstance(value, str) and shell.unknowns(value):
            name = shell.unknowns(value)[0]
            self.meaning.ask(asks or key, f"--{key.replace('_', '-')} is ${name}, which only the caller gives")
            return None
        return self.sheet.count(key)
