"""LLaMA-Factory: one YAML or JSON file for `llamafactory-cli train`, and its v1 files (`USE_V1=1`).

Source: hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), src/llamafactory/hparams/*.py (keys and defaults; parser.py),
model/adapter.py (what is upcast to fp32), model/model_utils/{checkpointing,quantization,attention,liger_kernel}.py,
train/trainer_utils.py (optimizers, reference models); src/llamafactory/v1/config/*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import trainer
from vramplan.configs.programs.llama_factory import asked, command, computing, devices, tuning, v1
from vramplan.configs.programs.llama_factory.computing import ATTENTIONS
from vramplan.configs.programs.llama_factory.keys import FIRST, FIRST_SCRIPTS, OLD, OLD_SCRIPT, RELEASES, TABLE
from vramplan.configs.sheet import Meaning, Program, Sheet

OF_OLD_RELEASES = {
    "num_layer_trainable": "freeze_trainable_layers",
    "name_module_trainable": "freeze_trainable_modules",
    "badam_switch_block_every": "badam_switch_interval",
}
"""What 0.7 and older call settings. Source: v0.7.0, src/llmtuner/hparams/finetuning_args.py."""

IDLE = {
    "infer_backend": "answers a chat",
    "export_dir": "merges or quantizes a model",
    "export_size": "merges a model",
    "n_shot": "asks the questions of a benchmark",
}
"""Keys of files for `llamafactory-cli chat`, `api`, `export` and `eval`, with what these do."""


OF_TRAINING = (
    *("stage", "do_train", "do_predict", "dataset", "dataset_dir", "output_dir", "per_device_train_batch_size"),
    *("learning_rate", "num_train_epochs", "max_steps", "cutoff_len", "program"),
)
"""Keys of which a file of a training run has one, and one for `llamafactory-cli chat` or `webchat` none."""


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are LLaMA-Factory's alone."""
    own = (
        "finetuning_type",
        "cutoff_len",
        "stage",
        "template",
        "lora_target",
        "dataset_dir",
        "preprocessing_num_workers",
        *IDLE,
    )
    found = sum(name in keys for name in own)
    found += "finetuning_type" in keys and _script(keys) in FIRST_SCRIPTS
    if _is_v1(keys):
        found += 2 + sum(name in keys for name in ("kernel_config", "dist_config", "train_dataset", "model_class"))
    told = "model_name_or_path" in keys or "model" in keys
    return found if told or {"finetuning_type", "stage"} <= set(keys) else 0


def _is_v1(keys: Mapping[str, Any]) -> bool:
    tops = {key.split(".", 1)[0] for key in keys}
    own = {"train_dataset", "model_class", "dist_config", "kernel_config", "peft_config", "sample_backend"}
    return "model" in tops and "model_name_or_path" not in tops and bool(tops & own)


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a LLaMA-Factory file."""
    if _is_v1(sheet.written):
        v1.read_v1(sheet, meaning)
        return
    trainer.renamed(sheet, OF_OLD_RELEASES)
    stage_of = FIRST_SCRIPTS.get(_script(sheet.written))
    if stage_of is not None and not sheet.given("stage"):
        sheet.written["stage"] = sheet.written["program"]._replace(value=stage_of)
    idle = next((key for key in IDLE if sheet.given(key)), None)
    if idle is not None and not any(sheet.given(key) for key in ("stage", "do_train", "dataset")):
        sheet.refuse(idle, f"the file {IDLE[idle]} and trains nothing", "give the file of a training run")
    if sheet.given("adapter_name_or_path") and not any(sheet.given(key) for key in OF_TRAINING):
        message = "the file names an adapter and no data: it answers with it and trains nothing"
        sheet.refuse("adapter_name_or_path", message, "give the file of a training run")
    if sheet.flag("do_predict") and sheet.given("do_predict") and not sheet.flag("do_train"):
        sheet.refuse("do_predict", "the file only predicts and trains nothing", "give the file of a training run")
    left = asked.taken_out(sheet)
    unsloth = sheet.flag("use_unsloth")
    if unsloth and sheet.text("stage") in computing.OF_PREFERENCES:
        meaning.lack("use_unsloth", "Unsloth's own kernels, and the step of TRL is counted, which needs more")
        unsloth = False
    megatron = any(
        sheet.given(key) for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "use_mca")
    )
    meaning.say("runtime", "megatron" if megatron else "unsloth" if unsloth else "transformers", "use_unsloth")
    name = sheet.text("model_name_or_path")
    if name:
        meaning.say("model", name, "model_name_or_path")
    else:
        meaning.ask("model", "the file has no model_name_or_path")
    before, after = sheet.count("max_source_length"), sheet.count("max_target_length")  # of releases up to 0.2
    if before and sheet.text("stage") == "pt" and not sheet.given("cutoff_len"):
        meaning.say("sequence_length", before, "max_source_length")
    elif before and after and not sheet.given("cutoff_len"):
        meaning.say("sequence_length", before + after, "max_source_length", "max_target_length")
    else:
        meaning.say("sequence_length", sheet.count("cutoff_len"), "cutoff_len")
    meaning.say("micro_batch_size", sheet.count("per_device_train_batch_size"), "per_device_train_batch_size")
    key = "gradient_accumulation_steps"
    meaning.say(key, sheet.count(key), key)
    kind = sheet.word("finetuning_type", {name: name for name in ("lora", "oft", "freeze", "full")})
    tuning.optimizer(sheet, meaning)
    trainer.clipping(sheet, meaning)
    quantized = tuning.quantization(sheet, meaning, name or "")
    tuning.adapter(sheet, meaning, kind)
    tuning.frozen(sheet, meaning, kind)
    stage, fsdp = devices.strategy(sheet, meaning)
    computing.precision(sheet, meaning, kind, quantized, stage, fsdp)
    computing.checkpointing(sheet, meaning, fsdp)
    attention = sheet.word("flash_attn", ATTENTIONS)
    if attention:
        meaning.say("attention", attention, "flash_attn")
    computing.stage(sheet, meaning, kind)
    halved = meaning.job["precision"].value.startswith("mixed-")  # DeepSpeed casts the whole model
    if kind == "lora" and quantized and "loss" in meaning.job and not (halved or sheet.flag("pure_bf16")):
        meaning.say("adapter.dtype", "fp32", "finetuning_type")  # model/adapter.py, for any stage; TRL's own are bf16
    if sheet.flag("torch_compile"):
        meaning.say("compile", True, "torch_compile")
    if sheet.flag("train_from_scratch"):
        meaning.say("from_scratch", True, "train_from_scratch")
    if megatron:
        devices.megatron(sheet, meaning)
    devices.devices(sheet, meaning)
    asked.ask(meaning, left)


def release_of(keys: Mapping[str, Any]) -> str | None:
    """The release that a script is of whose name later ones have not."""
    script = _script(keys)
    return FIRST if script in FIRST_SCRIPTS else OLD if script == OLD_SCRIPT else None


def _script(keys: Mapping[str, Any]) -> str:
    return str(getattr(keys.get("program"), "value", "")).replace("\\", "/").rpartition("/")[2]


PROGRAM = Program("llama-factory", RELEASES, TABLE, read, recognise, release_of, started=command.started)
