"""Values as programs write them: a list of Python or JSON, words with spaces between them, a mapping of settings."""

from __future__ import annotations

import json
import re
from typing import Any

_LIST = re.compile(r"\s*[\[(]\s*([\"'].*[\"'])\s*,?\s*[\])]\s*", re.DOTALL)
_WORDS = re.compile(r"[A-Za-z_][\w.-]*(?:\s+[A-Za-z_][\w.-]*)+")


def listed(value: str) -> str:
    """A list with commas between its items: `["q_proj", "v_proj"]` and `q_proj v_proj` are q_proj,v_proj."""
    found = _LIST.fullmatch(value)
    if found is not None:
        return ",".join(item.strip().strip("\"'") for item in found[1].split(","))
    return ",".join(value.split()) if _WORDS.fullmatch(value.strip()) else value


OF_FSDP = ("--fsdp-config", "fsdp")


BESIDE = {"offload": ["--fsdp-offload-params"], "auto_wrap": []}  # each block is a unit without it
"""What may stand beside the way of sharding, as in `full_shard auto_wrap offload` of the Trainer, in options."""


def beside(value: str) -> list[str] | None:
    """The options for the words behind the first one; None where one of them is not known."""
    rest = value.lower().split()[1:]
    return None if any(word not in BESIDE for word in rest) else [option for word in rest for option in BESIDE[word]]


def _is_written(value: Any) -> bool:
    """Whether a value of JSON is one that an option may have."""
    several = value if isinstance(value, list) else [value]
    return bool(several) and not any(isinstance(one, (dict, list)) or one is None for one in several)


def settings_in(value: str, option: str = "") -> list[str] | None:
    """The settings of a mapping in JSON as options: of `{"use_reentrant": false}` --use-reentrant false.

    None where the text is no mapping of values and lists of them.
    """
    if not value.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(map(_is_written, found.values())):
        return None
    words = []
    for key, value_of_key in found.items():
        one = ",".join(map(str, value_of_key)) if isinstance(value_of_key, list) else value_of_key
        if option == OF_FSDP[0] and not key.startswith(OF_FSDP[1]):  # keys of it have the word in front, or not
            key = f"{OF_FSDP[1]}_{key}"
        words += [f"--{key}", str(one).lower() if isinstance(one, bool) else str(one)]
    return words


_STAGE = re.compile(r"z(?:ero)?[-_]?(?:stage[-_]?)?([123])")


def sharding_in(file: str) -> str | None:
    """The option for the way of sharding that the name of a file says, as in `ds_config_zero2.json`; None if none."""
    stage = _STAGE.search(file.lower())
    if stage is not None:
        return f"--zero {stage[1]}"
    return "--fsdp" if "fsdp" in file.lower() else None
