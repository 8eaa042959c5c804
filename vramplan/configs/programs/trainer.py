"""What the programs around the Trainer of transformers share: words, settings, DeepSpeed files beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.shell import shown
from vramplan.configs.table import Table, names
from vramplan.errors import near_matches
from vramplan.options.words import STEPPED_IN_BACKWARD

FOREACH = ("optimizer_implementation", "foreach")
MOST = 1e6  # of a norm that is computed and never exceeded, as 1e9

OPTIMIZERS: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {
    # transformers 5.23.0, src/transformers/training_args.py, OptimizerNames; trainer_optimizer.py
    "adamw_torch": ("adamw", (FOREACH,)),
    "adamw_torch_fused": ("adamw", ()),
    "adamw_apex_fused": ("adamw", ()),
    "adamw_hf": ("adamw", (("optimizer_implementation", "for-loop"),)),
    "adafactor": ("adafactor", ()),
    "adamw_bnb_8bit": ("adamw-8bit", ()),
    "adamw_8bit": ("adamw-8bit", ()),
    "paged_adamw_32bit": ("adamw-paged", ()),
    "paged_adamw": ("adamw-paged", ()),
    "paged_adamw_8bit": ("adamw-8bit-paged", ()),
    "lion_32bit": ("lion", ()),
    "lion_8bit": ("lion-8bit", ()),
    "paged_lion_32bit": ("lion-paged", ()),
    "paged_lion_8bit": ("lion-8bit-paged", ()),
    "ademamix": ("ademamix", ()),
    "ademamix_8bit": ("ademamix-8bit", ()),
    "paged_ademamix_32bit": ("ademamix-paged", ()),
    "paged_ademamix_8bit": ("ademamix-8bit-paged", ()),
    "rmsprop_bnb": ("rmsprop-32bit", ()),
    "rmsprop_bnb_32bit": ("rmsprop-32bit", ()),
    "rmsprop_bnb_8bit": ("rmsprop-8bit", ()),
    "lion": ("lion", ()),
    "sgd": ("sgd", ()),
    "rmsprop": ("rmsprop", ()),
    "lomo": ("lomo", ()),
    "adagrad": ("adagrad", ()),
    "schedule_free_adamw": ("schedule-free-adamw", ()),
    "schedule_free_sgd": ("schedule-free-sgd", ()),
    "schedule_free_radam": ("schedule-free-radam", ()),
    "stable_adamw": ("stable-adamw", ()),
    "grokadamw": ("grokadamw", ()),
    "adalomo": ("adalomo", ()),
    "adamw_torch_8bit": ("adamw-8bit-torchao", ()),
    "adamw_torch_4bit": ("adamw-4bit-torchao", ()),
}
"""Names of the Trainer's optimizers that a job has a word for, and what else each sets."""

OF_OLD_RELEASES = ("adamw_apex_fused", "adamw_hf", "paged_adamw", "lion")
"""Names that Transformers 5 does not take: it has none of the first two, and another name for the others."""

NEAREST_OPTIMIZERS = {
    "adamw_anyprecision": ("adamw", "AnyPrecisionAdamW is counted as AdamW in the type of the weights"),
}
"""Optimizers without a word of their own: the word that is nearest, and what that leaves out."""

LOW_RANK_OPTIMIZERS = ("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "apollo_adamw")
"""Those that project gradients, each with its twin that steps in backward."""
NO_LAYERWISE = ("galore_adafactor",)
"""Of them those whose twin ends with an error.

It gives Adafactor a rate before it turns relative steps off, and galore-torch refuses both together.
Source: transformers 5.23, trainer_optimizer.py, _get_galore_optimizer and _setup_low_rank_optimizer.
"""

ATTENTIONS = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "kernels-community/flash-attn": "flash",
    "kernels-community/flash-attn2": "flash",
    "kernels-community/flash-attn3": "flash",
    "kernels-community/vllm-flash-attn3": "flash",
    "xformers": "efficient",
}
"""Names of `attn_implementation`; `flash_attention_2` is the package, for which SDPA's flash kernel stands."""

