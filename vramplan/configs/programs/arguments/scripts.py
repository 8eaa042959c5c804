"""Arguments and defaults that a script around the Trainer has of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vramplan.configs.programs import trainer
from vramplan.configs.programs.arguments.keys import OF_PEFT, TABLE
from vramplan.configs.programs.arguments.known_scripts import SCRIPTS, TrainerScript, default, load_in_bits, put
from vramplan.configs.sheet import Meaning, Sheet


def of(written: Mapping[str, Any], declared: Mapping[str, Any] = MappingProxyType({})) -> TrainerScript | None:
    """The script that a command starts with these arguments; None where it is none of these.

    `declared`: the arguments of the script where it is there, which may be another one of that name.
    """
    program = str(getattr(written.get("program"), "value", "") or "").replace("\\", "/")
    for script in SCRIPTS:
        named = any(program == name or program.endswith("/" + name) for name in script.programs)
        another = script.declares is not None and bool(declared) and script.declares not in declared
        if named and all(key in written for key in script.keys) and not another:
            return script
    return None


def settled(sheet: Sheet, meaning: Meaning) -> TrainerScript | None:
    """Give the arguments of a script the names and the defaults that they have in TRL's terms."""
    script = of(sheet.written, sheet.declared)
    if script is None:
        declared_defaults(sheet, meaning)
        if sheet.given("bits"):  # of scripts made from qlora.py
            load_in_bits(sheet, "bits", 16)
        _own_quantization(sheet, meaning)
        if sheet.flag("use_qlora"):
            sheet.taken.add("use_qlora")
            put(sheet, "use_peft", True, "use_qlora")
            put(sheet, "load_in_4bit", True, "use_qlora")
        return None
    trainer.renamed(sheet, script.renamed)
    sheet.release = sheet.release._replace(defaults={**sheet.release.defaults, **script.defaults})
    script.settle(sheet, meaning)
    meaning.note(f"the arguments and defaults of {script.name} hold")
    return script


HALVES = ("bf16", "fp16")
"""Of which a command turns on one, whatever a script has by default for the other."""


def declared_defaults(sheet: Sheet, meaning: Meaning) -> None:
    """Take the defaults of a script that is there for arguments that have a meaning here, by whatever name."""
    found = {}
    for key, value in sheet.declared.items():
        name = OF_PEFT.get(key, key)
        if (key in HALVES and any(sheet.given(half) for half in HALVES)) or key == "loss_type":  # of another loss
            continue
        is_plain = isinstance(value, str | bool | int | float) or _are_names(value)
        if is_plain and TABLE.class_of(name) == "understood":
            found[name] = value
    if found:
        program = str(sheet.get("program")).replace("\\", "/").rsplit("/", 1)[-1]
        meaning.note(f"{program} is beside the command, and the defaults of its arguments hold")
        default(sheet, **found)


def _are_names(value: Any) -> bool:
    """Whether a default is a list of names, as targets of adapters are."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


OF_BITS = re.compile(r"(?:int|nf|bnb[-_]?)?([48])(?:[-_]?bits?)?")


def _own_quantization(sheet: Sheet, meaning: Meaning) -> None:
    """`--quantization 4bit` of a script of somebody's own, which says the bits and not always the type."""
    word = sheet.text("quantization") or ""
    if word.lower() in ("", "none", "no", "false"):
        return
    found = OF_BITS.fullmatch(word.lower())
    if found:
        put(sheet, f"load_in_{found[1]}bit", True, "quantization")
    else:
        meaning.ask("quantization", f"{word} is a word of the script's own (quantization)")
