"""The command that starts llm-foundry with a file: `composer train.py FILE key=value`.

Source: mosaicml/llm-foundry 0.22.0.dev0, scripts/train/train.py; mcli/mcli-1b-max-seq-len-8k.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vramplan.configs.command import Words, assigned, named, names_file, processes
from vramplan.configs.sheet import Launched
from vramplan.configs.shell import Script, read
from vramplan.configs.written import Written


def of_platform(written: Mapping[str, Written], file: str) -> Launched | None:
    """What a run of MosaicML's platform starts: `parameters` are the file, or the command names one."""
    command, image = written.get("command"), written.get("image")
    if command is None or image is None or not isinstance(command.value, str):
        return None
    gpus = written.get("compute.gpus")
    devices = gpus.value if gpus is not None and isinstance(gpus.value, int) else None
    own = {key.removeprefix("parameters."): item for key, item in written.items() if key.startswith("parameters.")}
    for words in read(command.value).commands:
        found = started(words, Script(), file)
        if found is None or found.config is None:
            continue
        line = command.line
        changes = {key: None if item is None else item._replace(line=line) for key, item in found.changes.items()}
        if own and str(found.config.value).startswith("/mnt/config/"):
            return found._replace(config=None, changes={**own, **changes}, devices=devices)
        path = str(found.config.value)
        folder = re.search(r"(?m)^\s*cd\s+([\w./-]+)", command.value)
        if folder is not None and not path.startswith("/"):  # of the machine that runs it, as a clone of llm-foundry
            path = "/" + "/".join([*folder[1].strip("/").split("/"), path])
        config = found.config._replace(value=path, line=line)
        return found._replace(config=config, changes=changes, devices=devices)
    return None


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    first = next((place for place, word in enumerate(words) if named(word) in ("composer", "python", "python3")), None)
    if first is None:
        return None
    at = next((place for place, word in enumerate(words) if place > first and named(word) == "train.py"), None)
    if at is None or at + 1 >= len(words):
        return None
    text, suffixes = words[at + 1].text, (".yaml", ".yml")
    if not text.endswith(suffixes) and (named(words[first]) != "composer" or not names_file(text)):
        return None
    config = Written(words[at + 1].text, file, words[at + 1].line)
    return Launched(config, assigned(words[at + 2 :], file), processes(words[:at]))