ARGUMENTS = names(
    """
    output_dir overwrite_output_dir num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
    warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices
    bf16_full_eval fp16_full_eval logging_strategy logging_steps logging_first_step log_on_each_node
    logging_nan_inf_filter logging_dir include_num_input_tokens_seen include_tokens_per_second log_level
    log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
    trackio_static_space_id eval_strategy evaluation_strategy eval_steps eval_delay prediction_loss_only
    eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics
    include_inputs_for_metrics batch_eval_metrics save_only_model save_strategy save_steps save_on_each_node
    save_total_limit save_safetensors enable_jit_checkpoint push_to_hub push_to_hub_model_id
    push_to_hub_organization push_to_hub_token hub_token hub_private_repo hub_model_id hub_strategy hub_always_push
    hub_revision load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip
    restore_callback_states_from_checkpoint full_determinism seed data_seed use_cpu no_cuda use_mps_device use_ipex
    accelerator_config accelerator_config.* dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
    remove_unused_columns label_names train_sampling_strategy length_column_name group_by_length
    ddp_find_unused_parameters ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout debug
    skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank past_index tpu_num_cores
    mp_parameters fp16_backend half_precision_backend fp16_opt_level tf32 ray_scope jit_mode_eval split_batches
    dispatch_batches sortish_sampler predict_with_generate generation_max_length generation_num_beams
    generation_config lr_scheduler_kwargs.* xpu_backend per_device_eval_batch_size
    """
)
"""Keys of TrainingArguments that change neither memory nor time of a training step."""

UNMODELLED_ARGUMENTS = {
    "neftune_noise_alpha": "NEFTune adds noise to the embeddings: a copy of them",
    "torch_empty_cache_steps": "the allocator's cache is emptied between steps",
    "auto_find_batch_size": "the Trainer halves the batch size when memory runs out",
    "label_smoothing_factor": "label smoothing of the Trainer computes the loss outside the model",
    "ddp_bucket_cap_mb": "the size of DistributedDataParallel's buckets",
    "parallelism_config.*": "the device mesh of accelerate",
    "optim_args": "arguments of the optimizer",
    "optim_target_modules": "the modules that a low-rank optimizer works on",
    "torch_compile_backend": "the backend of torch.compile",
    "torch_compile_mode": "the mode of torch.compile",
}


def optimizer(sheet: Sheet, meaning: Meaning, key: str, **more: tuple[str, tuple[tuple[str, Any], ...]]) -> None:
    """Say which optimizer the word under `key` is. `more`: words of the program beside the Trainer's own."""
    name = (sheet.text(key) or "").removeprefix("OptimizerNames.").lower()
    if name in more or name in OPTIMIZERS:
        word, also = more.get(name) or OPTIMIZERS[name]
        if name == "sgd" and _is_above_zero(arguments_of(sheet.get("optim_args")).get("momentum")):
            meaning.say("optimizer", "sgd-momentum", key, "optim_args")
            return
        meaning.say("optimizer", word, key)
        for other, value in also:
            meaning.say(other, value, key)
    elif name in NEAREST_OPTIMIZERS:
        word, note = NEAREST_OPTIMIZERS[name]
        meaning.say("optimizer", word, key)
        meaning.lack(key, note)
    elif name.endswith("_layerwise") and name.removesuffix("_layerwise") in NO_LAYERWISE:
        message = f"{name} ends with an error: the Trainer gives each Adafactor a rate and relative steps"
        sheet.problem(key, message, hint=name.removesuffix("_layerwise"))
    elif name.removesuffix("_layerwise") in LOW_RANK_OPTIMIZERS:
        arguments = arguments_of(sheet.get("optim_args"))
        word = name.removesuffix("_layerwise").replace("_", "-")
        meaning.say("optimizer", f"{word}:{arguments.get('rank', 128)}", key, "optim_args")
        if name.endswith("layerwise"):
            meaning.say("optimizer_in_backward", True, key)
    else:
        known = (*OPTIMIZERS, *NEAREST_OPTIMIZERS, *LOW_RANK_OPTIMIZERS, *more)
        sheet.problem(key, f"{name!r} is not a known optimizer", near_matches(name, known))


def clipping(sheet: Sheet, meaning: Meaning) -> None:
    """The norm that gradients are clipped to; one that steps in backward leaves the Trainer none to clip.

    Source: transformers 5.23, trainer.py, Trainer._clip_grad_norm, of gradients that are gone.
    """
    key, norm = "max_grad_norm", sheet.number("max_grad_norm") or None
    norm = None if norm is not None and norm < 0 else norm  # the Trainer clips to a norm above 0
    word, early = meaning.job.get("optimizer"), meaning.job.get("optimizer_in_backward")
    stepped = word is not None and word.value in STEPPED_IN_BACKWARD
    if norm is not None and (stepped or (early is not None and early.value)):
        if sheet.given(key):
            meaning.note(f"{key}: {norm:g} clips nothing, as no gradient is left when backward is over")
        norm = None
    meaning.say("max_gradient_norm", norm if norm is None else min(norm, MOST), key)


def _is_above_zero(text: str | None) -> bool:
    try:
        return text is not None and float(text) > 0
    except ValueError:
        return False


