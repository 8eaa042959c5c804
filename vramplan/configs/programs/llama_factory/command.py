"""The command that starts LLaMA-Factory with a file: `llamafactory-cli train FILE key=value`.

Source: hiyouga/LLaMA-Factory 0.9.6.dev0, src/llamafactory/launcher.py and hparams/parser.py, read_args.
"""

from __future__ import annotations

import re

from vramplan.configs.command import Words, assigned, launcher_of, named, names_file, options
from vramplan.configs.sheet import Launched
from vramplan.configs.shell import Script
from vramplan.configs.written import Written

_SETS = re.compile(r"--|[\w.]+=")
"""How a word begins that sets a key."""


OF_ITS_OWN = frozenset(["stage", "finetuning_type", "template", "cutoff_len", "lora_target", "dataset_dir"])
"""Arguments of which a command of `src/train.py` without a file has one."""


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    verbs = ("train", "sft", "dpo", "rm")
    console = ("llamafactory-cli", "lmf", "llamafactory.cli")
    at = next((i for i, word in enumerate(words[:-1]) if named(word) in console), None)
    before = words[:at]
    if at is not None and words[at + 1].text in verbs:
        at += 1
    else:
        scripts = ("src/train.py", "llamafactory/launcher.py")
        at = next((i for i, word in enumerate(words[:-1]) if word.text.endswith(scripts)), None)
        before = words[:at]
    if at is None or at + 1 >= len(words):
        return None
    first, rest = words[at + 1], words[at + 1 :]
    config = Written(first.text, file, first.line) if names_file(first.text) and not _SETS.match(first.text) else None
    changes = {**assigned(rest, file), **options(rest, file)}
    is_own = config is None and words[at].text.endswith("src/train.py") and not OF_ITS_OWN & changes.keys()
    if is_own:  # a script of that name without an argument of LLaMA-Factory
        return None
    if words[at].text in verbs:
        changes["program"] = Written(words[at].text, file, words[at].line)
    launcher = launcher_of(before, file)
    if not launcher:
        held = {name: script.values[name][0] for name in ("NPROC_PER_NODE", "NNODES") if script.values.get(name)}
        names = {"NPROC_PER_NODE": "launcher.nproc_per_node", "NNODES": "launcher.nnodes"}
        launcher = {names[name]: Written(item.text, file, item.line) for name, item in held.items()}
        seen = script.values.get("CUDA_VISIBLE_DEVICES")
        if "NPROC_PER_NODE" not in held and seen and re.fullmatch(r"\d+(,\d+)*", seen[0].text):
            number = seen[0].text.count(",") + 1  # it starts as many as it sees
            launcher["launcher.nproc_per_node"] = Written(number, file, seen[0].line)
    return Launched(config, changes, None, launcher)
