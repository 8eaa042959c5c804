"""The command that starts ms-swift: `swift sft --model NAME --key value`, also with a file of them.

Source: modelscope/ms-swift 4.6.0.dev0 (3602360a), swift/cli/main.py: a file comes first and is replaced by its
settings, and torchrun starts it where NPROC_PER_NODE or NNODES are set; without them it is one process.
"""

from __future__ import annotations

from vramplan.configs.command import Words, arguments, launcher_of, named, names_file
from vramplan.configs.sheet import Launched
from vramplan.configs.shell import Script
from vramplan.configs.written import Written

VERBS = ("sft", "pt", "rlhf")
COUNTS = {"NPROC_PER_NODE": "launcher.nproc_per_node", "NNODES": "launcher.nnodes"}


def _verb_at(words: Words) -> int | None:
    """The place of the word that says what is trained, `sft` of `swift sft` or a module of the same name."""
    for place, word in enumerate(words):
        text = word.text.removesuffix(".py").replace("/", ".")
        if text.endswith(tuple(f"swift.cli.{verb}" for verb in VERBS)):
            return place
        if place and named(words[place - 1]) == "swift" and text in VERBS:
            return place
    return None


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    at = _verb_at(words)
    if at is None:
        return None
    rest = words[at + 1 :]
    config = None
    if rest and names_file(rest[0].text) and not rest[0].text.startswith("--"):
        config, rest = Written(rest[0].text, file, rest[0].line), rest[1:]
    changes = arguments(rest, file)
    verb = words[at].text.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    changes["program"] = Written(verb, file, words[at].line)
    launcher = launcher_of(words[:at], file)
    if not launcher:
        held = {name: script.values[name][0] for name in COUNTS if script.values.get(name)}
        launcher = {COUNTS[name]: Written(item.text, file, item.line) for name, item in held.items()}
        seen = script.values.get("CUDA_VISIBLE_DEVICES")
        if not launcher and seen and "," in seen[0].text:  # which one process spreads its layers over
            changes.setdefault("device_map", Written("auto", file, seen[0].line))
        launcher = launcher or {COUNTS["NPROC_PER_NODE"]: Written(1, file, words[at].line)}
    return Launched(config, dict(changes), None, launcher)