def arguments_of(value: Any) -> dict[str, str]:
    """`rank=64, scale=2` as a mapping."""
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    pairs = (part.split("=", 1) for part in str(value or "").split(",") if "=" in part)
    return {key.strip(): item.strip() for key, item in pairs}


def scaled_loss(meaning: Meaning, half: str | None, *of: str) -> None:
    """The loss of fp16 is scaled, but by DeepSpeed's engine, which does so by itself.

    Source: huggingface/accelerate 1.15.0, src/accelerate/accelerator.py and utils/modeling.py, get_grad_scaler.
    """
    if half == "fp16":
        meaning.say("grad_scaler", True, *of)


def checkpointing_kwargs(sheet: Sheet, key: str = "gradient_checkpointing_kwargs") -> bool | None:
    """`use_reentrant` of the arguments of checkpointing, None if they do not say."""
    below = sheet.under(key)
    whole = sheet.get(key)
    if isinstance(whole, Mapping):
        below = dict(whole)
    value = below.get("use_reentrant")
    return None if value is None else str(value).lower() == "true"


LIGER_CONFIG = "liger_kernel_config"
LIGER_KEYS = {"rms-norm": ("rms_norm",), "glu": ("swiglu", "geglu"), "rope": ("rope",)}
"""By the word of a job: the arguments of Liger's functions that say so, of which a model type has one of several."""


def liger(sheet: Sheet, meaning: Meaning, key: str, *, loss: bool = True) -> None:
    """Liger's loss and its other kernels, but for those that `liger_kernel_config` turns off.

    `loss`: of a trainer with a loss of its own the Trainer patches the other kernels alone.

    Source: transformers 5.23, trainer.py and integrations/liger.py, apply_liger_kernel.
    """
    config = sheet.under(LIGER_CONFIG)
    if loss and config.get("fused_linear_cross_entropy", True):
        meaning.say("loss", "fused", key)
    kernels = [word for word, names in LIGER_KEYS.items() if all(config.get(name, True) for name in names)]
    if kernels:
        meaning.say("liger_kernels", kernels, key, LIGER_CONFIG)


LAUNCHED = (
    "launcher.nproc_per_node",
    "launcher.nnodes",
    "launcher.num_processes",
    "launcher.num_gpus",
    "launcher.num_nodes",
)
"""Options of launchers that say how many GPUs there are."""

LAUNCHER = names(
    """
    launcher.node_rank launcher.master_addr launcher.master_port launcher.rdzv_backend launcher.rdzv_endpoint
    launcher.rdzv_id launcher.standalone launcher.max_restarts launcher.hostfile launcher.include launcher.exclude
    launcher.module launcher.tee launcher.log_dir launcher.role launcher.rdzv_conf launcher.redirects
    launcher.bind_cores_to_rank launcher.bind_core_list launcher.main_process_port launcher.main_process_ip
    launcher.machine_rank launcher.gpu_ids
    launcher.monitor_interval launcher.start_method launcher.local_addr launcher.local_ranks_filter
    launcher.ssh_port launcher.launcher launcher.launcher_args launcher.no_python launcher.no_local_rank launcher.no_ssh
    launcher.no_ssh_check launcher.force_multi launcher.save_pid launcher.enable_each_rank_log launcher.venv_script
    launcher.log_level
    """
)
"""Options of launchers that say nothing of a job."""


def devices(sheet: Sheet) -> int | None:
    """How many GPUs a launcher starts on all its nodes; None where it does not say."""
    each = next((sheet.count(key) for key in LAUNCHED[:1] + LAUNCHED[2:4] if sheet.given(key)), None)
    nodes = next((sheet.count(key) for key in ("launcher.nnodes", "launcher.num_nodes") if sheet.given(key)), None)
    if sheet.given("launcher.num_processes"):
        nodes = 1
    return None if each is None else each * (nodes or 1)


def other_reference(sheet: Sheet, meaning: Meaning, key: str, trained_key: str = "model_name_or_path") -> None:
    """Tell of a reference that `key` names and that is another model than the trained one, of which a copy is counted.

    A reference of the same sizes is such a copy.
    """
    name, trained = sheet.text(key), sheet.text(trained_key)
    if not name or name == trained:
        return
    one, other = sheet.shape_of(trained or ""), sheet.shape_of(name)
    sizes = [None if shape is None else (shape.layers, shape.hidden_size, shape.family) for shape in (one, other)]
    if sizes[0] is None or sizes[0] != sizes[1]:
        meaning.lack(key, f"{shown(name)} is the reference, and a copy of the trained model is counted")


