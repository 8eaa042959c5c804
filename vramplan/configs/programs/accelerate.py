"""Accelerate: the YAML or JSON file of `accelerate launch --config_file`, or the options of `accelerate launch`.

Source: huggingface/accelerate 1.15.0.dev0 (16cb6eb8), src/accelerate/commands/config/config_args.py (ClusterConfig:
keys and defaults), commands/config/cluster.py (keys below the mappings), utils/dataclasses.py
(FullyShardedDataParallelPlugin, DeepSpeedPlugin, ParallelismConfig) and utils/constants.py (words).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs import shell
from vramplan.configs.programs import deepspeed, trainer, zero
from vramplan.configs.programs.accelerate_keys import RELEASES, UNDERSTOOD, UNMODELLED, WITHOUT_EFFECT
from vramplan.configs.sheet import ALONE, BY_DEEPSPEED, DEVICES, Meaning, Program, Sheet
from vramplan.configs.table import Table, names
from vramplan.configs.written import Written

FSDP, DEEPSPEED, MEGATRON, PARALLEL = "fsdp_config", "deepspeed_config", "megatron_lm_config", "parallelism_config"

TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_CPU", "XLA", "TPU", "MULTI_XPU", "MULTI_NPU")
SHARDINGS = {
    # utils/constants.py, FSDP_SHARDING_STRATEGY; a number is the place in it, from 1
    "full_shard": "fsdp",
    "1": "fsdp",
    "shard_grad_op": "fsdp-grad-op",
    "2": "fsdp-grad-op",
    "no_shard": "ddp",
    "3": "ddp",
    "hybrid_shard": "hsdp",
    "4": "hsdp",
    "hybrid_shard_zero2": "hsdp",
    "5": "hsdp",
    "true": "fsdp",
    "false": "fsdp-grad-op",
}
PRECISIONS = {
    "ddp": {"bf16": "amp-bf16", "fp16": "amp-fp16", "fp8": "fp8"},
    "fsdp": {"bf16": "fsdp-bf16", "fp16": "fsdp-fp16", "fp8": "fsdp-fp8"},
    "zero": {"bf16": "mixed-bf16", "fp16": "mixed-fp16", "fp8": "fp8"},
}
"""What `mixed_precision` means, by how the devices share the model."""

NAMED = "config_file"
"""A setting of `launching` alone: the file that `accelerate launch` names and that is not here."""

NODE = 8  # GPUs of a node, within which HYBRID_SHARD shards


def strategy_of(sharding: str) -> str:
    """A row of `PRECISIONS`."""
    return "zero" if sharding.startswith("zero") else "fsdp" if sharding.startswith(("fsdp", "hsdp")) else "ddp"


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are Accelerate's alone."""
    own: tuple[str, ...]
    own = ("distributed_type", "compute_environment", "mixed_precision", "num_machines", "machine_rank")
    own += ("main_training_function", "downcast_bf16", "rdzv_backend", "num_processes")
    found = sum(name in keys for name in own)
    return found + 2 if "distributed_type" in keys or NAMED in keys else found


def from_launcher(keys: Mapping[str, Written]) -> dict[str, Written]:
    """The options of `accelerate launch` as the settings of a file; nothing where none of them says how to run.

    Numbers that only the caller of a script knows are left open.
    """
    found: dict[str, Written] = {}
    for key, item in keys.items():
        name = key.removeprefix("launcher.")
        if name == key or (name in ("num_processes", "num_machines") and shell.unknowns(str(item.value))):
            continue
        group = next((group for start, group in _GROUPS.items() if name.startswith(start)), "")
        found[("deepspeed_config." if name in _DEEPSPEED_OPTIONS else group) + name] = item
    for option, kind in _KINDS.items():
        if option in found:
            item = found.pop(option)
            found.setdefault("distributed_type", item._replace(value=kind))
    return found


