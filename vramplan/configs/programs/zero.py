"""DeepSpeed files that training files name, or have inside: what they say of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramplan.configs.programs.deepspeed_keys import (
    COMPRESSED,
    OF_STAGE_3,
    OPTIMIZERS,
    RELEASES,
    SIZES,
    TABLE,
    ask_compressed,
    passed_over,
)
from vramplan.configs.sheet import BY_DEEPSPEED, Meaning, Sheet
from vramplan.configs.written import Written
from vramplan.errors import Problem

_TEMPLATE: dict[str, Any] = {"fp16": True, "optimizer": "adamw", "gradient_accumulation_steps": 1, "overlap_comm": True}

_OPEN_INSTRUCT = {"overlap_comm": True, "contiguous_gradients": True}
_LIVE = {"sub_group_size": 10**9, "stage3_max_live_parameters": 10**9}
_SWIFT = {
    "overlap_comm": False,
    "contiguous_gradients": True,
    "allgather_bucket_size": 200_000_000,
    "reduce_bucket_size": 200_000_000,
}
_ON_HOST = {"offload_optimizer": "cpu", "offload_param": "cpu"}

SHIPPED: dict[str, dict[str, Any]] = {
    # axolotl-ai-cloud/axolotl 0.18.0 (067b021c), deepspeed_configs/
    "deepspeed_configs/zero1.json": {"stage": 1, "overlap_comm": True},
    "deepspeed_configs/zero1_torch_compile.json": {"stage": 1, "overlap_comm": True},
    "deepspeed_configs/zero2.json": {
        "stage": 2,
        "offload_optimizer": "cpu",
        "contiguous_gradients": True,
        "overlap_comm": True,
    },
    "deepspeed_configs/zero2_torch_compile.json": {
        "stage": 2,
        "offload_optimizer": "cpu",
        "contiguous_gradients": True,
        "overlap_comm": True,
    },
    "deepspeed_configs/zero3.json": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 0,
        "max_live_parameters": 0,
    },
    "deepspeed_configs/zero3_bf16.json": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 0,
        "max_live_parameters": 0,
        "bf16": True,
    },
    "deepspeed_configs/zero3_bf16_cpuoffload_all.json": {
        "stage": 3,
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 0,
        "max_live_parameters": 0,
        "bf16": True,
    },
    "deepspeed_configs/zero3_bf16_cpuoffload_params.json": {
        "stage": 3,
        "offload_param": "cpu",
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 0,
        "max_live_parameters": 0,
        "bf16": True,
    },
    # huggingface/accelerate 1.15.0.dev0 (16cb6eb8), examples/deepspeed_config_templates/
    "deepspeed_config_templates/zero_stage1_config.json": {
        **_TEMPLATE,
        "stage": 1,
        "contiguous_gradients": True,
        "allgather_bucket_size": 200_000_000,
    },
    "deepspeed_config_templates/zero_stage2_config.json": {
        **_TEMPLATE,
        "stage": 2,
        "contiguous_gradients": True,
        "allgather_bucket_size": 200_000_000,
    },
    "deepspeed_config_templates/zero_stage2_offload_config.json": {
        **_TEMPLATE,
        "stage": 2,
        "contiguous_gradients": True,
        "allgather_bucket_size": 200_000_000,
        "offload_optimizer": "cpu",
    },
    "deepspeed_config_templates/zero_stage3_config.json": {
        **_TEMPLATE,
        "stage": 3,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
    },
    "deepspeed_config_templates/zero_stage3_offload_config.json": {
        **_TEMPLATE,
        "stage": 3,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
    },
    # hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), examples/deepspeed/
    "examples/deepspeed/ds_z0_config.json": {
        "stage": 0,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "allgather_bucket_size": 500_000_000,
        "reduce_bucket_size": 500_000_000,
    },
    "examples/deepspeed/ds_z2_config.json": {
        "stage": 2,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "allgather_bucket_size": 500_000_000,
        "reduce_bucket_size": 500_000_000,
    },
    "examples/deepspeed/ds_z2_autotp_config.json": {
        "stage": 2,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "autotp_size": 2,
        "allgather_bucket_size": 500_000_000,
        "reduce_bucket_size": 500_000_000,
    },
    "examples/deepspeed/ds_z2_offload_config.json": {
        "stage": 2,
        "offload_optimizer": "cpu",
        "overlap_comm": False,
        "contiguous_gradients": True,
        "allgather_bucket_size": 500_000_000,
        "reduce_bucket_size": 500_000_000,
    },
    "examples/deepspeed/ds_z3_config.json": {
        "stage": 3,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
    },
    "examples/deepspeed/ds_z3_offload_config.json": {
        "stage": 3,
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
    },
    "examples/deepspeed/ds_z3_fp8_config.json": {
        "stage": 3,
        "offload_optimizer": "cpu",
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "reduce_bucket_size": 12845056,
        "stage3_prefetch_bucket_size": 11560550,
        "stage3_param_persistence_threshold": 35840,
        "stage3_max_live_parameters": 10**9,
    },
    # modelscope/ms-swift 4.6.0.dev0 (3602360a), swift/config/
    **{f"swift/config/zero{stage}.json": {**_SWIFT, "stage": stage} for stage in (0, 1, 2)},
    "swift/config/zero2_offload.json": {**_SWIFT, "stage": 2, "offload_optimizer": "cpu"},
    "swift/config/zero3.json": {**_LIVE, "stage": 3, "overlap_comm": False, "contiguous_gradients": True},
    "swift/config/zero3_offload.json": {
        **_LIVE,
        **_ON_HOST,
        "stage": 3,
        "overlap_comm": False,
        "contiguous_gradients": True,
    },
    # allenai/open-instruct (e6c3044a), configs/ds_configs/, which stood at ds_configs/ before
    "ds_configs/stage2_no_offloading_accelerate.conf": {**_OPEN_INSTRUCT, "stage": 2},
    "ds_configs/stage3_no_offloading.conf": {**_OPEN_INSTRUCT, **_LIVE, "stage": 3},
    "ds_configs/stage3_no_offloading_accelerate.conf": {**_OPEN_INSTRUCT, **_LIVE, "stage": 3},
    "ds_configs/stage3_offloading.conf": {**_OPEN_INSTRUCT, **_LIVE, **_ON_HOST, "stage": 3},
    "ds_configs/stage3_offloading_accelerate.conf": {**_OPEN_INSTRUCT, **_LIVE, **_ON_HOST, "stage": 3},
}
"""DeepSpeed files that come with a program, so that a file which names one can be read without it."""


def shipped(path: str) -> dict[str, Any] | None:
    """What a file of that path says, if a program has one under that path."""
    tail = "/".join(path.replace("\\", "/").strip("./").split("/")[-3:])
    return next((facts for name, facts in SHIPPED.items() if tail == name or tail.endswith("/" + name)), None)


def facts_of(sheet: Sheet, path: str, key: str) -> dict[str, Any] | None:
    """What the DeepSpeed file says that `key` names: one that is there, else one that comes with a program."""
    written = sheet.opened(path)
    return shipped(path) if written is None else _read(sheet, written, key)


def inline_facts(sheet: Sheet, key: str) -> dict[str, Any] | None:
    """What a DeepSpeed configuration says that stands in the file itself, below `key`; None where none does."""
    start = key + "."
    below = {name[len(start) :]: item for name, item in sheet.written.items() if name.startswith(start)}
    sheet.under(key)
    return _read(sheet, below, key) if below else None


def named_below(sheet: Sheet, meaning: Meaning, program: str) -> tuple[bool, int | None]:
    """Whether `deepspeed` has or names a configuration, or DeepSpeed's engine trains for another reason; and its stage.

    The stage is 0 where a file is not here that would tell it: the engine casts the weights at every stage.
    `program`: the one that comes with files of its own.
    """
    inline, path = inline_facts(sheet, "deepspeed"), sheet.get("deepspeed")
    if inline is not None:
        return True, deepspeed(sheet, meaning, inline, "deepspeed")
    if not isinstance(path, str) or not path.strip():
        return (True, 0) if BY_DEEPSPEED in sheet.beside else (False, None)
    meaning.pointed["deepspeed"] = path
    facts = facts_of(sheet, path, "deepspeed")
    if facts is None:
        meaning.ask("parallel.sharding", f"deepspeed: {path} is not here; give that file too")
        return True, 0
    if sheet.opened(path) is None:
        meaning.note(f"deepspeed: {path} is read as {program} has it")
    return True, deepspeed(sheet, meaning, facts, "deepspeed")


def _read(sheet: Sheet, written: Mapping[str, Written], key: str) -> dict[str, Any]:
    """The facts of settings that are there; they are sorted out with those of the sheet."""
    is_of_deepspeed(sheet, written, key)
    other = Sheet(written, RELEASES[0])
    other.taken.update(passed_over(written))
    sheet.adopt(key, other, TABLE)
    facts = zero_facts(nested(written))
    place = written.get("zero_optimization.stage")
    if facts["stage"] not in STAGES and place is not None:
        message, name = f"{facts['stage']!r} is no stage of ZeRO", "zero_optimization.stage"
        sheet.problems.append(Problem(message, name, "0, 1, 2 or 3", place.file, place.line, place.column))
        facts["stage"] = 0
    return facts


def is_of_deepspeed(sheet: Sheet, written: Mapping[str, Written], key: str) -> None:
    """Hold the settings of a file that a key names to be DeepSpeed's: of another program's it has no key."""
    named = sheet.written.get(key)
    if named is not None and not any(TABLE.class_of(name) for name in written):
        sheet.problem(key, f"{named.value} has no key of a DeepSpeed file", "the path of DeepSpeed's own JSON file")


def nested(written: Mapping[str, Written]) -> dict[str, Any]:
    """Settings with dotted keys as mappings within mappings."""
    result: dict[str, Any] = {}
    for key, item in written.items():
        place = result
        *above, last = key.split(".")
        for part in above:
            place = place.setdefault(part, {})
        place[last] = item.value
    return result


def zero_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flat facts of a DeepSpeed configuration, as `SHIPPED` has them; what is `auto` is left out."""
    zero = config.get("zero_optimization") or {}
    facts: dict[str, Any] = {"stage": zero.get("stage", 0)}
    for name in (*SIZES, "overlap_comm", "contiguous_gradients"):
        if name in zero and zero[name] != "auto":
            facts[name] = zero[name]
    for name in ("offload_optimizer", "offload_param"):
        device = zero.get(name)
        if isinstance(device, Mapping) and device.get("device") not in (None, "none", "auto"):
            facts[name] = device["device"]
    if zero.get("cpu_offload") is True:
        facts["offload_optimizer"] = "cpu"
    for name in ("bf16", "fp16"):
        half = config.get(name)
        if isinstance(half, Mapping) and isinstance(half.get("enabled"), bool):
            facts[name] = half["enabled"]
    size = (config.get("tensor_parallel") or {}).get("autotp_size")
    if isinstance(size, int) and size > 1:
        facts["autotp_size"] = size
    for name in MUST_MATCH:
        if isinstance(config.get(name), int | float) and not isinstance(config[name], bool):
            facts[name] = config[name]
    named = config.get("optimizer")
    kind = named.get("type") if isinstance(named, Mapping) else None
    if isinstance(named, Mapping) and isinstance(kind, str):
        facts["optimizer"] = OPTIMIZERS.get(kind.lower(), kind.lower())
        parameters = named.get("params")
        if facts["optimizer"] == "sgd" and isinstance(parameters, Mapping) and parameters.get("momentum"):
            facts["optimizer"] = "sgd-momentum"
    return facts


