"""verl's trainer of SFT: `torchrun -m verl.trainer.fsdp_sft_trainer key=value`, and the YAML that it has them from.

Its trainers of PPO, GRPO and their kin stand in verl_policy.py.

Source: volcengine/verl 0.7.0 (f9c855f7), verl/trainer/config/sft_trainer.yaml and optim/fsdp.yaml (keys and defaults),
verl/trainer/fsdp_sft_trainer.py: how the model is loaded and wrapped, and how a batch is divided; the same files of
0.4.0 (07584894) and 0.3.0.post1 (070ed6ac). `data.micro_batch_size` is that of all devices until pull request 136 of
January 2025, and read nowhere since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.command import Words, assigned, names_file, option, processes
from vramplan.configs.programs import verl_policy
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet
from vramplan.configs.shell import Script
from vramplan.configs.table import ProgramRelease, Table, names

MODULE = "verl.trainer.fsdp_sft_trainer"
FILE = "verl/trainer/config/sft_trainer.yaml"

UNDERSTOOD = names(
    """
    data.train_batch_size data.micro_batch_size_per_gpu data.max_length model.partial_pretrain model.strategy
    model.fsdp_config.model_dtype model.fsdp_config.cpu_offload model.fsdp_config.offload_params
    model.enable_gradient_checkpointing model.lora_rank model.lora_alpha model.target_modules model.use_liger
    optim.clip_grad optim.optimizer optim.optimizer_impl ulysses_sequence_parallel_size trainer.device
    """
)
WITHOUT_EFFECT = names(
    """
    data.* model.trust_remote_code model.use_shm model.external_lib optim.lr optim.betas optim.weight_decay
    optim.warmup_steps_ratio optim.lr_* optim.total_training_steps optim.min_lr_ratio optim.num_cycles
    optim.warmup_style use_remove_padding trainer.* hydra.* defaults
    """
)
UNMODELLED = {
    "data.micro_batch_size": "read by no release since January 2025: micro_batch_size_per_gpu is counted",
    "model.lora_adapter_path": "an adapter that is trained on: that of lora_rank is counted",
    "model.fsdp_config.wrap_policy.*": "which modules FSDP gathers together: blocks are counted",
    "optim.override_optimizer_config": "further arguments of the optimizer",
}
DEFAULTS: dict[str, Any] = {
    "data.train_batch_size": 256,
    "data.micro_batch_size_per_gpu": 4,
    "data.max_length": 1024,
    "model.strategy": "fsdp2",
    "model.fsdp_config.model_dtype": "fp32",
    "model.fsdp_config.cpu_offload": False,
    "model.fsdp_config.offload_params": False,
    "model.enable_gradient_checkpointing": True,
    "model.lora_rank": 0,
    "model.lora_alpha": 16,
    "model.target_modules": "all-linear",
    "model.use_liger": False,
    "optim.clip_grad": 1.0,
    "optim.optimizer": "AdamW",
    "ulysses_sequence_parallel_size": 1,
}
OF_0_4 = {**DEFAULTS, **verl_policy.OF_PADDED, "model.enable_gradient_checkpointing": False}
RELEASES = (
    ProgramRelease(
        "0.7.0",
        "2026-01-05",
        "volcengine/verl 0.7.0 (f9c855f7), sft_trainer.yaml, ppo_trainer.yaml",
        {**DEFAULTS, **verl_policy.DEFAULTS},
    ),
    ProgramRelease("0.4.0", "2025-06-06", "volcengine/verl 0.4.0 (07584894), sft_trainer.yaml", OF_0_4),
    ProgramRelease(
        "0.3.0",
        "2025-04-03",
        "volcengine/verl 0.3.0.post1 (070ed6ac), sft_trainer.yaml",
        {**OF_0_4, "model.strategy": "fsdp"},
    ),
)
WHOLE = "model.fsdp_config.wrap_policy.min_num_params"
"""A key of whole files alone: one that has it and no `model.strategy` is of a release before May 2025."""

VERSIONS = {"fsdp": 1, "fsdp2": 2}
"""Values of `model.strategy`; without it, until May 2025, it is `FullyShardedDataParallel`."""

OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam", "AdamW8bit": "adamw-8bit", "SGD": "sgd"}
HALVES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32", "float": "fp32"}


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are this trainer's alone."""
    own = ("model.partial_pretrain", "data.micro_batch_size_per_gpu", "ulysses_sequence_parallel_size")
    if verl_policy.has_its_keys(keys):
        return 5
    found = sum(key in keys for key in own)
    return 2 * found if own[0] in keys else 0


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a run of SFT, or of the update of a policy."""
    if sheet.text("trainer.device") not in (None, "cuda"):
        meaning.lack("trainer.device", "a device that is no GPU of NVIDIA's")
    if verl_policy.has_its_keys(sheet.written):
        _defaults_around(sheet, meaning, verl_policy.FILE)
        verl_policy.read(sheet, meaning, HALVES, OPTIMIZERS)
        return
    _defaults_around(sheet, meaning, FILE)
    for key in ("trainer.n_gpus_per_node", "trainer.nnodes"):  # which the launcher of SFT has
        sheet.get(key)
    meaning.say("runtime", "transformers", "model.partial_pretrain")
    name = sheet.text("model.partial_pretrain")
    if name is None:
        meaning.ask("model", "the command names no model.partial_pretrain (--model NAME)")
    else:
        meaning.say("model", name, "model.partial_pretrain")
    meaning.say("sequence_length", sheet.count("data.max_length"), "data.max_length")
    _batch(sheet, meaning)
    word = sheet.word("optim.optimizer", OPTIMIZERS)
    sheet.text("optim.optimizer_impl")
    if word:
        meaning.say("optimizer", word, "optim.optimizer")
    meaning.say("max_gradient_norm", sheet.number("optim.clip_grad"), "optim.clip_grad")
    peft = _adapter(sheet, meaning)
    _devices(sheet, meaning)
    _precision(sheet, meaning, peft)
    checkpoints = sheet.flag("model.enable_gradient_checkpointing")
    meaning.say("activation_checkpointing", "full" if checkpoints else "none", "model.enable_gradient_checkpointing")
    meaning.say("attention", "flash", "fsdp_sft_trainer.py loads the model with flash_attention_2")
    if sheet.flag("model.use_liger"):
        meaning.say("liger_kernels", ["rms-norm", "glu", "rope"], "model.use_liger")
    meaning.say("packing", False, "each sample is filled up to data.max_length")


def _defaults_around(sheet: Sheet, meaning: Meaning, file: str) -> None:
    """Take the defaults of the copy of verl that the file stands in, where it is there."""
    own = sheet.opened(file)
    if own is None or file in str(next((item.file for item in sheet.written.values()), None)):
        return
    for key in (UNDERSTOOD | verl_policy.UNDERSTOOD) & own.keys() - sheet.written.keys():
        sheet.written[key] = own[key]
    if WHOLE in own:
        sheet.written[WHOLE] = own[WHOLE]
    meaning.note(f"{file} around the file has the defaults")


def _batch(sheet: Sheet, meaning: Meaning) -> None:
    """The micro-batch of a device, and the steps that make the batch of all of them."""
    micro, whole = sheet.count("data.micro_batch_size_per_gpu"), sheet.count("data.train_batch_size")
    meaning.say("micro_batch_size", micro, "data.micro_batch_size_per_gpu")
    split = sheet.count("ulysses_sequence_parallel_size") or 1
    if not micro or not whole:
        return
    if sheet.devices is None:
        what = f"data.train_batch_size {whole} is shared by the GPUs of the launcher (--gpus N)"
        meaning.ask("gradient_accumulation_steps", what)
        return
    replicas = max(1, sheet.devices // split)
    each, left = divmod(whole, replicas * micro)
    if left:
        message = f"{whole} is no multiple of {micro} sequences on {replicas} replicas, as the trainer asserts"
        sheet.problem("data.train_batch_size", message, "another number of GPUs (--gpus N), or another micro-batch")
        return
    meaning.say("gradient_accumulation_steps", each, "data.train_batch_size", "data.micro_batch_size_per_gpu")


def _adapter(sheet: Sheet, meaning: Meaning) -> bool:
    """Whether there is an adapter: a rank above 0 makes one, without dropout."""
    rank, alpha = sheet.count("model.lora_rank"), sheet.count("model.lora_alpha")
    targets = sheet.texts("model.target_modules") or ["all-linear"]
    if not rank:
        return False
    meaning.say("adapter.kind", "lora", "model.lora_rank")
    meaning.say("adapter.rank", rank, "model.lora_rank")
    meaning.say("adapter.targets", "all-linear" if targets == ["all-linear"] else targets, "model.target_modules")
    meaning.say("adapter.alpha", alpha, "model.lora_alpha")
    meaning.say("adapter.dropout", 0.0, "PEFT's LoraConfig")
    return True


def _devices(sheet: Sheet, meaning: Meaning) -> None:
    """FSDP over all devices; Ulysses' groups have the parts of one batch, and share the model with the others."""
    if sheet.given(WHOLE) and not sheet.given("model.strategy"):
        version: Any = 1
    else:
        version = sheet.word("model.strategy", VERSIONS)
    meaning.say("parallel.sharding", "fsdp", "fsdp_sft_trainer.py")
    if version:
        meaning.say("parallel.fsdp_version", version, "model.strategy")
    meaning.say("parallel.reduce_dtype", "fp32", "fsdp_sft_trainer.py reduces gradients in fp32")
    meaning.say("parallel.no_sync", False, "fsdp_sft_trainer.py reduces gradients in every micro-step")
    split = sheet.count("ulysses_sequence_parallel_size") or 1
    if split > 1:
        meaning.say("parallel.context", split, "ulysses_sequence_parallel_size")
    if sheet.devices is None:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")
    else:
        meaning.say("parallel.data", max(1, sheet.devices // split), "the launcher")
    offloads = sheet.flag("model.fsdp_config.cpu_offload")
    if sheet.flag("model.fsdp_config.offload_params") and offloads:
        meaning.say("offload", ["parameters", "gradients", "optimizer"], "model.fsdp_config.cpu_offload")


def _precision(sheet: Sheet, meaning: Meaning, peft: bool) -> None:
    """Weights of `model_dtype` that FSDP gathers in bf16."""
    key = "model.fsdp_config.model_dtype"
    word = sheet.word(key, HALVES)
    if word == "bf16" and not peft:
        meaning.say("precision", "pure-bf16", key)
        return
    meaning.say("precision", "fsdp-bf16", key)
    if word == "bf16":
        meaning.say("weight_dtype", "bf16", key)


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    paths = tuple(path for one in (MODULE, verl_policy.MODULE) for path in (one, one.replace(".", "/") + ".py"))
    at = next((place for place, word in enumerate(words) if word.text.endswith(paths)), None)
    if at is None:
        return None
    rest = words[at + 1 :]
    folder, name = (
        option(rest, f"--config-{word}", file) or option(rest, f"--config_{word}", file) for word in ("path", "name")
    )
    config = None
    if folder is not None and names_file(str(folder.value)):
        config = folder
    elif name is not None:
        path = f"{folder.value}/{name.value}" if folder is not None else str(name.value)
        config = name._replace(value=f"{path.removesuffix('.yaml')}.yaml")
    return Launched(config, assigned(rest, file), processes(words[:at]))


TABLE = Table(
    UNDERSTOOD | verl_policy.UNDERSTOOD,
    WITHOUT_EFFECT | verl_policy.WITHOUT_EFFECT,
    {**UNMODELLED, **verl_policy.UNMODELLED},
    is_extended=True,
)
PROGRAM = Program("verl", RELEASES, TABLE, read, recognise, started=started)
