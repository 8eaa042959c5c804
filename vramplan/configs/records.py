"""What runs leave behind: the configuration that Weights & Biases keeps, and the page of a model on the hub.

Both have the arguments of the Trainer, in other places and beside much else.

Source: huggingface/transformers 4.57.3 and 5.23.0, src/transformers/integrations/integration_utils.py (WandbCallback:
the arguments, over the configuration of the model), modelcard.py (extract_hyperparameters_from_trainer: the lines of a
page, and that bf16 is none of them); wandb/wandb, wandb/sdk/lib/config_util.py (`value`, `desc`);
axolotl-ai-cloud/axolotl 067b021c, src/axolotl/train.py (a page has the file that was run, in a block of YAML).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from vramplan.configs.programs.arguments import peft_kinds
from vramplan.configs.programs.arguments.keys import BITS, CLASSIFIER, LORA, TABLE
from vramplan.configs.programs.arguments.loaded_adapters import SHAPING
from vramplan.configs.shell import CLOSE, OPEN
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem

Settings = dict[str, Written]

VALUE, ENOUGH = ".value", 3
OF_THE_MODEL = {"_name_or_path": "model_name_or_path", "torch_dtype": "torch_dtype", "dtype": "torch_dtype"}
"""Keys of a model's configuration that are arguments by another name."""

GENERATED = 20  # the `max_length` of a model's configuration where nothing is said: it is that of generation
OF_TRL = ("dataset_text_field", "packing", "max_prompt_length", "max_completion_length", "loss_type", "padding_free")
OF_SWIFT = ("vit_gradient_checkpointing", "tuner_type", "train_type", "sft_type")
"""Arguments of ms-swift, whose trainers turn checkpoints on by themselves and then say in their arguments that they
are off. Source: modelscope/ms-swift 4.6, swift/trainers/mixin.py, _prepare_gradient_checkpointing."""

LEFT_OUT = ("use_cache", "transformers_version", "litgpt_version", "deepspeed_version")
NOT_KEPT = f"{OPEN}that of the script{CLOSE}"


def of_wandb(written: Mapping[str, Written]) -> Settings | None:
    """The arguments among what Weights & Biases kept of a run, None where the settings are no such record.

    The rest of it is the configuration of the model, which its name tells.
    """
    entries = {key.partition(VALUE)[0] for key in written if VALUE in key}
    if not any(key.startswith(("_wandb", "wandb_version")) for key in written) or len(entries) < ENOUGH:
        return None
    found: Settings = {}
    for key, item in written.items():
        name, _, rest = key.partition(VALUE)
        if VALUE in key and not name.startswith("_wandb"):
            for below, value in _leaves(name + rest, _plain(item.value)).items():
                found[below] = item._replace(value=value)
    return _arguments(found)


def _plain(value: Any) -> Any:
    """A value that older records have as Python prints it."""
    if isinstance(value, str) and (value in ("None", "True", "False") or value[:1] in "[{"):
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value
    return value


