"""ms-swift: its commands, and the `args.json` that it keeps of a run. Its trainers are Transformers' and TRL's.

Source: modelscope/ms-swift 4.6.0.dev0 (3602360a), swift/arguments/sft_args.py (_init_deepspeed, _init_fsdp),
base_args/model_args.py (_init_mixed_precision), base_args/quant_args.py, swift/trainers/arguments.py (the accumulation
steps), swift/trainers/mixin.py (_fix_gradient_checkpointing), swift/pipelines/train/tuner.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import trainer
from vramplan.configs.programs.arguments import read_file
from vramplan.configs.programs.arguments.computing import DTYPES
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.configs.programs.arguments.keys import CLASSIFIER
from vramplan.configs.programs.arguments.peft_kinds import BELOW, KIND
from vramplan.configs.programs.ms_swift import command
from vramplan.configs.programs.ms_swift.keys import OF_OLD_RELEASES, RELEASES, RENAMED, TABLE, TUNER
from vramplan.configs.sheet import Meaning, Program, Sheet
from vramplan.configs.shell import unknowns
from vramplan.configs.written import Written

OF_ITS_OWN = (
    *(TUNER, "train_type", "sft_type", "quant_method", "quant_bits", "attn_impl", "rlhf_type", "freeze_vit"),
    *("split_dataset_ratio", "loss_scale", "truncation_strategy", "swanlab_exp_name", "load_args"),
)

OF_AXOLOTL = frozenset(["base_model", "micro_batch_size"])

OF_RELEASES_1_AND_2 = ("sft_type", "lora_dropout_p", "template_type", "train_dataset_sample", "model_id_or_path")
"""Names of arguments that release 3 renamed; examples/pytorch/llm/scripts at v1.0 and v2.0."""

TASKS = {"rm": "reward", "simpo": "cpo", "pt": "sft"}
"""What TRL calls the methods that it calls otherwise."""

SCRIPT = re.compile(r"(.*/)?llm_|\.py$")
"""What stands around the method in the name of a script of releases 1 and 2: `src/llm_sft.py`."""

STEPS = "gradient_accumulation_steps"
BATCH = 16  # of all devices, where no steps are given

OTHER_TUNERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "adalora": (
        "ADALORA",
        {"adalora_init_r": "init_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"},
    ),
    "vera": ("VERA", {"vera_rank": "r", "vera_dropout": "vera_dropout"}),
    "boft": ("BOFT", {"boft_block_size": "boft_block_size", "boft_block_num": "boft_block_num"}),
    "fourierft": ("FOURIERFT", {"fourier_n_frequency": "n_frequency"}),
}
"""Adapters beside LoRA: their kinds in PEFT, and the arguments of their configurations."""

FREQUENCIES = 2000  # of FourierFT, which is 1000 in PEFT

DEEPSPEED = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
"""Names of the DeepSpeed files in swift/config."""

FSDP2 = {"fsdp": "full_shard auto_wrap", "fsdp_config.fsdp_version": 2, "fsdp_config.reshard_after_forward": True}
"""swift/config/fsdp2.json, but for its checkpoints."""


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are ms-swift's alone."""
    found = sum(key in keys for key in {*OF_ITS_OWN, *OF_RELEASES_1_AND_2})
    if "sft_type" in keys and "model_type" in keys:  # which names the model there
        return len(keys)
    if TUNER in keys and "model" in keys and not OF_AXOLOTL & keys.keys():  # of release 4
        return found + 8
    return found + 2 * ("model" in keys or "model_id_or_path" in keys) if found > 1 else 0


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a command of ms-swift, in the terms of the Trainer's arguments."""
    if sheet.given("sft_type") and not sheet.given("model_id_or_path") and not sheet.given("model"):
        _put(sheet, "model", (sheet.text("model_type") or "").replace("1half", "1.5"), "model_type")
    trainer.renamed(sheet, OF_OLD_RELEASES)
    method = _task(sheet)
    if method is None:
        return
    _tuner(sheet)
    _quantized(sheet, meaning)
    trainer.renamed(sheet, RENAMED)
    _precision(sheet)
    if sheet.given("global_world_size"):  # of args.json
        _put(sheet, "launcher.nproc_per_node", sheet.count("global_world_size"), "global_world_size")
    sharded = _devices(sheet)
    _steps(sheet, meaning, method)
    if sheet.text("attn_implementation") == "flash_attn":
        _put(sheet, "attn_implementation", "flash_attention_2", over=True)
    started = trainer.devices(sheet)
    if sheet.flag("gradient_checkpointing") and (sharded or started in (None, 1)):
        _put(sheet, "gradient_checkpointing_kwargs.use_reentrant", True)
    for key in ("freeze_vision_tower", "freeze_merger"):
        _put(sheet, key, True)
    _lengths_and_loss(sheet, meaning, method)
    read_file(TrainingFile(sheet, meaning, is_trl=True))
    _further(sheet, meaning, started)


