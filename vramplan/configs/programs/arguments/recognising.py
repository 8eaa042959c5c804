"""Whether a file is of TRL, or of the plain Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs.arguments import scripts
from vramplan.configs.programs.arguments.keys import OF_OTHERS, OF_SCRIPTS, OF_TRL
from vramplan.configs.table import names


def is_of_others(keys: Mapping[str, Any]) -> bool:
    """Whether keys are of another program: `use_lora` is open-instruct's, but beside `lora_r`, as scripts have it."""
    return bool(OF_OTHERS & set(keys)) or ("use_lora" in keys and "lora_r" not in keys)


def recognise_trl(keys: Mapping[str, Any]) -> int:
    """How many keys are TRL's, or its scripts'."""
    script = scripts.of(keys)
    if script is not None:
        return len(keys) if script.of_trl else 0
    if is_of_others(keys):
        return 0
    program = str(getattr(keys.get("program"), "value", "") or "").rsplit("/", 1)[-1]
    tops = {key.split(".", 1)[0] for key in keys}
    found = len(tops & OF_TRL)
    if program in ("sft", "dpo", "kto", "grpo", "reward", "rloo", "sft.py", "dpo.py", "kto.py", "grpo.py"):
        found += 2
    if tops & (OF_SCRIPTS - OF_CONFIGURATIONS) and not found:
        return 0
    if ("model_name_or_path" in keys or "model_name" in keys) and ("dataset_name" in keys or found):
        found += 2
    return found + min(2, len(tops & _COMMON)) if found else 0


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are the plain Trainer's."""
    script = scripts.of(keys)
    if script is not None:
        return 0 if script.of_trl else len(keys)
    if is_of_others(keys) or recognise_trl(keys):
        return 0
    tops = {key.split(".", 1)[0] for key in keys}
    return len(tops & _COMMON) + 2 * len(tops & (OF_SCRIPTS - OF_CONFIGURATIONS))


OF_CONFIGURATIONS = names("model_type config_overrides")  # which configurations of models have too
_COMMON = names(
    """
    per_device_train_batch_size gradient_accumulation_steps num_train_epochs learning_rate output_dir bf16 fp16 optim
    gradient_checkpointing max_grad_norm lr_scheduler_type warmup_ratio warmup_steps save_strategy logging_steps
    report_to model_name_or_path per_device_eval_batch_size fsdp deepspeed
    """
)