MUST_MATCH = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_gradient_norm",
}
"""Settings of DeepSpeed that the Trainer refuses where its own say otherwise, by the keys of a job.

Source: huggingface/transformers 5.23.0, src/transformers/integrations/deepspeed.py, trainer_config_process.
"""


STAGES = (0, 1, 2, 3)
USUAL: dict[str, Any] = {
    "contiguous_gradients": True,
    "sub_group_size": 1_000_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
}
"""DeepSpeed's defaults, which a file that another one names need not repeat in the job; the Trainer fills none of them.

Source: deepspeedai/DeepSpeed 0.19.8, deepspeed/runtime/zero/config.py, DeepSpeedZeroConfig.
"""


def deepspeed(sheet: Sheet, meaning: Meaning, facts: Mapping[str, Any], key: str) -> int:
    """Say how a DeepSpeed configuration shards, and what steps; the stage. `key`: the setting that names or has it.

    A job that has its batch and its optimizer already is held against those of the configuration.
    """

    def of(name: str) -> str:
        place = f"{key}:{name}"
        return place if sheet.place(place) is not None else key

    _matches(sheet, meaning, facts, of)
    stage = int(facts["stage"])
    facts = {name: value for name, value in facts.items() if name not in USUAL or USUAL[name] != value}
    meaning.say("parallel.sharding", f"zero{stage}" if stage else "ddp", of("zero_optimization.stage"))
    for name, ours in SIZES.items():
        if name in facts and stage and (stage == 3 or ours not in OF_STAGE_3):
            meaning.say(f"parallel.{ours}", int(float(facts[name])), of(f"zero_optimization.{name}"))
    for name in ("overlap_comm", "contiguous_gradients"):
        if name in facts and stage:
            meaning.say(f"parallel.{name}", bool(facts[name]), of(f"zero_optimization.{name}"))
    offload: list[str] = []
    if facts.get("offload_optimizer"):
        offload += ["optimizer", "gradients"]
    if facts.get("offload_param") and stage == 3:
        offload.append("parameters")
    if offload:
        meaning.say("offload", offload, key)
    for name, ours in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if facts.get(name) == "nvme" and (stage == 3 or ours == "optimizer"):
            meaning.say(f"parallel.offload_{ours}_device", "nvme", of(f"zero_optimization.{name}.device"))
    if facts.get("autotp_size"):
        meaning.say("parallel.tensor", facts["autotp_size"], of("tensor_parallel.autotp_size"))
    return stage


