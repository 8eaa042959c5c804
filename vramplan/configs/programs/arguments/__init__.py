"""TrainingArguments of transformers and the configurations of TRL: YAML, JSON, or a command line as text.

Source: huggingface/transformers 5.23.0, src/transformers/training_args.py (keys and defaults), trainer.py and
integrations/deepspeed.py; examples/pytorch/language-modeling/run_clm.py (keys of scripts); huggingface/trl 1.16.0 and
the releases named below, trl/trainer/{sft,dpo,model,base}_config.py, trl/trainer/utils.py (get_peft_config,
get_quantization_config), trl/scripts/utils.py (ScriptArguments); huggingface/alignment-handbook (0d3df220),
recipes/zephyr-7b-beta/README.md and zephyr-141b-A35b/README.md: how the files of the handbook are launched;
tatsu-lab/stanford_alpaca (761dc5bf), train.py, and scripts made from it: `model_max_length`, to which texts are cut.
"""

from __future__ import annotations

import os
from typing import Any

from vramplan.configs.programs import trainer
from vramplan.configs.programs.arguments import (
    asked,
    command,
    computing,
    devices,
    idle,
    losses,
    recognising,
    scratch,
    scripts,
    tuning,
    unsloths_copies,
)
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.configs.programs.arguments.keys import OF_PEFT, TABLE
from vramplan.configs.programs.arguments.releases import RELEASES, TRL_RELEASES
from vramplan.configs.sheet import Meaning, Program, Sheet
from vramplan.configs.shell import shown, unknowns

STEPS = "gradient_accumulation_steps"