def _put(sheet: Sheet, key: str, value: Any, of: str | None = None, *, over: bool = False) -> None:
    """A setting that follows from another one, at its place."""
    if over or key not in sheet.written:
        place = sheet.written.get(of or key, Written(None))
        sheet.written[key] = place._replace(value=value)


def _task(sheet: Sheet) -> str | None:
    """What is trained, in TRL's words, which is given the place of the command's; None where it is not modelled."""
    kind = (sheet.text("task_type") or "causal_lm").lower()
    if kind not in ("causal_lm", "seq_cls"):
        sheet.refuse("task_type", f"{kind} is not modelled: a loss over whole texts", "causal_lm or seq_cls")
        return None
    if kind == "seq_cls":
        _put(sheet, CLASSIFIER, True, "task_type")
    verb = sheet.text("program") or ("rlhf" if sheet.given("rlhf_type") else "sft")
    verb = SCRIPT.sub("", verb)
    method = (sheet.text("rlhf_type") or "dpo").lower() if verb == "rlhf" else verb
    if method == "simpo":
        _put(sheet, "loss_type", "simpo", "rlhf_type", over=True)
    _put(
        sheet, "program", TASKS.get(method, method), "program" if "program" in sheet.written else "rlhf_type", over=True
    )
    return method


def _tuner(sheet: Sheet) -> None:
    """Say in PEFT's words what is trained beside the model."""
    word = (sheet.text(TUNER) or "lora").lower()
    if word in OTHER_TUNERS:
        kind, words = OTHER_TUNERS[word]
        _put(sheet, KIND, kind, TUNER)
        if kind == "FOURIERFT":
            _put(sheet, "fourier_n_frequency", FREQUENCIES, TUNER)
        for name, argument in {**words, "target_modules": "target_modules"}.items():
            if sheet.given(name):
                _put(sheet, BELOW + argument, sheet.get(name), name)
        _put(sheet, f"{BELOW}target_modules", "all-linear", TUNER)
    elif word not in ("lora", "full"):
        sheet.problem(TUNER, f"{word} is not modelled", f"lora, full, {', '.join(OTHER_TUNERS)}")
    if word != "lora":
        _put(sheet, "use_peft", False, TUNER)


def _quantized(sheet: Sheet, meaning: Meaning) -> None:
    bits, how = sheet.text("quant_bits"), (sheet.text("quant_method") or "bnb").lower()
    if bits in (None, "0", "None"):
        return
    if how == "bnb" and bits in ("4", "8"):
        _put(sheet, f"load_in_{bits}bit", True, "quant_bits")
    elif how == "bnb":
        sheet.problem("quant_bits", f"bitsandbytes has no {bits} bits", "4 or 8")
    else:
        meaning.ask("quantization", f"quant_method is {how}, of which no job has a word (--quantization nf4)")


