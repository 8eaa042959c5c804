"""torchtune: one YAML file for `tune run RECIPE --config FILE`.

Source: pytorch/torchtune main after 0.6.1 (bd2a0fc7), recipes/*.py (which keys a recipe reads and their defaults),
torchtune/models/*/_model_builders.py (models and the defaults of their adapters), torchtune/modules/loss/,
torchtune/_cli/run.py and config/_utils.py (`key=value`, `~key`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.command import Words, assigned, option, processes, starts_with
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet
from vramplan.configs.shell import Script
from vramplan.configs.table import Release, Table, names

UNDERSTOOD = names(
    """
    model._component_ model.lora_attn_modules model.apply_lora_to_mlp model.apply_lora_to_output model.lora_rank
    model.lora_alpha model.lora_dropout model.use_dora model.quantize_base model.max_seq_len model.vocab_size
    model.num_layers model.num_heads model.num_kv_heads model.embed_dim model.intermediate_dim
    model.tie_word_embeddings policy_model.vocab_size policy_model.max_seq_len policy_model.num_layers
    policy_model.num_heads policy_model.num_kv_heads policy_model.embed_dim policy_model.intermediate_dim
    policy_model._component_ tokenizer.max_seq_len dataset.packed batch_size gradient_accumulation_steps
    optimizer._component_ optimizer.fused optimizer.foreach optimizer.momentum optimizer_in_bwd loss._component_
    loss.num_output_chunks clip_grad_norm compile dtype enable_activation_checkpointing enable_activation_offloading
    ac_mode ac_option fsdp_cpu_offload fsdp.cpu_offload fsdp_reshard_after_forward custom_sharded_layers
    tensor_parallel_dim
    tensor_parallel_plan._component_ context_parallel_dim data_parallel_shard_dim data_parallel_replicate_dim
    enable_fp8_training enable_expandable_segments
    """
)

WITHOUT_EFFECT = names(
    """
    output_dir tokenizer.* checkpointer.* teacher_checkpointer.* ref_checkpointer.* ref_policy_checkpointer.*
    value_checkpointer.* reward_checkpointer.* resume_from_checkpoint save_adapter_weights_only save_every_n_steps
    save_every_n_epochs enable_async_checkpointing dataset dataset.* dataset_val dataset_val.* datasets dataloader.*
    seed shuffle epochs max_steps_per_epoch num_steps batch_size_val run_val_every_n_steps optimizer.lr
    optimizer.weight_decay optimizer.betas optimizer.eps optimizer.nesterov optimizer.amsgrad lr_scheduler
    lr_scheduler.* loss.ignore_index loss.beta loss.label_smoothing loss.epsilon loss.kl_coeff loss.value_coeff
    loss.value_clip_range loss.reduction metric_logger.* log_every_n_steps log_peak_memory_stats log_level
    profiler.* profile_memory device collate_fn kd_ratio name base_model_path checkpoint_dir checkpoint_files
    cudnn_deterministic_mode debug_logging_enabled debug_num_samples_per_step ppo_epochs gamma lmbda whiten_rewards
    penalise_no_eos reward_penalty min_response_length stop_token_ids kl_coeff temperature top_k reward_functions
    grad_reduce_dtype fp8_recipe_name use_distributed_state_dict low_cpu_ram context_parallel_rotate_method
    policy_model.* activation_offloading_use_streams chat_template prompt prompt.* max_new_tokens tasks limit
    model.attn_dropout model.norm_eps model.rope_base model.encoder_max_seq_len apply_chat_template include_path
    max_seq_length num_output_chunks model.max_batch_size
    """
)

UNMODELLED = {
    "memory_efficient_fsdp_wrap": "layers that are sharded on their own, as embedding and head",
    "teacher_model.*": "the teacher of a distillation: its weights and its logits",
    "kd_loss.*": "the loss of a distillation",
    "quantizer.*": "quantization-aware training: fake quantization of weights and activations",
    "quantizer": "quantization-aware training: fake quantization of weights and activations",
    "fake_quant_after_n_steps": "quantization-aware training",
    "reward_and_value_model.*": "the reward and value models of PPO",
    "forward_batch_size": "the batch of the forward passes without gradients",
    "ppo_batch_size": "the batch of PPO",
    "grpo_samples": "answers to each prompt of GRPO",
    "max_generated_tokens": "tokens that are generated",
    "enable_kv_cache": "a KV cache for generating",
    "model.encoder_trainable": "which part of a model of images is trained",
    "model.decoder_trainable": "which part of a model of images is trained",
    "model.fusion_trainable": "which part of a model of images is trained",
    "model.image_size": "pixels of an image",
    "layer_dropout*": "layers that are left out at random",
    "early_exit_loss*": "losses after several layers",
    "resize_token_embeddings": "the embedding is resized to the tokenizer",
    "use_flex": "FlexAttention over packed samples",
    "inference.*": "an inference engine beside training",
    "orchestration.*": "several kinds of workers",
    "postprocessing.*": "several kinds of workers",
    "training.*": "the workers that train, beside an inference engine",
}

_BUILDERS = "torchtune/models/*/_model_builders.py"
DEFAULTS: dict[str, Any] = {
    "enable_activation_checkpointing": False,
    "enable_activation_offloading": False,
    "optimizer_in_bwd": False,
    "compile": False,
    "gradient_accumulation_steps": 1,
    "fsdp_cpu_offload": False,
    "fsdp_reshard_after_forward": True,
    "model.apply_lora_to_mlp": False,
    "model.apply_lora_to_output": False,
    "model.lora_rank": 8,
    "model.lora_alpha": 16,
    "model.lora_dropout": 0.0,
    "loss.num_output_chunks": 8,
}
RELEASES = (
    Release("main", "2026-04-23", f"pytorch/torchtune main (bd2a0fc7), recipes/ and {_BUILDERS}", DEFAULTS),
    Release("0.6.1", "2025-04-10", f"pytorch/torchtune 0.6.1, recipes/ and {_BUILDERS}", DEFAULTS),
)

MODELS = {
    "phi3_mini": "phi-3-mini-4k",
    "phi4_14b": "phi-4",
    "code_llama2_7b": "codellama-7b",
    "code_llama2_13b": "codellama-13b",
    "code_llama2_70b": "codellama-70b",
    "llama2_reward_7b": "llama-2-7b",
    "mistral_reward_7b": "mistral-7b",
    "mistral_classifier_7b": "mistral-7b",
    "llama4_scout_17b_16e": "llama-4-scout-17b-16e",
    "llama4_maverick_17b_128e": "llama-4-maverick-17b-128e",
    "llama3_2_vision_11b": "llama-3.2-11b-vision",
    "llama3_2_vision_90b": "llama-3.2-90b-vision",
}
_NAME = re.compile(
    r"(?:(?P<llama>llama)(?P<llama_version>2|3_1|3_2|3_3|3|4)|(?P<qwen>qwen)(?P<qwen_version>2_5|2|3)|"
    r"(?P<other>gemma|smollm|mistral|phi)(?P<other_version>\d*))(?P<reward>_reward)?"
    r"_(?P<size>\d+(?:_\d+)?[bm])(?P<rest>(?:_\d+e)?)(?:_base|_instruct)?"
)
DASHED = ("llama", "gemma", "phi")  # llama-3.1-8b, but qwen2.5-7b

COMPONENTS = dict.fromkeys(("llama2", "llama3", "llama3_1", "llama3_2", "mistral"), "llama") | {"qwen2": "qwen2"}
"""Builders that take the sizes of a model, torchtune/models/*/_component_builders.py, and families."""

SIZES = {
    "num_layers": "layers",
    "embed_dim": "hidden_size",
    "num_heads": "attention_heads",
    "num_kv_heads": "key_value_heads",
    "intermediate_dim": "intermediate_size",
    "vocab_size": "vocabulary_size",
    "max_seq_len": "max_positions",
}

PROJECTIONS = {"output_proj": "o_proj"}
MLP = ("gate_proj", "down_proj", "up_proj")

OPTIMIZERS = {
    "torch.optim.AdamW": "adamw",
    "torch.optim.Adam": "adam",
    "torch.optim.SGD": "sgd",
    "torch.optim.RMSprop": "rmsprop",
    "torch.optim.Adafactor": "adafactor",
    "bitsandbytes.optim.AdamW": "adamw",
    "bitsandbytes.optim.AdamW8bit": "adamw-8bit",
    "bitsandbytes.optim.PagedAdamW": "adamw-paged",
    "bitsandbytes.optim.PagedAdamW8bit": "adamw-8bit-paged",
    "bitsandbytes.optim.Lion": "lion",
    "torchao.optim.AdamW8bit": "adamw-8bit",
    "torchao.optim.AdamW4bit": "adamw-8bit",
    "torchao.optim.AdamWFp8": "adamw-8bit",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw-8bit",
    "torchao.prototype.low_bit_optim.AdamW4bit": "adamw-8bit",
    "torchao.prototype.low_bit_optim.CPUOffloadOptimizer": "adamw",
}
LOSSES = {
    "torchtune.modules.loss.LinearCrossEntropyLoss": "chunked",
    "torchtune.modules.loss.CEWithChunkedOutputLoss": "chunked",
    "torch.nn.CrossEntropyLoss": "standard",
    "torchtune.rlhf.loss.DPOLoss": "dpo",
    "torchtune.rlhf.loss.RSOLoss": "dpo",
    "torchtune.rlhf.loss.IPOLoss": "dpo",
    "torchtune.rlhf.loss.SimPOLoss": "simpo",
    "torchtune.rlhf.loss.PPOLoss": "ppo",
}
DTYPES = {"bf16": "pure-bf16", "bfloat16": "pure-bf16", "fp32": "fp32", "float32": "fp32", "fp16": "pure-fp16"}

UNITS = {
    ("tok_embeddings",): "embedding",
    ("output",): "head",
    ("output", "tok_embeddings"): "embedding-and-head",
}
"""Of `custom_sharded_layers`, in order."""

_RECIPE = re.compile(r"\b(\w*_(?:single_device|distributed)|\w*_distributed_\w+)\b")


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are torchtune's alone."""
    own = ("model._component_", "optimizer._component_", "loss._component_", "tokenizer._component_")
    return sum(name in keys for name in (*own, "checkpointer._component_", "metric_logger._component_"))


def shape_name(component: str) -> str:
    """The name of a model from its builder: `torchtune.models.llama3_1.lora_llama3_1_8b` is `llama-3.1-8b`."""
    builder = re.sub(r"^(q?lora)_", "", component.rsplit(".", 1)[-1])
    if builder in MODELS:
        return MODELS[builder]
    matched = _NAME.fullmatch(builder)
    if matched is None:
        return builder.replace("_", "-")
    family = matched["llama"] or matched["qwen"] or matched["other"]
    version = (matched["llama_version"] or matched["qwen_version"] or matched["other_version"] or "").replace("_", ".")
    size = matched["size"]
    dash = "-" if version and family in DASHED else ""
    return f"{family}{dash}{version}-{size.replace('_', '.')}{matched['rest'].replace('_', '-')}"


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a torchtune file."""
    meaning.say("runtime", "torchtune", "model._component_")
    key = "model._component_" if sheet.given("model._component_") else "policy_model._component_"
    builder = sheet.text(key) or ""
    part = key.partition(".")[0]
    sizes = {ours: sheet.count(f"{part}.{theirs}") for theirs, ours in SIZES.items()}
    family = COMPONENTS.get(re.sub(r"^lora_", "", builder.rsplit(".", 1)[-1]).removesuffix("_classifier"))
    if family and sizes["layers"] and sizes["hidden_size"] and sizes["attention_heads"]:
        meaning.say("model", _built(sheet, family, sizes, part), key, f"{part}.num_layers", f"{part}.embed_dim")
    elif builder:
        meaning.say("model", shape_name(builder), key)
    else:
        meaning.ask("model", "the file has no model._component_")
    length = sheet.count("tokenizer.max_seq_len")
    if length:
        meaning.say("sequence_length", length, "tokenizer.max_seq_len")
    else:
        meaning.ask("sequence_length", "tokenizer.max_seq_len is null: the longest sample decides (--seq N)")
    batch = sheet.count("batch_size")
    if batch is None:
        meaning.ask("micro_batch_size", "the file has no batch_size")
    else:
        meaning.say("micro_batch_size", batch, "batch_size")
    steps = "gradient_accumulation_steps"
    meaning.say(steps, sheet.count(steps), steps)
    precision = sheet.word("dtype", DTYPES, "bf16")
    if precision:
        meaning.say("precision", precision, "dtype")
    if sheet.flag("enable_fp8_training"):
        meaning.say("precision", "fp8", "enable_fp8_training")
    _optimizer(sheet, meaning)
    norm = sheet.number("clip_grad_norm")
    if norm:
        meaning.say("max_gradient_norm", norm, "clip_grad_norm")
    _checkpointing(sheet, meaning)
    adapter = _adapter(sheet, meaning, builder)
    _loss(sheet, meaning, adapter)
    if str(sheet.get("compile")).lower() == "true" or sheet.under("compile"):
        meaning.say("compile", True, "compile")
    if sheet.flag("dataset.packed"):
        meaning.say("packing", True, "dataset.packed")
    if sheet.flag("enable_expandable_segments"):
        meaning.say("allocator", "expandable_segments:True", "enable_expandable_segments")
    _devices(sheet, meaning)


def _built(sheet: Sheet, family: str, sizes: dict[str, Any], part: str) -> Any:
    """A model of which the file gives the sizes: the name of one with them, or the sizes."""
    width = sizes["hidden_size"]
    if sizes["intermediate_size"] is None:
        sizes["intermediate_size"] = -(-4 * int(2 * width / 3) // 256) * 256  # scale_hidden_dim_for_mlp
    known = {name: value for name, value in sizes.items() if value is not None}
    tied = bool(sheet.flag(f"{part}.tie_word_embeddings")) or "llama3_2" in str(sheet.get(f"{part}._component_"))
    named = sheet.shape_named({"family": family, **known})
    billions = 12 * known["layers"] * width * width / 1e9
    return named or {"name": f"{family}-{billions:.1f}b", "family": family, **known, "tied_embeddings": tied}


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    key = "optimizer._component_"
    name = sheet.text(key)
    if name is None:
        return
    word = sheet.word(key, OPTIMIZERS)
    if word is None:
        return
    if word == "sgd" and sheet.number("optimizer.momentum"):
        word = "sgd-momentum"
    meaning.say("optimizer", word, key)
    fused = sheet.flag("optimizer.fused")
    if name.startswith("torch.") and not fused:
        foreach = sheet.flag("optimizer.foreach", True)
        word = "foreach" if foreach else "for-loop"
        meaning.say("optimizer_implementation", word, "optimizer.fused", "optimizer.foreach")
    else:
        meaning.say("optimizer_implementation", "fused", "optimizer.fused")
    if name.startswith("torchao."):
        meaning.lack(key, f"the states of {name} are counted as {meaning.job['optimizer'].value}")
    if sheet.flag("optimizer_in_bwd"):
        meaning.say("optimizer_in_backward", True, "optimizer_in_bwd")


def _checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    key = "enable_activation_checkpointing"
    word = "full" if sheet.flag(key) else "none"
    mode, option = sheet.text("ac_mode"), sheet.text("ac_option")
    recipe = next((found[1] for found in _RECIPE.finditer(sheet.source)), "")
    if mode and "single_device" not in recipe:  # full_finetune_distributed.py: of the two settings one alone acts
        how = "selective-op" if option == "op" else f"selective-layer:{option or 1}"
        own = "none" if word == "full" else "full" if mode == "full" else how
        meaning.say("activation_checkpointing", own, "ac_mode", "ac_option", key)
    else:
        meaning.say("activation_checkpointing", word, key)
    if sheet.flag("enable_activation_offloading"):
        meaning.say("offload", ["activations"], "enable_activation_offloading")


def _adapter(sheet: Sheet, meaning: Meaning, builder: str) -> bool:
    last = builder.rsplit(".", 1)[-1]
    if not last.startswith(("lora_", "qlora_")):
        return False
    targets = [PROJECTIONS.get(name, name) for name in sheet.texts("model.lora_attn_modules") or []]
    if sheet.flag("model.apply_lora_to_mlp"):
        targets += MLP
    if sheet.flag("model.apply_lora_to_output"):
        meaning.lack("model.apply_lora_to_output", "an adapter of the head, and that of the other layers is counted")
    dora = sheet.flag("model.use_dora")
    meaning.say("adapter.kind", "dora" if dora else "lora", "model.use_dora" if dora else "model._component_")
    meaning.say("adapter.rank", sheet.count("model.lora_rank"), "model.lora_rank")
    meaning.say("adapter.targets", targets, "model.lora_attn_modules", "model.apply_lora_to_mlp")
    meaning.say("adapter.dropout", sheet.number("model.lora_dropout"), "model.lora_dropout")
    meaning.say("adapter.alpha", sheet.count("model.lora_alpha"), "model.lora_alpha")
    if last.startswith("qlora_") or sheet.flag("model.quantize_base"):
        meaning.say("quantization", "nf4", "model._component_", "model.quantize_base")
    return True


def _loss(sheet: Sheet, meaning: Meaning, adapter: bool) -> None:
    key = "loss._component_"
    name = sheet.text(key)
    if name is None:
        return
    if "grpo" in name.lower():
        meaning.say("loss", "grpo", key)
        return
    word = sheet.word(key, LOSSES)
    if word == "chunked":
        chunks = sheet.count("loss.num_output_chunks")
        meaning.say("loss", f"chunked:{chunks}", key, "loss.num_output_chunks")
    elif word == "dpo":
        meaning.say("loss", "dpo", key)
        meaning.say("dpo_reference", "adapter-off" if adapter else "model", key)
    elif word:
        meaning.say("loss", word, key)


def _devices(sheet: Sheet, meaning: Meaning) -> None:
    recipe = next((found[1] for found in _RECIPE.finditer(sheet.source)), "")
    tensor = sheet.count("tensor_parallel_dim") or 1
    sheet.text("tensor_parallel_plan._component_")
    context = sheet.count("context_parallel_dim") or 1
    shards, replicas = sheet.count("data_parallel_shard_dim"), sheet.count("data_parallel_replicate_dim") or 1
    only_distributed = ("fsdp_cpu_offload", "fsdp.cpu_offload", "custom_sharded_layers", "fsdp_reshard_after_forward")
    distributed = "distributed" in recipe or tensor > 1 or any(sheet.given(key) for key in only_distributed)
    offload = sheet.flag("fsdp_cpu_offload") or sheet.flag("fsdp.cpu_offload")
    whole = sheet.flag("fsdp_reshard_after_forward")
    if not distributed:
        if "single_device" not in recipe:
            meaning.ask("parallel.data", "the recipe says how many GPUs there are (--gpus N)")
        return
    word = "fsdp" if whole else "fsdp-grad-op"
    if replicas > 1 and shards and shards > 0:
        word = f"hsdp:{shards}"
        meaning.say("parallel.data", shards * replicas, "data_parallel_shard_dim", "data_parallel_replicate_dim")
    elif shards and shards > 0:
        meaning.say("parallel.data", shards, "data_parallel_shard_dim")
    meaning.say("parallel.sharding", word, "the recipe")
    meaning.say("parallel.fsdp_version", 2, "the recipe")
    _units(sheet, meaning)
    if tensor > 1:
        meaning.say("parallel.tensor", tensor, "tensor_parallel_dim")
    if context > 1:
        meaning.say("parallel.context", context, "context_parallel_dim")
    if offload:
        before = meaning.job["offload"].value if "offload" in meaning.job else []
        meaning.say("offload", ["parameters", "gradients", "optimizer", *before], "fsdp_cpu_offload")
    if recipe:
        meaning.note(f"the comment of the file names the recipe {recipe}")
    if sheet.devices and sheet.devices % (tensor * context) == 0 and "parallel.data" not in meaning.job:
        meaning.say("parallel.data", sheet.devices // (tensor * context), "the launcher")
    elif "parallel.data" not in meaning.job:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")


def _units(sheet: Sheet, meaning: Meaning) -> None:
    key = "custom_sharded_layers"
    apart = sheet.texts(key)
    if not apart:
        return
    word = UNITS.get(tuple(sorted({one.removeprefix("decoder.") for one in apart})))
    if word is None:
        meaning.note(
            f"{key}: a job has units of the embedding and the head alone; the others are counted with the rest"
        )
    else:
        meaning.say("parallel.fsdp_units", word, key)


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    if not starts_with(words, "tune", "run") and not any(word.text == "torchtune._cli.tune" for word in words):
        return None
    config = option(words, "--config", file)
    return None if config is None else Launched(config, assigned(words, file), processes(words))


PROGRAM = Program(
    "torchtune", RELEASES, Table(UNDERSTOOD, WITHOUT_EFFECT, UNMODELLED), read, recognise, started=started
)
