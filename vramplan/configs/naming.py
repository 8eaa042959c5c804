"""What the names of a model and of its layers mean, by the catalogue."""

from __future__ import annotations

import re
from typing import Any

from vramplan.catalog import model_names
from vramplan.configs import shell
from vramplan.configs.catalogue import Catalogue
from vramplan.configs.programs import trainer
from vramplan.configs.sheet import Meaning
from vramplan.job.trained.adapter_targets import is_of_all_experts, passed_over

_ENDS_WITH_SIZE = re.compile(r"\d[bm]$")
"""Of a name that says how many parameters there are: what is shorter still may be another model's."""

_HAS_SIZE = re.compile(r"(?i)\d[bm](?![a-z])")

_ON_ANOTHER_MACHINE = re.compile(
    r"\.{0,2}/|~|[A-Za-z]:[\\/]|\$|path[/_]to\b|(your|my)[_-]|.*/.*/|<"
    r"|((base|pretrained)[_-])?(model|checkpoint|ckpt)[_-](path|name|dir|id)([_-]or[_-]path)?$"
    r"|[A-Z][A-Z_]{3,}$|(placeholder|todo|changeme|x{3,})$|\{[\w ]+\}$"
)
"""How a folder begins, or a name that is to be filled in; a name on the hub has one slash."""


_IN_THE_CACHE = re.compile(r"(?:.*/)?models--(?P<name>[^/]+)(/snapshots(/[^/]+)?)?/?")
"""A folder of the Hugging Face cache, `models--ORG--NAME/snapshots/COMMIT`.

Source: huggingface/huggingface_hub 1.2.1, src/huggingface_hub/file_download.py, repo_folder_name.
"""


def name_model(meaning: Meaning, known: Catalogue) -> None:
    """The catalogue's name in the place of a checkpoint's, and what was taken from the name told."""
    told = meaning.job.get("model")
    if told is None or not isinstance(told.value, str):
        return
    kept = _IN_THE_CACHE.fullmatch(told.value)
    if kept is not None:
        told = meaning.job["model"] = told._replace(value=kept["name"].replace("--", "/"))
    if shell.unknowns(told.value):
        del meaning.job["model"]
        meaning.ask("model", f"{shell.shown(told.value)} is known to the caller alone (--model NAME)")
        return
    name = known.name_of(told.value)
    if name is None and _ON_ANOTHER_MACHINE.match(told.value) and not known.cached(told.value):
        del meaning.job["model"]
        base = _base_in(told.value, known) or "NAME"
        meaning.ask("model", f"{told.value} is a folder of the machine that trains (--model {base})")
        return
    if name is None and "/" in told.value and not known.cached(told.value):
        asked = told.value.strip().rstrip("/").rsplit("/", 1)[-1]
        shorter = [one for one in model_names.candidates(asked.lower()) if _ENDS_WITH_SIZE.search(one)]
        meaning.job["model"] = told._replace(value=min(shorter, key=len, default=asked))
        meaning.note(f"model: {told.value} is not in the catalogue; its config.json here would tell its shape")
    if name and name != told.value:
        meaning.job["model"] = told._replace(value=name)
        if not known.has(told.value):
            meaning.note(f"model: {told.value} has the shape of {name}, by its name")


def _base_in(path: str, known: Catalogue) -> str | None:
    """The model that a part of a path names or begins with: no proof of what lies there, and the likeliest to name."""
    parts = [part for part in reversed(re.split(r"[/\\]", path)) if _HAS_SIZE.search(part)]
    found = (known.name_of(part) or known.begun_from(part) for part in parts)
    return next((name for name in found if name is not None), None)


WITH_PEFT = ("axolotl", "llama-factory", "training-arguments", "trl")
"""Programs whose adapters are PEFT's."""


def targets_of_peft(program: str, meaning: Meaning, known: Catalogue, other: Any) -> None:
    """Take away the targets that name no layer of the model beside others that do, as PEFT passes over them.

    `other`: the model that is given beside the file.
    """
    told, of_file = meaning.job.get("adapter.targets"), meaning.job.get("model")
    model = other if other is not None or of_file is None else of_file.value
    if program not in WITH_PEFT or model is None:
        return
    shape = known.shape(model) if isinstance(model, str) else None
    if shape is None:
        return
    trainer.name_modules(meaning, shape.family)
    if told is None or not isinstance(told.value, list):
        return
    shared = [word for word in told.value if is_of_all_experts(shape, word)]
    if shared:
        meaning.note(f"adapter.targets: PEFT takes {', '.join(shared)} for tensors of all experts, by the last word")
    strange = passed_over(shape, told.value)
    if strange:
        left = [word for word in told.value if word not in strange]
        meaning.job["adapter.targets"] = told._replace(value=left)
        meaning.note(f"adapter.targets: {', '.join(strange)} names no layer of {model}, and PEFT passes over it")
