"""Megatron-LM: a shell script, its arguments as text, or the YAML of its functional tests (`MODEL_ARGS`).

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py and megatron/training/config/*.py
(arguments and defaults), megatron/core/{model_parallel_config,optimizer/optimizer_config}.py,
megatron/core/transformer/transformer_config.py, megatron/core/distributed/distributed_data_parallel_config.py;
examples/academic_paper_scripts (arguments of releases before core). The sheet has an argument as its name without
`--`, with `_` for `-`; `launcher.*` are those of torchrun.
"""

from __future__ import annotations

import re

from vramplan.configs.programs import megatron_beside as beside
from vramplan.configs.programs.megatron import computing, devices, model, options
from vramplan.configs.programs.megatron.asked import MegatronMeaning
from vramplan.configs.programs.megatron.keys import RELEASES, TABLE
from vramplan.configs.sheet import Meaning, Program, Sheet

SERVES = re.compile(
    r"generat|inference|server|export|convert|prune|quantize|^evaluat|^merge|^preprocess|^analy|hf2m|hf2te|mmlu|^validate",
    re.IGNORECASE,
)
"""Programs beside training, of tools/, examples/inference, examples/post_training/modelopt and Pai-Megatron-Patch."""
SERVING_TASK = re.compile(r"EVAL|PROMPT|GEN", re.IGNORECASE)
"""Values of `--task` of tasks/msdp/main.py that train nothing."""


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a Megatron command."""
    read_command(MegatronMeaning(sheet, meaning))


def read_command(asked: MegatronMeaning) -> None:
    """The job of the whole command."""
    sheet, meaning = asked.sheet, asked.meaning
    meaning.say("runtime", "megatron", "program")
    program = (sheet.text("program") or "").rsplit("/", 1)[-1]
    if SERVES.search(program) or SERVING_TASK.search(sheet.text("task") or ""):
        message = f"{program} generates, evaluates or converts and trains nothing"
        sheet.refuse("program", message, "give the script of a training run")
    for key in ("incoming_requests_per_sec", "incoming_requests_per_step"):  # of tests of inference
        if sheet.given(key):
            sheet.refuse(key, "the file serves requests and trains nothing", "give the script of a training run")
    if sheet.given("retro_tasks"):  # tools/retro, which embeds and indexes texts with arguments of a BERT
        message = "the script prepares texts for a retriever and trains nothing"
        sheet.refuse("retro_tasks", message, "give the script of a training run")
    if sheet.flag("retro_add_retriever"):
        message = "a model that attends to retrieved texts is not modelled"
        sheet.refuse("retro_add_retriever", message, "give the script of a language model without a retriever")
    mode = (sheet.text("train_mode") or "pretrain").lower()  # of Pai-Megatron-Patch and what is made from it
    if mode not in ("pretrain", "finetune", "sft"):
        sheet.problem("train_mode", f"{mode} is not modelled as Megatron computes it", "pretrain, finetune or sft")
    if program.startswith("pretrain_vision"):  # of releases before core 0.20
        message = "a model of images is not modelled as Megatron computes it"
        sheet.refuse("program", message, "--model vit-base-patch16-224, without the file")
    kind = model.kind_of(asked, program)
    length = asked.count("seq_length", "sequence_length")
    model.model_of(asked, kind)
    if sheet.given("decoder_seq_length") and not kind.is_encoder_decoder:
        length = asked.count("decoder_seq_length", "sequence_length")  # `--seq-length` are the tokens of an image
    elif sheet.given("total_seq_length"):
        length = asked.count("total_seq_length", "sequence_length")
    if kind.is_encoder_decoder:
        length = asked.count("encoder_seq_length", "sequence_length") or length
        target = asked.count("decoder_seq_length")
        if target:
            meaning.say("target_length", target, "decoder_seq_length")
    else:
        length = length or asked.count("encoder_seq_length", "sequence_length")
    if length:
        meaning.say("sequence_length", length, "seq_length")
    else:
        meaning.ask("sequence_length", "--seq-length is missing")
    devices.batch_of(asked)
    computing.numbers_of(asked)
    computing.checkpointing(asked)
    computing.attention(asked, kind)
    devices.sharding_of(asked)
    for key in ("freeze_lm", "freeze_llm"):  # --freeze-llm: of scripts around Megatron-Bridge
        beside.frozen(sheet, meaning, key)


PROGRAM = Program("megatron-lm", RELEASES, TABLE, read, options.recognise, prepared=options.prepared)