def read_trl(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a file for TRL."""
    read_file(TrainingFile(sheet, meaning, is_trl=True))


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of TrainingArguments, with the keys of the example scripts."""
    read_file(TrainingFile(sheet, meaning, is_trl=False))
    named = next((os.path.basename(item.file) for item in sheet.written.values() if item.file), "")
    task = None if sheet.refused or "program" in sheet else losses.OF_FILES.search(named)
    if task is not None and "loss" not in meaning.job.keys() | meaning.open.keys():
        meaning.ask("loss", f"{named} may be of a trainer of TRL (--loss {task['task']}, or --loss standard)")


def read_file(file: TrainingFile) -> None:
    """The job of the file."""
    sheet, meaning = file.sheet, file.meaning
    idle.refuse_without_training(sheet)
    if sheet.refused:
        return
    scripts.settled(sheet, meaning)
    own = OWN_OPTIMIZERS if sheet.given("optimizer") else {}
    trainer.renamed(sheet, OF_PEFT)
    if "program" in sheet:
        trainer.complete(sheet, TABLE)
        trainer.turned_off(sheet, TABLE)
    left = asked.taken_out(file)
    if sheet.flag("use_unsloth") and losses.task_of(file) not in losses.OF_UNSLOTH:
        meaning.lack("use_unsloth", "Unsloth's own kernels, and the step of TRL is counted, which needs more")
    elif sheet.flag("use_unsloth"):
        meaning.say("runtime", "unsloth", "use_unsloth")
    if "runtime" not in meaning.job:
        meaning.say("runtime", "transformers", "program" if "program" in sheet else "model_name_or_path")
    recognising.note_absent(file)
    name = sheet.text("model_name_or_path")
    if name and "model" not in meaning.job:
        if not unsloths_copies.say(sheet, meaning, name):
            meaning.say("model", name, "model_name_or_path")
        for key in (*scratch.KINDS, scratch.OVERRIDES):
            sheet.text(key)
    elif not {"model"} & (meaning.job.keys() | meaning.open.keys()) and not scratch.model(sheet, meaning):
        meaning.ask("model", "the script's, which names no model_name_or_path here (--model)")
    task = losses.task_of(file)
    length(file)
    batch(file)
    if not sheet.beside.get("optimizer"):
        trainer.optimizer(sheet, meaning, "optim", **own)
    else:
        sheet.text("optim"), sheet.get("optim_args")
    trainer.clipping(sheet, meaning)
    devices.strategy(file)
    computing.checkpointing(file)
    peft = tuning.adapter(file)
    quantized = tuning.quantization(file, peft=peft)
    tuning.frozen(file, peft=peft)
    computing.precision(file, peft, quantized)
    tuning.adapter_type(file, task)
    computing.attention(file)
    losses.losses(file, task, peft)
    compiled = sheet.flag("torch_compile")
    for key in ("torch_compile_backend", "torch_compile_mode"):
        compiled = bool(sheet.text(key)) or compiled
    if compiled:
        meaning.say("compile", True, "torch_compile", "torch_compile_backend", "torch_compile_mode")
    losses.evaluation(file)
    asked.ask(file, left)
    asked.ask_own(file)
    if "parallel.data" not in meaning.job:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")


OWN_OPTIMIZERS: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {"adamw": ("adamw", ()), "adam": ("adam", ())}
"""Words of scripts that call their setting `optimizer`, of which the Trainer has none."""


OF_PAIRS = ("dpo", "kto", "orpo", "cpo")
"""Tasks on a prompt with answers, which models of one text have."""


def length(file: TrainingFile) -> None:
    """Say the tokens of a sequence."""
    sheet, meaning = file.sheet, file.meaning
    if "sequence_length" in meaning.job:
        return  # of a script with a length of its own
    shape = sheet.shape_of(sheet.text("model_name_or_path") or "")
    if shape is not None and shape.task == "image":
        return
    both = all(sheet.given(key) for key in ("max_prompt_length", "max_completion_length"))  # of Unsloth's length a part
    if file.is_trl and losses.task_of(file) in losses.SAMPLED and (both or not sheet.given("max_seq_length")):
        sheet.get("max_seq_length")
        _sampled(file)
        return
    for key in ("max_seq_length", "block_size", "max_source_length", "model_max_length"):
        if sheet.given(key) or sheet.release.defaults.get(key):  # a script of its own has a default
            _tokens(file, key)
            break
    else:
        if sheet.get("max_length") is not None:
            _tokens(file, "max_length")
    if file.is_trl and sheet.given("max_length") and sheet.given("max_seq_length"):
        meaning.say("sequence_length", sheet.count("max_length"), "max_length")
    _both_texts(file)
    sheet.get("max_target_length")
    if "sequence_length" not in meaning.open:
        meaning.ask("sequence_length", "the script's, or the data's (--seq)")


def _both_texts(file: TrainingFile) -> None:
    """Two lengths: of a text and its translation, or of two parts of one text for a model without a decoder apart."""
    sheet, meaning = file.sheet, file.meaning
    for one, other in (("max_source_length", "max_target_length"), ("source_max_len", "target_max_len")):
        both = [sheet.count(key) for key in (one, other)]
        if both[0] is None or both[1] is None:
            continue
        shape = sheet.shape_of(sheet.text("model_name_or_path") or "")
        of_one_text = one == "source_max_len" or (shape is None and losses.task_of(file) in OF_PAIRS)
        if of_one_text or (shape is not None and shape.decoder_layers is None):
            meaning.say("sequence_length", both[0] + both[1], one, other)
        elif sheet.given(one) and sheet.given(other):
            meaning.say("target_length", both[1], other)


def _sampled(file: TrainingFile) -> None:
    """Say the tokens of a sampled sequence: the prompt, where a file says how long it is, and the completion."""
    sheet, prompt, completion = file.sheet, "max_prompt_length", "max_completion_length"
    before, after = sheet.count(prompt), sheet.count(completion)
    if before and after:
        file.meaning.say("sequence_length", before + after, prompt, completion)
    reason = f"it is the length of the longest prompt plus {completion}" + (f" ({after})" if after else "")
    file.meaning.ask("sequence_length", f"{reason} (--seq N)")


def _tokens(file: TrainingFile, key: str) -> None:
    text = file.sheet.text(key) or ""
    if unknowns(text):
        file.meaning.ask("sequence_length", f"{key} is {shown(text)}, which only the caller knows (--seq N)")
    else:
        file.meaning.say("sequence_length", file.sheet.count(key), key)


def batch(file: TrainingFile) -> None:
    """Say the micro-batch and the accumulation steps."""
    sheet, meaning = file.sheet, file.meaning
    key = "per_device_train_batch_size"
    if sheet.given("per_gpu_train_batch_size") and not sheet.given(key):
        key = "per_gpu_train_batch_size"
    for ours, name in (("micro_batch_size", key), (STEPS, STEPS)):
        text = sheet.text(name) or ""
        if unknowns(text):
            meaning.ask(ours, f"{name} is {shown(text)}, which only the caller knows")
        else:
            meaning.say(ours, sheet.count(name), name)


PROGRAM = Program(
    "training-arguments",
    RELEASES,
    TABLE,
    read,
    recognising.recognise,
    recognising.release_of_trainer,
    recognising.why_trainer,
    decides_precision=True,
)

TRL = Program(
    "trl",
    TRL_RELEASES,
    TABLE,
    read_trl,
    recognising.recognise_trl,
    recognising.release_of_trl,
    recognising.why_trl,
    decides_precision=True,
    started=command.started,
)
