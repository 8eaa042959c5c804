"""The command that runs a recipe of Megatron-Bridge: `run_recipe.py --recipe NAME key=value`.

Source: NVIDIA-NeMo/Megatron-Bridge 0.7.0 (067f987d), scripts/training/run_recipe.py (COMMON_OVERRIDE_FIELDS).
"""

from __future__ import annotations

from vramplan.configs import neighbours, shell
from vramplan.configs.command import Words, assigned, named, option, processes
from vramplan.configs.sheet import Launched
from vramplan.configs.written import Written

RUNNER = "run_recipe.py"
RECIPES = "src/megatron/bridge/recipes"
OVERRIDES = {
    ("-gb", "--global_batch_size"): "train.global_batch_size",
    ("-mb", "--micro_batch_size"): "train.micro_batch_size",
    ("-sl", "--seq_length"): "dataset.seq_length",
    ("-tp", "--tensor_model_parallel_size"): "model.tensor_model_parallel_size",
    ("-pp", "--pipeline_model_parallel_size"): "model.pipeline_model_parallel_size",
    ("-cp", "--context_parallel_size"): "model.context_parallel_size",
    ("-vp", "--virtual_pipeline_model_parallel_size"): "model.virtual_pipeline_model_parallel_size",
    ("-ep", "--expert_model_parallel_size"): "model.expert_model_parallel_size",
    ("-etp", "--expert_tensor_parallel_size"): "model.expert_tensor_parallel_size",
}
MODES = {"lora": "peft", "dora": "peft"}
"""What a mode is called in the name of a recipe, where that is another word."""


def started(words: Words, script: shell.Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    at = next((place for place, word in enumerate(words) if named(word) == RUNNER), None)
    if at is None:
        return None
    given = words[at + 1 :]
    name, model = option(given, "--recipe", file), option(given, "--model", file)
    mode = str(getattr(option(given, "--mode", file), "value", "pretrain"))
    if name is None and model is not None:
        name = model._replace(value=f"{model.value}_{MODES.get(mode, mode)}_config")
    if name is None:
        return None
    changes: dict[str, Written | None] = {}
    for spellings, key in OVERRIDES.items():
        found = next((item for one in spellings if (item := option(given, one, file)) is not None), None)
        if found is not None:
            changes[key] = found
    return Launched(_recipe(name, file), {**changes, **assigned(given, file)}, processes(words[:at]))


def _recipe(name: Written, file: str) -> Written:
    """The recipe in its file: that of the library around the script, else one that is given beside it."""
    if shell.unknowns(str(name.value)):
        return name._replace(value=f"{shell.OPEN}the recipe{shell.CLOSE}")
    place = neighbours.defined_above(file, RECIPES, str(name.value))
    return name._replace(value=place or f"{shell.OPEN}the file of this recipe{shell.CLOSE}.py:{name.value}")
