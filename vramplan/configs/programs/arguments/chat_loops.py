"""The training loops of DeepSpeed-Chat: `deepspeed main.py` with arguments and a DeepSpeed configuration of their own.

Source: deepspeedai/DeepSpeedExamples (mirror of 2026-11), applications/DeepSpeed-Chat: training/step1*/main.py,
step2_reward*/main.py and step2_dpo*/main.py (arguments, defaults, FusedAdam or DeepSpeedCPUAdam),
dschat/utils/ds_utils.py (get_train_ds_config), dschat/utils/module/lora.py (convert_linear_layer_to_lora).
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.table import names
from vramplan.configs.written import Written

OWN = names(
    """
    data_split data_output_path sft_only_data_path add_eot_token eot_token print_loss enable_tensorboard
    tensorboard_path lora_learning_rate num_padding_at_beginning lora_module_name compute_fp32_loss
    eval_interval eval_iters
    """
)
"""Arguments of the loops that change neither memory nor time of a step, or that are read here."""

DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 16,
    "max_seq_length": 512,
    "optim": "adamw_torch_fused",
    "max_grad_norm": 1.0,
    "lora_alpha": None,
    "lora_dropout": 0.0,
    "lora_target_modules": ["all-linear"],
}
RENAMED = {"max_seq_len": "max_seq_length", "lora_dim": "lora_r"}

STEPS = {"sft": ("step1", "sft"), "dpo": ("dpo",), "reward": ("step2_reward", "reward", "rw")}
"""By what is trained: parts of the paths of the loops, and of what their scripts name."""

CONFIGURATION = {"stage3_max_live_parameters": 30_000_000, "stage3_prefetch_bucket_size": 30_000_000}


def trained(sheet: Sheet) -> str | None:
    """What the loop trains, by its arguments, else by the folder in which the script stands or that it names."""
    if sheet.given("sft_only_data_path") or sheet.given("print_loss"):
        return "sft"
    if sheet.given("beta") or sheet.given("label_smoothing"):
        return "dpo"
    if sheet.given("num_padding_at_beginning"):
        return "reward"
    program = sheet.written.get("program", Written(None))
    folders = f"{program.value} {program.file}".replace("\\", "/").lower()
    return next((kind for kind, parts in STEPS.items() if any(part in folders for part in parts)), None)


def settle(sheet: Sheet, meaning: Meaning) -> None:
    """The DeepSpeed configuration that the loop makes of its arguments, its adapters, and its loss."""
    place = sheet.written.get("zero_stage", Written(None))
    stage = sheet.count("zero_stage", 0) or 0
    kind = trained(sheet)
    for key in ("deepspeed", *OWN):
        sheet.get(key)
        if key == "deepspeed":
            sheet.written.pop(key, None)
    half = sheet.word("dtype", {"fp16": "fp16", "bf16": "bf16"}, "fp16") or "fp16"
    sheet.written.pop("dtype", None)
    on_host = "cpu" if sheet.flag("offload", False) else "none"
    config: dict[str, Any] = {
        "zero_optimization.stage": stage,
        "zero_optimization.overlap_comm": True,
        "zero_optimization.offload_optimizer.device": on_host,
        "zero_optimization.offload_param.device": on_host,
        f"{half}.enabled": True,
        **({f"zero_optimization.{key}": value for key, value in CONFIGURATION.items()} if stage == 3 else {}),
    }
    for key, value in config.items():
        sheet.written[f"deepspeed.{key}"] = place._replace(value=value)
    meaning.say("runtime", "transformers" if kind in ("reward", "dpo") else "deepspeed", "program")
    meaning.say("precision", f"mixed-{half}", "dtype")
    dropout = sheet.number("dropout")
    if dropout is not None:
        meaning.say("dropout", dropout, "dropout")
    rank = sheet.count("lora_r", 0) or 0
    alone = bool(sheet.flag("only_optimize_lora", False))
    defaults = {**sheet.release.defaults, "use_peft": rank > 0, "lora_alpha": 1}
    sheet.release = sheet.release._replace(defaults=defaults)
    if rank and not alone:
        meaning.lack("lora_dim", "norms, biases and embeddings are trained beside the adapters, and are counted frozen")
    if kind is None:
        said = "main.py of three folders of DeepSpeed-Chat takes these arguments"
        meaning.ask("loss", f"{said}: of SFT, of a reward model and of DPO (--loss standard)")
    elif kind != "sft":
        meaning.say("loss", kind, "program")
        meaning.say("padding", "right", "program")
        meaning.lack("program", "a loss in code of its own, and that of TRL over pairs is counted")
    if kind == "dpo":
        meaning.say("dpo_reference", "model", "program")
        if sheet.flag("offload_reference_model", False):
            meaning.lack("offload_reference_model", "a reference model on the host, and it is counted on the device")
