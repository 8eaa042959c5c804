"""The training programs whose files are written, by name; each is imported when its file is asked for.

A writer takes its words from the tables of its reader in `configs/programs`, turned round.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from vramplan.configs.asked import Writer
from vramplan.configs.registry import OTHER_NAMES
from vramplan.errors import UsageError, near_matches

MODULES = {
    "trl": "arguments:TRL",
    "training-arguments": "arguments:ARGUMENTS",
    "accelerate": "accelerate:WRITER",
    "deepspeed": "deepspeed:WRITER",
    "axolotl": "axolotl:WRITER",
    "llama-factory": "llama_factory:WRITER",
    "torchtune": "torchtune:WRITER",
    "torchtitan": "torchtitan:WRITER",
    "litgpt": "litgpt:WRITER",
    "megatron-lm": "megatron:WRITER",
}
"""Names of `--emit` and `--to`, and the files of this folder."""


@cache
def writer_of(name: str, option: str = "--emit") -> Writer:
    """The writer of a name. Raises UsageError, with near matches."""
    plain = name.lower().replace("_", "-")
    known = OTHER_NAMES.get(name.lower(), OTHER_NAMES.get(plain, plain))
    if known not in MODULES:
        hint = near_matches(known, [*MODULES, *OTHER_NAMES]) or ", ".join(MODULES)
        raise UsageError(f"{name!r} is no program whose files are written", key=option, hint=hint)
    module, _, attribute = MODULES[known].partition(":")
    found: Writer = getattr(import_module(f"vramplan.configs.writers.{module}"), attribute)
    return found
