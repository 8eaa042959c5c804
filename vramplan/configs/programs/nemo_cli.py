"""Commands of NeMo 2 and NeMo-Run: `nemo llm pretrain --factory "llama3_8b(num_nodes=2)" trainer.devices=8`.

Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), nemo/collections/llm/api.py (`run.cli.entrypoint`); NVIDIA/NeMo-Run,
nemo_run/cli/api.py (`--factory` names the recipe, and each `key=value` is assigned to what it returns).
"""

from __future__ import annotations

import re

from vramplan.configs.command import Words, assigned, named, option
from vramplan.configs.programs import nemo_library as library
from vramplan.configs.programs import nemo_recipes as recipes
from vramplan.configs.sheet import Launched
from vramplan.configs.shell import unknowns

_FACTORY = re.compile(r"(?P<name>\w+)(?P<call>\(.*\))?", re.DOTALL)
_OPENS = ("from nemo.collections import llm", "import nemo_run as run")


def started(words: Words, file: str) -> Launched | None:
    """The recipe of the library that a command names, with what it assigns to it."""
    told = option(words, "--factory", file)
    found = None if told is None else _FACTORY.fullmatch(str(told.value).strip())
    if told is None or found is None or found["name"] not in library.recipes():
        return None
    maker = "finetune" if any("finetune" in named(word) for word in words) else "pretrain"
    changes = {key: item for key, item in assigned(words, file).items() if item is not None}
    given = (found["call"] or "()")[1:-1].strip()
    peft = changes.pop("peft", None)
    if peft is not None:  # the name of a function that makes the adapter, as the argument of the recipe is
        given = f"{given}, peft_scheme={peft.value!r}".removeprefix(", ")
    lines = [f"recipe = llm.{found['name']}.{maker}_recipe({given})"]
    asked = {key: item for key, item in changes.items() if unknowns(str(item.value))}
    lines += [f"recipe.{key} = {item.value!r}" for key, item in changes.items() if key not in asked and "." in key]
    made = recipes.from_python("\n".join([*_OPENS, *lines, "run.run(recipe)", ""]), file, None, lambda name: None)
    if made is None:
        return None
    settings = {key: item._replace(line=told.line) for key, item in made[0].items()}
    settings |= {key: item for key, item in changes.items() if key in settings or key in asked or "." not in key}
    return Launched(None, settings, None)