_GROUPS = {
    "fsdp_": "fsdp_config.",
    "parallelism_config_": "parallelism_config.",
    "megatron_lm_": "megatron_lm_config.",
}
_KINDS = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
    "multi_gpu": "MULTI_GPU",
}
_DEEPSPEED_OPTIONS = names(
    """
    deepspeed_config_file zero_stage offload_optimizer_device offload_param_device gradient_accumulation_steps
    gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_multinode_launcher offload_optimizer_nvme_path
    offload_param_nvme_path deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter
    deepspeed_moe_layer_cls_names
    """
)


OWN_LEAVES = ("MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock")
"""What stage 3 gathers as a whole by itself.

Source: deepspeedai/DeepSpeed 0.19.8, deepspeed/runtime/zero/leaf_module_config.py; accelerate 1.15.0,
accelerate/utils/dataclasses.py (DeepSpeedPlugin.set_moe_leaf_modules).
"""

_EIGHT = {"mixed_precision": "bf16", "num_processes": 8, "num_machines": 1}
_SHARDED = {"distributed_type": "FSDP", **_EIGHT, f"{FSDP}.fsdp_activation_checkpointing": False}
_ZERO = {"distributed_type": "DEEPSPEED", **_EIGHT}
SHIPPED: dict[str, dict[str, Any]] = {
    "single_gpu": {"distributed_type": "NO", **_EIGHT, "num_processes": 1},
    "multi_gpu": {"distributed_type": "MULTI_GPU", **_EIGHT},
    "fsdp1": {**_SHARDED, f"{FSDP}.fsdp_version": 1, f"{FSDP}.fsdp_reshard_after_forward": "FULL_SHARD"},
    "fsdp2": {**_SHARDED, f"{FSDP}.fsdp_version": 2, f"{FSDP}.fsdp_reshard_after_forward": True},
    "zero1": {**_ZERO, f"{DEEPSPEED}.zero_stage": 1, f"{DEEPSPEED}.gradient_accumulation_steps": 1},
    "zero2": {**_ZERO, f"{DEEPSPEED}.zero_stage": 2},
    "zero3": {**_ZERO, f"{DEEPSPEED}.zero_stage": 3},
}
"""What `accelerate_config` of TRL names, but for keys of no effect.

Source: huggingface/trl 1.10.0.dev0 (f2cd5771), trl/accelerate_configs/ and trl/cli/accelerate_config.py.
"""


