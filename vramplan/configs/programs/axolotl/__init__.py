"""Axolotl: one YAML file for `axolotl train`.

Source: axolotl-ai-cloud/axolotl 0.18.0 (067b021c), src/axolotl/utils/schemas/*.py (keys and defaults),
utils/config/__init__.py (normalize_config, resolve_dtype), core/builders/base.py (what becomes TrainingArguments),
loaders/model.py (quantization), loaders/adapter.py (targets), integrations/*/args.py (keys of plugins).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import trainer
from vramplan.configs.programs.axolotl import adapters, command, computing, devices, rounding
from vramplan.configs.programs.axolotl.keys import (
    OF_ALLOCATOR,
    OF_OLD_RELEASES,
    OF_OTHERS,
    RELEASES,
    UNDERSTOOD,
    UNMODELLED,
    WITHOUT_EFFECT,
)
from vramplan.configs.sheet import Meaning, Program, Sheet
from vramplan.configs.table import Table

OPTIMIZERS: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {
    "muon": ("muon", ()),
    "optimi_adamw": ("adamw-optimi", (("optimizer_implementation", "for-loop"),)),
    "adopt_adamw": ("adopt", ()),
    "adamc": ("adamc", ()),
    "ao_adamw_8bit": ("adamw-8bit-torchao", ()),
    "ao_adamw_4bit": ("adamw-4bit-torchao", ()),
    "ao_adamw_fp8": ("adamw-fp8-torchao", ()),
    "flash_adamw": ("adamw-8bit", ()),
    "flash_adam": ("adamw-8bit", ()),
    "flash_sgd": ("sgd-momentum", ()),
    "flash_sgdw": ("sgd-momentum", ()),
    "flash_lion": ("lion", ()),
    "came_pytorch": ("came", ()),
    "dion": ("dion", ()),
    "sinkgd": ("sgd", ()),
    "q_galore_adamw8bit": ("q-galore-adamw-8bit", ()),
}

NEAR = frozenset(("sinkgd",))


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are Axolotl's alone."""
    own = ("base_model", "sequence_len", "micro_batch_size", "sample_packing", "lora_r", "load_in_4bit")
    if "program" in keys:  # a command of a script, as alpaca-lora's, whose arguments have some of these names
        return 0
    return sum(name in keys for name in own) if "base_model" in keys else 0


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of an Axolotl file."""
    meaning.say("runtime", "transformers", "base_model")
    meaning.launched("axolotl", OF_ALLOCATOR, sheet.release.defaults[OF_ALLOCATOR])
    name = sheet.text("base_model")
    if name:
        meaning.say("model", adapters.checkpoint_of(name), "base_model")
        adapters.images(sheet, meaning, name)
    else:
        meaning.ask("model", "the file names no base_model")
    meaning.say("sequence_length", sheet.count("sequence_len"), "sequence_len")
    micro = sheet.count("micro_batch_size")
    meaning.say("micro_batch_size", micro, "micro_batch_size")
    _steps(sheet, meaning, micro)
    _optimizer(sheet, meaning)
    trainer.clipping(sheet, meaning)
    adapter = adapters.adapter(sheet, meaning)
    stage, fsdp = devices.strategy(sheet, meaning)
    adapters.lora_kernels(sheet, meaning)
    rounding.rounding(sheet, meaning)
    computing.precision(sheet, meaning, adapter, stage, fsdp)
    computing.checkpointing(sheet, meaning)
    computing.attention(sheet, meaning)
    computing.state_spaces(sheet, meaning)
    _packing(sheet, meaning)
    computing.loss(sheet, meaning, adapter)
    computing.tiles(sheet, meaning)
    compiled = sheet.text("torch_compile")
    if compiled is not None and (compiled == "auto" or sheet.flag("torch_compile")):
        meaning.say("compile", True, "torch_compile")
    for key in ("reinit_weights", "random_init_weights"):  # the second was its name until 0.10.0
        if sheet.flag(key):
            meaning.say("from_scratch", True, key)
    if sheet.flag("reward_model"):
        meaning.say("loss", "reward", "reward_model")
        meaning.say("padding", "right", "reward_model")
    if sheet.flag("process_reward_model"):
        meaning.lack("process_reward_model", "rewards of steps, and the loss over a vocabulary is counted")
    sheet.flag("tf32") if sheet.text("tf32") != "auto" else None
    devices.devices(sheet, meaning)


def _packing(sheet: Sheet, meaning: Meaning) -> None:
    """Say whether samples are packed: the trainers of `rl` never did, and releases of today refuse the pair.

    Source: src/axolotl/utils/schemas/validation.py, check_sample_packing_w_rl; core/builders/rl.py.
    """
    packs = bool(sheet.flag("sample_packing", False))
    if packs and sheet.text("rl"):
        meaning.note("sample_packing: no trainer of rl packs samples, and Axolotl of today refuses the two together")
        packs = False
    meaning.say("packing", packs, "sample_packing")


def _steps(sheet: Sheet, meaning: Meaning, micro: int | None) -> None:
    total = sheet.count("batch_size")
    if sheet.given("batch_size") and not sheet.given("gradient_accumulation_steps") and total and micro:
        meaning.say("gradient_accumulation_steps", total // micro, "batch_size", "micro_batch_size")
        return
    key = "gradient_accumulation_steps"
    meaning.say(key, sheet.count(key), key)


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    if below := sheet.under("optim_args"):  # arguments may be a mapping in the file
        sheet.written["optim_args"] = next(
            item._replace(value=below) for key, item in sheet.written.items() if key.startswith("optim_args.")
        )
    trainer.optimizer(sheet, meaning, "optimizer", **OPTIMIZERS)
    if sheet.text("optimizer") in NEAR:
        meaning.lack("optimizer", f"{sheet.text('optimizer')} is counted as {meaning.job['optimizer'].value}")


PROGRAM = Program(
    "axolotl",
    RELEASES,
    Table(UNDERSTOOD, WITHOUT_EFFECT | OF_OLD_RELEASES | OF_OTHERS, UNMODELLED, is_extended=True, passes_over=True),
    read,
    recognise,
    casts_whole_models=False,
    started=command.started,
)