def _leaves(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {key: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        found |= _leaves(f"{key}.{name}", item)
    return found


def _arguments(found: Settings) -> Settings:
    """The arguments of the Trainer and of TRL, with what a model's configuration says in their names."""
    result = {
        key: item
        for key, item in found.items()
        if TABLE.class_of(key) is not None and key not in LEFT_OUT and item.value is not None
    }
    for key, name in OF_THE_MODEL.items():
        if key in found and found[key].value is not None and name not in result:
            result[name] = found[key]
            result.pop("dtype", None)
    adapter = next((key.rpartition(".")[0] for key in found if re.fullmatch(r"peft_config\.\w+\.peft_type", key)), None)
    if adapter is not None:
        kind = found[f"{adapter}.peft_type"]
        _adapter(found, result, f"{adapter}.", kind)
        if str((found.get(f"{adapter}.task_type") or kind).value).endswith("SEQ_CLS"):
            result[CLASSIFIER] = kind._replace(value=True)
    _taken(found, result, "quantization_config.", BITS)
    swift, checkpoints = next((found[key] for key in OF_SWIFT if key in found), None), "gradient_checkpointing"
    if swift is not None and checkpoints in result:
        result[checkpoints] = swift._replace(value=NOT_KEPT)
    length = result.get("max_length")
    if length is not None and length.value == GENERATED:
        result["max_length"] = length._replace(value=NOT_KEPT)
    if not any(key in result for key in OF_TRL) and length is None and result:
        result["max_length"] = next(iter(result.values()))._replace(value=NOT_KEPT)
    return result


def _adapter(found: Settings, result: Settings, prefix: str, kind: Written) -> None:
    """The settings of an adapter's configuration; raises InputError for one of a kind that is not modelled."""
    word = str(kind.value).rpartition(".")[2].upper()
    if word == "LORA":
        result["use_peft"] = kind._replace(value=True)
        _taken(found, result, prefix, LORA)
    elif word in peft_kinds.KINDS:
        result[peft_kinds.KIND] = kind._replace(value=word)
        _taken(found, result, prefix, {name: peft_kinds.BELOW + name for name in peft_kinds.taken(word)})
    else:
        known = ", ".join(["lora", "dora", *(one.word for one in peft_kinds.KINDS.values())])
        message = f"an adapter of {kind.value} is not modelled"
        raise InputError([Problem(message, file=kind.file, line=kind.line, hint=f"{known} are")])


OF_THE_BASE = "base_model_name_or_path"
BESIDE_WEIGHTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
    "bf16",
    "gradient_checkpointing",
    "optim",
)
"""What changes memory and does not stand in the file that PEFT keeps: it is asked for."""


def of_peft(written: Mapping[str, Written]) -> Settings | None:
    """The arguments in the file that PEFT keeps beside an adapter, `adapter_config.json`; None else.

    Source: huggingface/peft 0.21.2, src/peft/config.py, save_pretrained.
    """
    kind = written.get("peft_type")
    if kind is None or OF_THE_BASE not in written:
        return None
    found: Settings = {}
    _adapter(dict(written), found, "", kind)
    if written[OF_THE_BASE].value:
        found["model_name_or_path"] = written[OF_THE_BASE]
    if str((written.get("task_type") or kind).value).endswith("SEQ_CLS"):
        found[CLASSIFIER] = kind._replace(value=True)
    for name, item in written.items():
        first, dot, below = name.partition(".")
        if first in SHAPING and item.value not in (None, False, {}, [], ""):  # without a value they change nothing
            found[SHAPING[first] + dot + below] = item
    return {**found, **{key: kind._replace(value=NOT_KEPT) for key in BESIDE_WEIGHTS}}


def _taken(found: Settings, result: Settings, prefix: str, names: Mapping[str, str]) -> None:
    for key, name in names.items():
        item = found.get(prefix + key)
        if item is not None and item.value is not None:
            result[name] = item


_FRONT = re.compile(r"\A\s*---\s*\n(.*?)\n---\s*\n", re.S)
_LINE = re.compile(r"^[-*] (\w+): *(.+?)\s*$")
_TUNED = re.compile(r"fine-?tuned version of \[?`?([\w.-]+/[\w.-]+)", re.I)
_AXOLOTL = re.compile(r"```ya?ml\n(.*?\bbase_model:.*?)```", re.S)
_OPTIMIZER = re.compile(r"(?:Use )?(?:OptimizerNames\.)?(\w+) with betas", re.I)
OF_A_PAGE = {
    "train_batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "num_devices": "launcher.nproc_per_node",
    "learning_rate": "learning_rate",
    "seed": "seed",
    "num_epochs": "num_train_epochs",
    "training_steps": "max_steps",
    "lr_scheduler_type": "lr_scheduler_type",
    "label_smoothing_factor": "label_smoothing_factor",
}
NOT_ON_A_PAGE = ("bf16", "gradient_checkpointing")
"""What changes memory and stands on no page: it is asked for."""

BY_NAME = "adam"  # how pages up to Transformers 4.45 call whatever optimizer there was


def is_page(text: str) -> bool:
    """Whether a text is the page of a model with the arguments that trained it."""
    return "raining hyperparameters" in text or _AXOLOTL.search(text) is not None


def from_page(text: str, file: str, from_yaml: Callable[[str, str | None], Settings]) -> Settings:
    """The arguments on the page of a model; those of Axolotl's file, where it has one. Raises InputError."""
    block = _AXOLOTL.search(text)
    if block is not None:
        above = text[: block.start(1)].count("\n")
        own = from_yaml(block[1], file)
        return {key: item._replace(line=item.line + above if item.line else None) for key, item in own.items()}
    found: Settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        told = _LINE.match(line)
        if told is not None:
            found |= _of_a_line(told[1], told[2], Written(told[2], file, number, 1))
    if "per_device_train_batch_size" not in found:
        message = "no page of a model with its training hyperparameters"
        raise InputError([Problem(message, file=file, hint="a file of the run itself, or - train_batch_size: 8")])
    front = _FRONT.match(text)
    named = re.search(r"(?m)^base_model: *['\"]?([\w./-]+)", front[1]) if front else None
    named = named or _TUNED.search(text)
    if named is not None:
        found["model_name_or_path"] = Written(named[1], file, text[: named.start(1)].count("\n") + 1, 1)
    for key in NOT_ON_A_PAGE:
        if key not in found:
            found[key] = Written(f"{OPEN}not on the page{CLOSE}", file)
    found["max_length"] = Written(NOT_KEPT, file)
    return found


def _of_a_line(key: str, value: str, item: Written) -> Settings:
    if key in OF_A_PAGE:
        return {OF_A_PAGE[key]: item._replace(value=_number(value))}
    if key == "optimizer":
        named = _OPTIMIZER.match(value)
        if named is not None and named[1].lower() != BY_NAME:
            return {"optim": item._replace(value=named[1].lower())}
    if key == "mixed_precision_training" and value == "Native AMP":
        return {"fp16": item._replace(value=True), "bf16": item._replace(value=False)}
    return {}


def _number(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
