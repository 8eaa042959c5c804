"""Settings of a training program that only its caller knows, and that a job is asked for by its own keys."""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.configs.own_arguments import TASK
from vramplan.configs.own_names import asked_by, may_decide
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.configs.programs.arguments.keys import TABLE
from vramplan.configs.shell import shown, unknowns

OF_PRECISION = ("bf16", "fp16", "dtype", "torch_dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype")

ASKED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(OF_PRECISION, ("precision", "weight_dtype")),
    "gradient_checkpointing": ("activation_checkpointing", "checkpoint_reentrant"),
    "optim": ("optimizer", "optimizer_implementation"),
    "max_grad_norm": ("max_gradient_norm",),
    "lora_r": ("adapter.rank",),
    "lora_target_modules": ("adapter.targets",),
    "lora_dropout": ("adapter.dropout",),
    "trainable_token_indices": ("adapter.trainable_tokens",),
    "lora_modules_to_save": ("adapter.modules_to_save",),
    "use_dora": ("adapter.kind",),
    "lora_bias": ("adapter.bias",),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit", "use_bnb_nested_quant"), ("quantization",)),
    "packing": ("packing",),
    "precompute_ref_log_probs": ("dpo_reference",),
    "attn_implementation": ("attention",),
    "use_flash_attention_2": ("attention",),
    **dict.fromkeys(("deepspeed", "fsdp"), ("parallel.sharding", "parallel.fsdp_version")),
    "torch_compile": ("compile",),
    **dict.fromkeys(("use_liger_kernel", "use_liger"), ("liger_kernels", "loss")),
}
"""The key of a job that is asked for, and those that the setting decides with it."""

WITHOUT_MEMORY = ("tf32", "lora_alpha", "bnb_4bit_quant_type", "use_rslora", "beta", "loss_type", "optim_args")
"""Settings of which nobody is asked: they change neither memory nor the time of a step, or only with another one."""


def taken_out(file: TrainingFile) -> dict[str, str]:
    """The settings that only the caller knows, with their text; the file has them no longer."""
    found: dict[str, str] = {}
    for key in (*ASKED, *WITHOUT_MEMORY):
        item = file.sheet.written.get(key)
        if item is not None and isinstance(item.value, str) and unknowns(item.value):
            if key == "deepspeed" and file.sheet.opened(item.value) is not None:
                continue  # a file that the script writes itself
            found[key] = shown(item.value)
            del file.sheet.written[key]
    return found


def ask(file: TrainingFile, found: Mapping[str, str]) -> None:
    """Leave open what these settings decide."""
    for key, text in found.items():
        if key not in ASKED:
            file.meaning.note(f"{key} is {text}, which only the caller knows; it does not change memory")
            continue
        for ours in ASKED[key]:
            file.meaning.job.pop(ours, None)
        half = key in OF_PRECISION and bool({"adapter.kind", "quantization"} & file.meaning.job.keys())
        how = " (--precision amp-bf16)" if half and not file.sharding else ""  # whose step has no master copy
        file.meaning.ask(ASKED[key][0], f"{key} is {text}, which only the caller knows{how}")


def ask_own(file: TrainingFile) -> None:
    """Leave open what an argument of a script of somebody's own may decide, where one option answers that."""
    sheet, meaning = file.sheet, file.meaning
    for key, item in sheet.written.items():
        name = key.rpartition(".")[2]
        own = key in sheet.declared and key not in sheet.taken and TABLE.class_of(key) is None and may_decide(name)
        ours = asked_by(name) if own and str(item.value).lower() not in OFF else None
        told = meaning.job.get(ours or "")
        if ours == "loss" and sheet.declared.get(TASK) is not None:
            sheet.taken.add(key)  # the trainer that the script imports says it
            meaning.lack(key, "an argument of the script's own, which is passed over")
            continue
        if ours is None or (ours in OF_NUMBERS and told is not None and any(sheet.given(of) for of in told.of)):
            continue
        meaning.job.pop(ours, None)
        meaning.ask(ours, f"{key} is an argument of the script's own")
        sheet.taken.add(key)


OFF = ("none", "false", "", "0", "no")
OF_NUMBERS = ("sequence_length", "micro_batch_size", "gradient_accumulation_steps")
"""Where the file says one by the program's own key, another is of something else, as the batch of an evaluation is."""