def _matches(sheet: Sheet, meaning: Meaning, facts: Mapping[str, Any], of: Callable[[str], str]) -> None:
    own = sheet.given("deepspeed_config") and sheet.given("deepspeed")  # options of DeepSpeed itself, not the Trainer's
    for name, ours in MUST_MATCH.items():
        told = None if own else meaning.job.get(ours)
        place = sheet.place(of(name))
        if name in facts and told is not None and place is not None and (told.value or 0) != facts[name]:
            message = f"is {facts[name]}, and {told.of[0]} is {told.value}, which the Trainer refuses"
            hint = 'write one of them in both, or "auto"'
            sheet.problems.append(Problem(message, of(name), hint, place.file, place.line, place.column))
    told, place = meaning.job.get("optimizer"), sheet.place(of("optimizer.type"))
    if "optimizer" in facts and told is not None and place is not None:
        if told.value == "adafactor":
            message = "stands beside Adafactor of the training arguments, which the Trainer refuses"
            hint = "leave one of the two out"
            sheet.problems.append(Problem(message, of("optimizer.type"), hint, place.file, place.line, place.column))
        meaning.job.pop("optimizer_implementation", None)
        if facts["optimizer"] in COMPRESSED:
            del meaning.job["optimizer"]
            ask_compressed(meaning, str(place.value))
        else:
            meaning.say("optimizer", facts["optimizer"], of("optimizer.type"))
        meaning.note("the optimizer is that of the DeepSpeed configuration, which goes before the Trainer's")