def shipped(named: Written) -> dict[str, Written] | None:
    """The settings that TRL has under a name, at the place of the name; None where it has none."""
    found = SHIPPED.get(str(named.value))
    return None if found is None else {key: named._replace(value=value) for key, value in found.items()}


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of an Accelerate file."""
    kind = _kind(sheet)
    if sheet.flag("use_cpu") and kind == "NO":  # which the launchers of several processes do not look at
        meaning.note("use_cpu: one process trains on the CPU with it; a GPU is counted")
    meaning.say("runtime", "megatron" if kind == "MEGATRON_LM" else "transformers", "distributed_type")
    processes = sheet.count("num_processes")
    if kind == "NO" and NAMED not in sheet.written:
        processes = 1
    degrees = _degrees(sheet, meaning, processes, kind)
    if (path := sheet.text(NAMED)) is not None:
        meaning.ask("parallel.sharding", f"--{NAMED}: {shell.shown(path)} is not here; give that file too")
    elif kind == "FSDP":
        _fsdp(sheet, meaning)
    elif kind == "DEEPSPEED":
        _deepspeed(sheet, meaning)
    elif kind == "MEGATRON_LM":
        _megatron(sheet, meaning)
    elif kind == "MULTI_GPU":
        meaning.say("parallel.sharding", "ddp", "distributed_type")
    if "parallel.data" not in degrees and processes and processes > 0 and kind not in ("NO", "MEGATRON_LM"):
        split = meaning.job.get("parallel.tensor")  # of DeepSpeed's file
        meaning.say("parallel.data", processes if split is None else max(1, processes // split.value), "num_processes")
    _precision(sheet, meaning, kind)
    backend = sheet.text("dynamo_backend") or sheet.text("dynamo_config.dynamo_backend")
    if backend and backend.lower() != "no":
        meaning.say(
            "compile", True, "dynamo_backend" if sheet.given("dynamo_backend") else "dynamo_config.dynamo_backend"
        )
    for key in ("model", "sequence_length", "micro_batch_size", "gradient_accumulation_steps"):
        meaning.ask(key, "the training arguments'")
    if kind != "NO" or path is not None:
        meaning.ask("parallel.data", "num_processes, or --num_processes of accelerate launch (--gpus N)")


def _kind(sheet: Sheet) -> str:
    kind = sheet.text("distributed_type")
    if kind is None:
        for group, found in ((FSDP, "FSDP"), (DEEPSPEED, "DEEPSPEED"), (MEGATRON, "MEGATRON_LM")):
            if any(key.startswith(group + ".") for key in sheet.written):
                return found
        processes = sheet.count("num_processes")
        return "MULTI_GPU" if processes is not None and processes > 1 else "NO"
    if kind.upper() not in TYPES:
        sheet.problem("distributed_type", f"{kind!r} is not understood", ", ".join(TYPES[:5]))
        return "NO"
    if kind.upper() in TYPES[5:]:
        sheet.problem("distributed_type", f"{kind} is no training on GPUs of NVIDIA", ", ".join(TYPES[:5]))
    return kind.upper()


def _degrees(sheet: Sheet, meaning: Meaning, processes: int | None, kind: str) -> dict[str, int]:
    """The degrees of `parallelism_config`, by our keys."""
    prefix = f"{PARALLEL}.{PARALLEL}_"
    given = [key for key in sheet.written if key.startswith(prefix)]
    if kind == "MEGATRON_LM":
        return {}
    if not given:
        return {}
    sizes = {name: sheet.count(f"{prefix}{name}_size") or 1 for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    data = sizes["dp_replicate"] * sizes["dp_shard"]
    others = sizes["tp"] * sizes["cp"] * sizes["sp"]
    if processes and processes > 0 and data * others != processes:
        sheet.problem(
            "num_processes", f"{processes} is not the product of the sizes of parallelism_config, {data * others}"
        )
    keys = tuple(f"{prefix}{name}_size" for name in ("dp_replicate", "dp_shard"))
    meaning.say("parallel.data", data, *(key for key in keys if sheet.given(key)))
    found = {"parallel.data": data}
    for name, ours in (("tp", "tensor"), ("cp", "context")):
        if sizes[name] > 1:
            meaning.say(f"parallel.{ours}", sizes[name], f"{prefix}{name}_size")
            found[f"parallel.{ours}"] = sizes[name]
    if sizes["sp"] > 1:
        meaning.say("parallel.context", sizes["sp"], f"{prefix}sp_size")
        meaning.lack("parallelism_config_sp_size", "Ulysses splits heads within the attention, and a ring is counted")
    return found


def _fsdp(sheet: Sheet, meaning: Meaning) -> None:
    version = sheet.count(f"{FSDP}.fsdp_version") or 1
    if version not in (1, 2):
        sheet.problem(f"{FSDP}.fsdp_version", f"there is no version {version} of FSDP", "1 or 2")
    key = f"{FSDP}.fsdp_reshard_after_forward"
    old = f"{FSDP}.fsdp_sharding_strategy"
    word = "fsdp"
    if sheet.given(key) or sheet.given(old):
        key = key if sheet.given(key) else old
        word = sheet.word(key, SHARDINGS) or "fsdp"
    sheet.get(old)
    shard = sheet.count(f"{PARALLEL}.{PARALLEL}_dp_shard_size")
    replicas = sheet.count(f"{PARALLEL}.{PARALLEL}_dp_replicate_size")
    context = sheet.count(f"{PARALLEL}.{PARALLEL}_cp_size") or 1
    together = (shard or 1) * context  # the devices of a context shard the model too
    if replicas and replicas > 1 and together > 1:
        word = f"hsdp:{together}"
    elif word == "hsdp":
        word = f"hsdp:{NODE}"
        meaning.note(f"HYBRID_SHARD shards within a node; a node of {NODE} GPUs is assumed")
    meaning.say("parallel.sharding", word, key if sheet.given(key) else "distributed_type")
    if word != "ddp":
        meaning.say("parallel.fsdp_version", version, f"{FSDP}.fsdp_version")
        trainer.wrapping(sheet, meaning, f"{FSDP}.fsdp_auto_wrap_policy", f"{FSDP}.fsdp_transformer_layer_cls_to_wrap")
    key = f"{FSDP}.fsdp_offload_params"
    if sheet.flag(key):
        meaning.say("offload", ["parameters", "gradients", "optimizer"], key)
    key = f"{FSDP}.fsdp_activation_checkpointing"
    checkpoints = sheet.flag(key)
    if checkpoints is not None:
        meaning.say("activation_checkpointing", "full" if checkpoints else "none", key)
    if sheet.flag(f"{FSDP}.fsdp_use_orig_params") is False:
        meaning.note("fsdp_use_orig_params: false: the parameters of a unit are one flat tensor, for the optimizer too")
    for key in (f"{FSDP}.fsdp_backward_prefetch", f"{FSDP}.fsdp_backward_prefetch_policy"):  # until 0.25 the second
        prefetch = sheet.text(key)
        if prefetch and prefetch.upper() not in ("BACKWARD_PRE", "1"):
            meaning.lack(key, f"{prefetch} gathers later than BACKWARD_PRE, which is counted")


SECTIONS = re.compile(r"deepspeed_config\.(zero_optimization|bf16|fp16|optimizer|activation_checkpointing|stage)\b")
"""Sections and keys of DeepSpeed's own file, which the launcher takes for its options and hands on to nobody."""


