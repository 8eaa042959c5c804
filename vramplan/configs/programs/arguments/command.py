"""The command that starts TRL: `trl sft --config FILE --key value`.

Source: huggingface/trl 1.10.0.dev0, trl/cli/commands/training.py.
"""

from __future__ import annotations

from vramplan.configs.command import Words, arguments, named
from vramplan.configs.sheet import Launched
from vramplan.configs.shell import Script
from vramplan.configs.written import Written

TASKS = ("sft", "dpo", "grpo", "kto", "reward", "rloo")


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    at = next((i for i, word in enumerate(words[:-1]) if named(word) == "trl" and words[i + 1].text in TASKS), None)
    if at is None:
        return None
    changes: dict[str, Written] = arguments(words[at + 2 :], file)
    config = changes.pop("config", None)
    changes["program"] = Written(words[at + 1].text, file, words[at + 1].line)
    started = {name: changes.pop(name) for name in ("num_processes", "num_machines") if name in changes}
    return Launched(config, changes, None, {f"launcher.{name}": item for name, item in started.items()})
