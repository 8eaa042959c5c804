"""Recipes that NeMo 2 has itself, as scripts call them: `llm.llama3_8b.pretrain_recipe(num_nodes=2)`.

Source: NVIDIA/NeMo main (8cfedd72), nemo/collections/llm/recipes/*.py. What they set is in `nemo_recipes.json`,
which `nemo_recipes.from_python` made of those files: of each its pretraining, and its finetuning with `peft_scheme`
"lora" and None; a `+` stands for `performance_mode=True`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from vramplan.configs import constructed
from vramplan.configs.constructed import CLASS, Constructed
from vramplan.configs.forms import NotConstant
from vramplan.configs.table import names
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem

MAKERS = ("pretrain_recipe", "finetune_recipe")
STARTS = re.compile(r"(run\.run|run\.dryrun|(?:\w+\.)?add)")
"""What a recipe is handed to: NeMo-Run itself, or an experiment."""

_NAMED = re.compile(r"(\w+\.)*(?P<recipe>\w+)\.(?P<maker>pretrain|finetune)_recipe")
_CALL = re.compile(r"\.(pretrain|finetune)_recipe\(")
DEVICES = {"num_nodes": "trainer.num_nodes", "num_gpus_per_node": "trainer.devices"}


DECIDING = names(
    """
    trainer.strategy.tensor_model_parallel_size trainer.strategy.pipeline_model_parallel_size
    trainer.strategy.virtual_pipeline_model_parallel_size trainer.strategy.context_parallel_size
    trainer.strategy.expert_model_parallel_size trainer.strategy.sequence_parallel data.seq_length
    data.global_batch_size data.micro_batch_size peft.dim model.config.recompute_granularity
    """
)
"""Keys that an assignment behind the call may not leave to the caller."""

COMMON = {
    "trainer.strategy._class": "nl.MegatronStrategy",
    "trainer.plugins._class": "bf16_mixed",
    "trainer.num_nodes": 1,
    "trainer.devices": 8,
    "trainer.strategy.tensor_model_parallel_size": 1,
    "trainer.strategy.pipeline_model_parallel_size": 1,
    "trainer.strategy.context_parallel_size": 1,
    "trainer.strategy.sequence_parallel": False,
    "data.micro_batch_size": 1,
    "optim._class": "distributed_fused_adam_with_cosine_annealing",
}
"""What most of them set, and what holds where the file has nothing else."""


@cache
def recipes() -> dict[str, dict[str, dict[str, Any]]]:
    """What the recipes set, by their names and by what they do: `pretrain`, `lora` or `none`."""
    text = (files("vramplan.configs.programs") / "nemo_recipes.json").read_text("utf-8")
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return found


def calls_one(text: str) -> bool:
    """Whether a script calls a recipe of NeMo."""
    return "nemo" in text and _CALL.search(text) is not None


def _is_one(made: Constructed) -> bool:
    return made.name.rpartition(".")[2] in MAKERS


def started(module: constructed.Module) -> Constructed | None:
    """The recipe that a script hands to NeMo-Run, or that the first of its functions to do so returns.

    None where the file defines recipes itself, or starts none.
    """
    if any(name in MAKERS for name in module.functions):
        return None
    module.runs()
    made = [recipe for name, recipe in module.handed if STARTS.fullmatch(name) and _is_one(recipe)]
    if not made:
        made = [one for name in module.functions if (one := module.constructs(name)) is not None and _is_one(one)]
        made = [recipe for name, recipe in module.handed if STARTS.fullmatch(name) and _is_one(recipe)] or made
    return made[0] if made else None


def settings_of(module: constructed.Module, made: Constructed) -> dict[str, Any] | None:
    """What a recipe of NeMo sets that a call makes; None where it is none of NeMo's. Raises InputError."""
    name = made.name
    if name in module.imported:
        name = ".".join(module.imported[name])
    found = _NAMED.fullmatch(name)
    variants = recipes().get(found["recipe"]) if found is not None else None
    if found is None or variants is None:
        return None
    fast = _decided(module, made, "performance_mode", False)
    scheme = _decided(module, made, "peft_scheme", "lora") if found["maker"] == "finetune" else "pretrain"
    word = str(scheme or "none").lower()
    settings = variants.get({"dora": "lora"}.get(word, word) + "+" * bool(fast))
    if settings is None:
        with_it = " with performance_mode" * bool(fast)
        message = f"{found['recipe']} has no {found['maker']}_recipe for {word}{with_it} in NeMo"
        raise InputError([Problem(message, hint="give the file of the recipe", file=module.file, line=made.line)])
    settings = {**COMMON, **settings}
    if word == "dora":
        settings[f"peft.{CLASS}"] = "DoRA"
    packed = bool(_decided(module, made, "packed_sequence", fast))
    length = _decided(module, made, "seq_length", None if packed == bool(fast) else 4096 if packed else 2048)
    if packed:
        settings[f"data.packed_sequence_specs.{CLASS}"] = "PackedSequenceSpecs"
    else:
        settings.pop(f"data.packed_sequence_specs.{CLASS}", None)
    if length is not None:
        settings |= {"data.seq_length": length, "model.config.seq_length": length}
    return settings


def _decided(module: constructed.Module, made: Constructed, name: str, default: Any) -> Any:
    """An argument of a call of a recipe. Raises InputError where only the caller knows it."""
    value = made.fields[name][0] if name in made.fields else default
    if isinstance(value, NotConstant | Constructed):
        message = f"{name} is {value if isinstance(value, NotConstant) else value.name}, which only the caller knows"
        raise InputError([Problem(message, hint="write its value", file=module.file, line=made.line)])
    return default if value is None and name != "peft_scheme" else value


def over(base: dict[str, Any], found: dict[str, Written], made: Constructed, file: str) -> dict[str, Written]:
    """The settings of a recipe of NeMo with what its call and the assignments behind it change."""
    own = {key: item for key, item in found.items() if "." in key or key == "peft"}
    own |= {DEVICES[name]: item for name, item in found.items() if name in DEVICES and DEVICES[name] not in own}
    if any(isinstance(own[key].value, NotConstant) for key in DEVICES.values() if key in own):
        base = {key: value for key, value in base.items() if key not in DEVICES.values()}
        own = {key: item for key, item in own.items() if key not in DEVICES.values()}
    unknown = [(key, item) for key, item in own.items() if key in DECIDING and isinstance(item.value, NotConstant)]
    if unknown:
        raise InputError(
            [
                Problem(f"is {item.value}, which only the caller knows", key, "write its value", file, item.line)
                for key, item in unknown
            ]
        )
    whole = tuple(f"{key.removesuffix(CLASS).removesuffix('.')}." for key in own if key.endswith(CLASS))
    whole += tuple(f"{key}." for key in own)
    place = Written(None, file, made.line)
    kept = {key: place._replace(value=value) for key, value in base.items() if not key.startswith(whole)}
    return {**kept, **{key: item for key, item in own.items() if key != "peft" or item.value is not None}}