def complete(sheet: Sheet, table: Table) -> None:
    """Give options of a command line that are the beginning of one understood key its name, as argparse does."""
    for key in [key for key in sheet.written if "." not in key and table.class_of(key) is None]:
        found = [name for name in table.understood if name.startswith(key) and "." not in name]
        if not found:  # of those that change nothing, where a letter or two are missing
            found = [name for name in table.without_effect if name.startswith(key) and len(name) <= len(key) + 2]
        if len(found) == 1 and found[0] not in sheet.written:
            sheet.written[found[0]] = sheet.written.pop(key)


def turned_off(sheet: Sheet, table: Table) -> None:
    """Read `--no_KEY` as KEY turned off, which HfArgumentParser has for each switch that is on by default.

    Source: huggingface/transformers 5.23.0, src/transformers/hf_argparser.py, _parse_dataclass_field.
    """
    for key in [key for key in sheet.written if key.startswith("no_") and table.class_of(key) is None]:
        name = key.removeprefix("no_")
        if table.class_of(name) is not None and name not in sheet.written and sheet.written[key].value is True:
            sheet.written[name] = sheet.written.pop(key)._replace(value=False)


def renamed(sheet: Sheet, names: Mapping[str, str]) -> None:
    """Give settings that a script calls otherwise the names of the program."""
    for key, name in names.items():
        if key in sheet.written and name not in sheet.written:
            sheet.written[name] = sheet.written.pop(key)
        elif key in sheet.written and str(sheet.written[key].value) == str(sheet.written[name].value):
            sheet.taken.add(key)


def limit_of_gathers(sheet: Sheet, meaning: Meaning, value: Any) -> None:
    """Say that FSDP1 gathers without a limit, where a file does so; with a limit is what PyTorch does by itself.

    Source: huggingface/transformers 5.23.0, src/transformers/training_args.py, _process_fsdp_args (the Trainer's
    fsdp_config alone: `accelerate launch` hands no such option on).
    """
    version, word = meaning.job.get("parallel.fsdp_version"), meaning.job.get("parallel.sharding")
    is_first = version is not None and version.value == 1 and word is not None and word.value != "ddp"
    if is_first and str(value).lower() in ("false", "0"):
        keys = ("fsdp_config.limit_all_gathers", "fsdp_config.fsdp_limit_all_gathers")
        meaning.say("parallel.limit_all_gathers", False, *(key for key in keys if sheet.given(key)))


WITHIN_BLOCKS = re.compile(r"(?i)moe|mlp|expert|attention|embedding|linear|ffn|feedforward")
"""What the class of a part of a block has in its name."""


def wrapping(sheet: Sheet, meaning: Meaning, policy: str, classes: str) -> None:
    """Tell of FSDP's units where a file has them otherwise than the blocks, which are counted.

    `policy`, `classes`: the keys that say how units are found, and of which classes they are.
    Source: huggingface/accelerate 1.15.0, utils/dataclasses.py, FullyShardedDataParallelPlugin.set_auto_wrap_policy.
    """
    word = str(sheet.get(policy) or "").upper()
    if word == "NO_WRAP":
        meaning.lack(policy, "the whole model is one unit of FSDP, and its blocks are counted as units")
    elif word == "SIZE_BASED_WRAP":
        meaning.lack(policy, "units of FSDP have a least size, and blocks are counted as units")
    named = [name.strip() for name in str(sheet.get(classes) or "").strip("[]").split(",")]
    within = [name for name in named if WITHIN_BLOCKS.search(name)]
    if word in ("", "TRANSFORMER_BASED_WRAP") and within and len(within) == len(named):
        meaning.lack(classes, f"units of FSDP are {', '.join(within)}, and whole blocks are counted as units")


OLD_MODULES = {"neox": {"embed_out": "lm_head"}}
"""By the family: modules by their names up to Transformers 4, and those of Transformers 5.

Source: huggingface/transformers 4.57.1 and 5.23.0, models/gpt_neox/modeling_gpt_neox.py, GPTNeoXForCausalLM.
"""


def name_modules(meaning: Meaning, family: str) -> None:
    """Take the names of Transformers 5 for modules that are saved whole."""
    key = "adapter.modules_to_save"
    saved, names = meaning.job.get(key), OLD_MODULES.get(family, {})
    if saved is None or not any(word in names for word in saved.value):
        return
    meaning.job[key] = saved._replace(value=[names.get(word, word) for word in saved.value])
    changed = [f"{word} is {names[word]} in Transformers 5" for word in saved.value if word in names]
    meaning.note(f"{key}: {', '.join(changed)}")
