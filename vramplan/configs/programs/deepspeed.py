"""DeepSpeed: one JSON file, as `--deepspeed_config` takes it, or the Trainer, which fills every `"auto"`.

Source: deepspeedai/DeepSpeed 0.19.6 (edaa7221), deepspeed/runtime/config.py (optimizers, the batch rule of
`_set_batch_related_parameters`), runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/precision_config.py and runtime/constants.py (keys and old names); who fills `auto`:
huggingface/transformers 5.23.0, src/transformers/integrations/deepspeed.py, HfTrainerDeepSpeedConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs.deepspeed_keys import (
    COMPRESSED,
    OF_STAGE_3,
    OPTIMIZERS,
    RELEASES,
    SIZES,
    TABLE,
    ZERO,
    ask_compressed,
    passed_over,
    section_of,
)
from vramplan.configs.sheet import BY_DEEPSPEED, Meaning, Program, Sheet
from vramplan.errors import near_matches

AUTO = "auto"


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are DeepSpeed's alone."""
    own: tuple[str, ...]
    own = ("train_micro_batch_size_per_gpu", "train_batch_size", "steps_per_print", "zero_allow_untested_optimizer")
    own += ("wall_clock_breakdown", "gradient_clipping", "fp16.enabled", "bf16.enabled", "zero_force_ds_cpu_optimizer")
    own += ("autotuning.enabled",)
    found = sum(name in keys for name in own)
    found += 2 * any(key.startswith(f"{ZERO}.") for key in keys) + ("optimizer.type" in keys)
    return 0 if "model_name_or_path" in keys else found


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a DeepSpeed file."""
    filled = any(_is_auto(item.value) for item in sheet.written.values())
    key = next((name for name, item in sheet.written.items() if _is_auto(item.value)), ZERO)
    meaning.say("runtime", "transformers" if filled else "deepspeed", key)
    _zero(sheet, meaning)
    _precision(sheet, meaning, filled)
    _optimizer(sheet, meaning)
    _batch(sheet, meaning)
    norm = _number(sheet, "gradient_clipping")
    if norm is not None:
        meaning.say("max_gradient_norm", norm or None, "gradient_clipping")
    size = _count(sheet, "tensor_parallel.autotp_size")
    if size and size > 1:
        meaning.say("parallel.tensor", size, "tensor_parallel.autotp_size")
    for name in ("model", "sequence_length", "activation_checkpointing"):
        meaning.ask(name, "the training script's")
    own = passed_over(sheet.written)
    sheet.taken.update(own)
    for top in dict.fromkeys(map(section_of, own)):
        meaning.note(f"{top}: DeepSpeed has no such key and passes over it")


def _is_auto(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_auto(item) for item in value.values())
    return isinstance(value, str) and value.strip().lower() == AUTO


def _explicit(sheet: Sheet, key: str) -> Any:
    value = sheet.get(key)
    return None if _is_auto(value) else value


def _number(sheet: Sheet, key: str) -> float | None:
    return None if _explicit(sheet, key) is None else sheet.number(key)


def _count(sheet: Sheet, key: str) -> int | None:
    return None if _explicit(sheet, key) is None else sheet.count(key)


def _flag(sheet: Sheet, key: str) -> bool | None:
    return None if _explicit(sheet, key) is None else sheet.flag(key)


def _zero(sheet: Sheet, meaning: Meaning) -> None:
    stage = _count(sheet, f"{ZERO}.stage")
    if sheet.given(f"{ZERO}.stage") and stage not in (0, 1, 2, 3):
        if not _is_auto(sheet.get(f"{ZERO}.stage")):
            sheet.problem(f"{ZERO}.stage", f"{sheet.get(f'{ZERO}.stage')} is no stage of ZeRO", "0, 1, 2 or 3")
        stage = 0
    meaning.say("parallel.sharding", f"zero{stage}" if stage else "ddp", f"{ZERO}.stage")
    sheet.get(ZERO)
    for name in ("overlap_comm", "contiguous_gradients"):
        value = _flag(sheet, f"{ZERO}.{name}")
        if value is not None and stage:
            meaning.say(f"parallel.{name}", value, f"{ZERO}.{name}")
    for name, ours in SIZES.items():
        size = _count(sheet, f"{ZERO}.{name}")
        # without ZeRO gradients have buckets of their own
        if size is not None and stage and (stage == 3 or ours not in OF_STAGE_3):
            meaning.say(f"parallel.{ours}", size, f"{ZERO}.{name}")
    linear = _flag(sheet, f"{ZERO}.memory_efficient_linear")
    if linear is not None and stage == 3:
        meaning.say("parallel.memory_efficient_linear", linear, f"{ZERO}.memory_efficient_linear")
    _offload(sheet, meaning, stage or 0)


def _offload(sheet: Sheet, meaning: Meaning, stage: int) -> None:
    offload: list[str] = []
    of: list[str] = []
    for name, parts in (("offload_optimizer", ["optimizer", "gradients"]), ("offload_param", ["parameters"])):
        key = f"{ZERO}.{name}.device"
        device = sheet.text(key)
        sheet.get(f"{ZERO}.{name}")
        if device is None or device.lower() in ("none", AUTO):
            continue
        if device.lower() not in ("cpu", "nvme"):
            sheet.problem(key, f"{device!r} is not understood", "none, cpu or nvme")
            continue
        if stage < 3 and parts == ["parameters"]:
            meaning.note(f"{key}: stage {stage} keeps its parameters on the device")
            continue
        offload += parts
        of.append(key)
        if device.lower() == "nvme":
            meaning.say(f"parallel.offload_{'optimizer' if parts[1:] else 'parameters'}_device", "nvme", key)
    for name, parts in (
        ("cpu_offload", ["optimizer", "gradients"]),
        ("cpu_offload_param", ["parameters"]),
        ("cpu_offload_params", ["parameters"]),
    ):
        if _flag(sheet, f"{ZERO}.{name}") and (stage == 3 or parts != ["parameters"]):
            offload += [part for part in parts if part not in offload]
            of.append(f"{ZERO}.{name}")
    if offload:
        meaning.say("offload", offload, *of)


def _precision(sheet: Sheet, meaning: Meaning, filled: bool) -> None:
    found = None
    for key, word in (
        ("fp16.enabled", "mixed-fp16"),
        ("bf16.enabled", "mixed-bf16"),
        ("bfloat16.enabled", "mixed-bf16"),
    ):
        if _flag(sheet, key):
            if found is not None:
                sheet.problem(key, "is on beside fp16.enabled", "DeepSpeed takes one of them")
            found = word
            meaning.say("precision", word, key)
    if found is None and not filled and not any(sheet.given(key) for key in ("amp.enabled", "torch_autocast.enabled")):
        meaning.say("precision", "fp32", "fp16.enabled", "bf16.enabled")
    meaning.ask("precision", 'bf16 or fp16 of the training arguments fill "auto" (--precision)')


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    name = sheet.text("optimizer.type")
    if name is None:
        return
    plain = name.lower()
    momentum = "optimizer.params.momentum"
    if plain in ("sgd", "musgd") and sheet.given(momentum) and sheet.number(momentum):  # torch.optim.SGD
        meaning.say("optimizer", "sgd-momentum", "optimizer.type", momentum)
    elif plain in OPTIMIZERS:
        meaning.say("optimizer", OPTIMIZERS[plain], "optimizer.type")
    elif plain in COMPRESSED:
        ask_compressed(meaning, name)
    else:
        sheet.problem("optimizer.type", f"{name!r} is no optimizer of DeepSpeed", near_matches(name, OPTIMIZERS))


def _batch(sheet: Sheet, meaning: Meaning) -> None:
    """train_batch_size = micro-batch x steps x devices; two of them and the devices give the third."""
    whole, micro, steps = (_count(sheet, key) for key in _BATCH)
    devices = sheet.devices or None
    for key in _BATCH:
        value = _count(sheet, key)
        if value is not None and value < 1:
            sheet.problem(key, f"{value} is no number of sequences or steps", '1 or more, or "auto"')
            return
    if whole and micro and not steps:
        if whole % (micro * (devices or 1)):
            sheet.problem("train_batch_size", f"{whole} is no multiple of {micro * (devices or 1)} sequences")
            return
        if devices is None:
            devices = whole // micro
            meaning.say("parallel.data", devices, "train_batch_size", "train_micro_batch_size_per_gpu")
            meaning.note(f"the batch is {whole} sequences: {devices} GPUs in one step each, or fewer in several")
        steps = whole // (micro * devices)
    elif whole and micro and steps and devices is None:
        if whole % (micro * steps):
            sheet.problem("train_batch_size", f"{whole} is no multiple of {micro * steps} sequences")
            return
        meaning.say("parallel.data", whole // (micro * steps), *_BATCH)
    elif whole and devices and not micro:
        if whole % (devices * (steps or 1)):
            sheet.problem("train_batch_size", f"{whole} is no multiple of {devices * (steps or 1)} sequences")
            return
        micro = whole // (devices * (steps or 1))
        steps = steps or 1
    elif whole and micro and steps and devices and whole != micro * steps * devices:
        sheet.problem(
            "train_batch_size",
            f"{whole} is not {micro} sequences x {steps} steps x {devices} GPUs, as DeepSpeed asserts",
        )
    if micro:
        meaning.say("micro_batch_size", micro, *(_BATCH[:2] if sheet.given(_BATCH[1]) else ("train_batch_size",)))
    if steps:
        meaning.say("gradient_accumulation_steps", steps, "gradient_accumulation_steps")
    meaning.ask("micro_batch_size", 'the number of GPUs divides train_batch_size, or the Trainer fills "auto"')
    meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")


_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

PROGRAM = Program(
    "deepspeed",
    RELEASES,
    TABLE,
    read,
    recognise,
    says_how=True,
    decides_precision=True,
    tells=lambda written, told: {BY_DEEPSPEED: True},
)
