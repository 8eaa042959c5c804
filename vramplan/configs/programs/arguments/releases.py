"""The defaults of TrainingArguments and of TRL's configurations, release by release.

Source: huggingface/transformers, src/transformers/training_args.py; huggingface/trl, trl/trainer/*_config.py.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.table import ProgramRelease

_TRAINER: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "bf16": False,
    "fp16": False,
    "eval_strategy": "no",
    "fsdp_config.version": 2,
}

_MODEL = {
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "bnb_4bit_quant_type": "nf4",
    "use_bnb_nested_quant": False,
    "load_in_8bit": False,
    "load_in_4bit": False,
    "use_peft": False,
    "use_dora": False,
}

_TRL: dict[str, Any] = {
    **_TRAINER,
    **_MODEL,
    "max_length": 1024,
    "packing": False,
    "gradient_checkpointing": True,
    "dtype": "float32",
    "loss_type": "nll",
    "vllm_mode": "colocate",
    "bf16": None,  # which becomes true where fp16 is not set
}


def _trl(version: str, date: str, **others: Any) -> ProgramRelease:
    defaults = {key: value for key, value in {**_TRL, **others}.items() if value != ""}
    files = "trl/trainer/sft_config.py, dpo_config.py, grpo_config.py, model_config.py, base_config.py"
    return ProgramRelease(
        version, date, f"huggingface/trl {version}, {files}; transformers, training_args.py", defaults
    )


_V0: dict[str, Any] = {"vllm_mode": "server"}
_V4: dict[str, Any] = {**_V0, "dtype": "", "fsdp_config.version": 1}

_OLD: dict[str, Any] = {**_V4, "gradient_checkpointing": False, "optim": "adamw_torch"}

TRL_RELEASES = (
    _trl("1.16.0", "2026-10-15"),
    _trl("1.9.0", "2026-07-21", loss_type="chunked_nll"),
    _trl("1.6.0", "2026-06-11", loss_type="chunked_nll"),
    _trl("1.0.0", "2026-03-30"),
    _trl("0.29.0", "2026-02-25", **_V0),
    _trl("0.25.0", "2025-11-05", **_V4),
    _trl("0.22.0", "2025-08-29", **_V4),
    _trl("0.19.1", "2025-07-08", **_OLD),
    _trl("0.16.1", "2025-04-04", **_OLD, bf16=False),
    _trl("0.15.2", "2025-02-25", **_OLD, bf16=False),
)

_ARGUMENTS = "huggingface/transformers {}, src/transformers/training_args.py"

RELEASES = (
    ProgramRelease("5.23.0", "2026-11-13", _ARGUMENTS.format("5.23.0"), _TRAINER),
    ProgramRelease(
        "4.53.3",
        "2025-07-22",
        _ARGUMENTS.format("4.53.3"),
        {**_TRAINER, "optim": "adamw_torch", "fsdp_config.version": 1},
    ),
)

UNSAID = "unsaid"
"""The element type of `from_pretrained` of a script that names none."""


def loads_fp32(release: ProgramRelease) -> bool:
    """Whether `from_pretrained` of the Transformers beside a release loads fp32 where nobody says a type: before 5.

    Source: huggingface/transformers, pull request 42805; src/transformers/modeling_utils.py of 4.53.3.
    """
    return release.defaults.get("fsdp_config.version") == 1