def _deepspeed(sheet: Sheet, meaning: Meaning) -> None:
    key = f"{DEEPSPEED}.deepspeed_config_file"
    path = sheet.text(key)
    if path is None:
        lost = sorted({name.split(".")[1] for name in sheet.written if SECTIONS.match(name)})
        if lost:
            lacking = (
                "reach nobody here; zero_stage and mixed_precision hold (deepspeed_config_file names a file of them)"
            )
            meaning.note(f"{DEEPSPEED}: {', '.join(lost)} of DeepSpeed's own file {lacking}")
        _inline(sheet, meaning)
        return
    meaning.pointed[key] = path
    written = sheet.opened(path)
    if written is not None:
        program = deepspeed.PROGRAM
        zero.is_of_deepspeed(sheet, written, key)
        other = Sheet(written, program.releases[0], devices=sheet.devices or _positive(sheet))
        said = Meaning()
        deepspeed.read(other, said)
        sheet.adopt(key, other, program.table)
        for name, told in said.job.items():
            if name not in ("runtime", "parallel.data"):
                meaning.say(name, told.value, *(f"{key}:{one}" for one in told.of))
        for text in said.notes:
            meaning.note(text)
        for name, what in said.lacking.items():
            meaning.lack(f"{key}:{name}", what)
        if "gradient_accumulation_steps" not in said.job and not _left_to_trainer(written):
            meaning.say("gradient_accumulation_steps", 1, key)
        return
    facts = zero.shipped(path)
    if facts is None:
        meaning.ask("parallel.sharding", f"{key}: {path} is not here; give that file too")
        return
    meaning.note(f"{key}: {path} is read as Accelerate has it")
    zero.deepspeed(sheet, meaning, facts, key)
    for name in ("optimizer", "gradient_accumulation_steps"):
        if name in facts:
            meaning.say(name, facts[name], key)
    for name in ("bf16", "fp16"):
        if facts.get(name):
            meaning.say("precision", f"mixed-{name}", key)