def _precision(sheet: Sheet) -> None:
    """Mixed precision by the type of the weights: bf16, and fp16 for every other."""
    word = (sheet.text("torch_dtype") or sheet.text("dtype") or "auto").lower()
    if unknowns(word):
        return
    half = DTYPES.get(word, "bf16") in ("fp16", "fp32")
    for key, on in (("bf16", not half), ("fp16", half)):
        _put(sheet, key, on, "torch_dtype")


def _devices(sheet: Sheet) -> bool:
    """Give files that come with ms-swift their paths; whether DeepSpeed or FSDP shares the model."""
    name = (sheet.text("deepspeed") or "").removeprefix("default-")
    if name in DEEPSPEED:
        _put(sheet, "deepspeed", f"swift/config/{name}.json", over=True)
    if sheet.text("fsdp") == "fsdp2":
        for key, value in FSDP2.items():
            _put(sheet, key, value, "fsdp", over=True)
        _put(sheet, "fsdp_config.activation_checkpointing", True, "fsdp")
        _put(sheet, "gradient_checkpointing", False, "fsdp", over=True)
    return bool(name) or bool(sheet.text("fsdp"))


def _steps(sheet: Sheet, meaning: Meaning, method: str) -> None:
    """The accumulation steps that make a batch of 16 on all devices, where none are given."""
    if sheet.given(STEPS):
        return
    batch, started = sheet.count("per_device_train_batch_size"), trainer.devices(sheet) or sheet.devices
    if method == "grpo":
        _put(sheet, STEPS, 1, "rlhf_type")
    elif batch and started:
        _put(sheet, STEPS, max(1, math.ceil(BATCH / batch / started)), "per_device_train_batch_size")
    else:
        meaning.ask(STEPS, f"they make a batch of {BATCH} on all GPUs, whose number the launcher says (--gpus N)")


def _lengths_and_loss(sheet: Sheet, meaning: Meaning, method: str) -> None:
    """The length of what is sampled from, and losses of ms-swift's own.

    Source: swift/trainers/seq2seq_trainer.py, _prepare_inputs; swift/loss/mapping.py.
    """
    if method == "grpo":
        trainer.renamed(sheet, {"max_length": "max_prompt_length"})
    if method not in ("sft", "pt"):
        return
    if sheet.given("loss_type"):
        meaning.lack("loss_type", f"{sheet.text('loss_type')}, a loss of ms-swift's own, and that of tokens is counted")
        del sheet.written["loss_type"]
    if method == "sft" and sheet.flag("use_logits_to_keep") is not False and not sheet.flag("use_liger_kernel"):
        what = "logits of tokens without a label are left out, and those of all tokens are counted"
        meaning.lack("use_logits_to_keep", what)


def _further(sheet: Sheet, meaning: Meaning, started: int | None) -> None:
    """What only ms-swift has: the element type of adapters, a reference beside them, and sequences in parts."""
    if sheet.text("ref_model") and "dpo_reference" in meaning.job:
        meaning.say("dpo_reference", "model", "ref_model")
        trainer.other_reference(sheet, meaning, "ref_model", "model")
    kind = sheet.text("lora_dtype")
    if kind and "adapter.kind" in meaning.job and kind in DTYPES:
        meaning.say("adapter.dtype", DTYPES[kind], "lora_dtype")
    shared = sheet.count("sequence_parallel_size") or 1
    if shared > 1:
        meaning.say("parallel.context", shared, "sequence_parallel_size")
        if started and "parallel.data" in meaning.job:
            meaning.say("parallel.data", max(1, started // shared), "sequence_parallel_size")
    if "sequence_length" in meaning.open and not sheet.given("max_length"):
        meaning.open["sequence_length"] = "max_length is that of the model: the longest sample decides (--seq N)"


PROGRAM = Program("ms-swift", RELEASES, TABLE, read, recognise, decides_precision=True, started=command.started)