def _left_to_trainer(written: Mapping[str, Any]) -> bool:
    found = written.get("gradient_accumulation_steps")
    return found is not None


def _positive(sheet: Sheet) -> int | None:
    number = sheet.count("num_processes")
    return number if number and number > 0 else None


def _inline(sheet: Sheet, meaning: Meaning) -> None:
    """DeepSpeedPlugin.__post_init__ makes a configuration of these few settings."""
    key = f"{DEEPSPEED}.zero_stage"
    stage = sheet.count(key) or 0
    if stage not in (0, 1, 2, 3):
        sheet.problem(key, f"{stage} is no stage of ZeRO", "0, 1, 2 or 3")
        stage = 0
    meaning.say("parallel.sharding", f"zero{stage}" if stage else "ddp", key)
    leaves = f"{DEEPSPEED}.deepspeed_moe_layer_cls_names"
    others = [name for name in sheet.texts(leaves) or () if name not in OWN_LEAVES]
    if stage == 3 and others:
        meaning.lack(leaves, f"{', '.join(others)}: gathered as a whole, and counted as DeepSpeed does by itself")
    offload: list[str] = []
    of: list[str] = []
    for name, parts, device_of in (
        ("offload_optimizer_device", ["optimizer", "gradients"], "optimizer"),
        ("offload_param_device", ["parameters"], "parameters"),
    ):
        key = f"{DEEPSPEED}.{name}"
        device = sheet.word(key, {"none": "none", "cpu": "cpu", "nvme": "nvme"}, "none")
        if device != "none" and name == "offload_param_device" and stage != 3:
            meaning.note(f"{key}: DeepSpeed offloads parameters in stage 3 alone")
            continue
        if device in ("cpu", "nvme"):
            offload += parts
            of.append(key)
        if device == "nvme":
            meaning.say(f"parallel.offload_{device_of}_device", "nvme", key)
    if offload:
        meaning.say("offload", offload, *of)
    for name, ours in (
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ("gradient_clipping", "max_gradient_norm"),
    ):
        key = f"{DEEPSPEED}.{name}"
        if str(sheet.get(key)).lower() in ("auto", "none"):
            continue
        value = sheet.count(key) if name.endswith("steps") else sheet.number(key)
        if value is not None:
            meaning.say(ours, value or None, key)


def _megatron(sheet: Sheet, meaning: Meaning) -> None:
    prefix = f"{MEGATRON}.megatron_lm_"
    product = 1
    for name, ours in (("tp_degree", "tensor"), ("pp_degree", "pipeline"), ("context_parallel_size", "context")):
        size = sheet.count(prefix + name) or 1
        product *= size
        if size > 1:
            meaning.say(f"parallel.{ours}", size, prefix + name)
    expert = sheet.count(f"{prefix}expert_model_parallel_size") or 1
    if expert > 1:
        meaning.say("parallel.expert", expert, f"{prefix}expert_model_parallel_size")
    processes = _positive(sheet)
    if processes:
        meaning.say("parallel.data", max(1, processes // product), "num_processes")
    shared = sheet.flag(f"{prefix}use_distributed_optimizer")
    meaning.say("parallel.sharding", "distributed-optimizer" if shared else "ddp", f"{prefix}use_distributed_optimizer")
    if sheet.flag(f"{prefix}sequence_parallelism") and "parallel.tensor" in meaning.job:
        meaning.say("parallel.sequence_parallel", True, f"{prefix}sequence_parallelism")
    if sheet.flag(f"{prefix}recompute_activations"):
        meaning.say("activation_checkpointing", "selective", f"{prefix}recompute_activations")
    norm = sheet.number(f"{prefix}gradient_clipping")
    if norm is not None:
        meaning.say("max_gradient_norm", norm or None, f"{prefix}gradient_clipping")
    steps = sheet.count(f"{prefix}num_micro_batches")
    if steps is not None:
        meaning.say("gradient_accumulation_steps", steps, f"{prefix}num_micro_batches")


def _precision(sheet: Sheet, meaning: Meaning, kind: str) -> None:
    word = (sheet.text("mixed_precision") or "").lower()
    if not word and sheet.flag("fp16"):
        word = "fp16"
    if word not in ("", "no", "fp16", "bf16", "fp8"):
        sheet.problem("mixed_precision", f"{word!r} is not understood", "no, fp16, bf16 or fp8")
        word = ""
    row = "zero" if kind == "DEEPSPEED" else "fsdp" if kind == "FSDP" else "ddp"
    if word in PRECISIONS[row] and "precision" not in meaning.job:
        meaning.say("precision", PRECISIONS[row][word], "mixed_precision")
    meaning.ask("precision", "mixed_precision, bf16 or fp16 of the training arguments (--precision)")


def tells(written: Mapping[str, Written], told: Mapping[str, Any]) -> dict[str, Any]:
    """The word of mixed precision, and how many devices there are."""
    found: dict[str, Any] = {}
    word = written.get("mixed_precision")
    if word is not None and word.value not in (None, "no", False):
        found["mixed_precision"] = str(word.value).lower()
    if _is_of_deepspeed(written):
        found[BY_DEEPSPEED] = True
    if _starts_one(written, told):
        found[ALONE] = True
    if isinstance(told.get("parallel.data"), int):
        found[DEVICES] = told["parallel.data"] * told.get("parallel.context", 1) * told.get("parallel.tensor", 1)
    return found


def _is_of_deepspeed(written: Mapping[str, Written]) -> bool:
    kind = written.get("distributed_type")
    if kind is None:
        return any(key.startswith(DEEPSPEED + ".") for key in written)
    return str(kind.value).upper() == "DEEPSPEED"


def _starts_one(written: Mapping[str, Written], told: Mapping[str, Any]) -> bool:
    """Whether one process is started, and nothing says that it shares a model."""
    if NAMED in written or "parallel.sharding" in told:
        return False
    kind, number = (str(written[key].value).upper() if key in written else None for key in _STARTED)
    return number == "1" if kind is None else kind == "NO"


_STARTED = ("distributed_type", "num_processes")
OF_DEEPSPEED = "deepspeed_config.mixed_precision"


BEGINNINGS = {"fsdp_config": "fsdp", "fp8_config": "fp8", "dynamo_config": "dynamo_"}


def _begun(key: str) -> str:
    """A key of a section with the beginning that Accelerate puts before it."""
    section, dot, name = key.partition(".")
    start = BEGINNINGS.get(section, "")
    return key if not dot or name.startswith(start) else f"{section}.{start.rstrip('_')}_{name}"


def prepared(written: dict[str, Written]) -> dict[str, Written]:
    """The settings as the launcher has them, which copies what is below a section over its own arguments.

    The precision below `deepspeed_config` counts before the file's own, and a key of a section may leave out its
    beginning, as `sharding_strategy` below `fsdp_config`. Source: huggingface/accelerate 1.15.0,
    src/accelerate/commands/launch.py, `_validate_launch_command`.
    """
    written = {_begun(key): item for key, item in written.items()}
    below = written.get(OF_DEEPSPEED)
    if below is None:
        return written
    kept = {key: item for key, item in written.items() if key != OF_DEEPSPEED}
    return kept if below.value is None else {**kept, "mixed_precision": below}


PROGRAM = Program(
    "accelerate",
    RELEASES,
    Table(UNDERSTOOD, WITHOUT_EFFECT, UNMODELLED),
    read,
    recognise,
    prepared=prepared,
    says_how=True,
    tells=tells,
    file_keys=("deepspeed_config.deepspeed_config_file",),
    decides_precision=True,
)
