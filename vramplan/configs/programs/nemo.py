"""NeMo: a recipe in Python, or one YAML file for the scripts under `examples/nlp/language_modeling`.

Those scripts are configured by Hydra, and older than the recipes of NeMo 2.

Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and its variants,
examples/nlp/language_modeling/tuning/conf/megatron_gpt_finetuning_config.yaml,
nemo/collections/nlp/models/language_modeling/megatron_base_model.py and megatron_gpt_model.py (what each key does),
nemo/collections/nlp/parts/megatron_trainer_builder.py (`megatron_amp_O2`: a master copy in fp32),
nemo/core/config/hydra_runner.py (commands).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from vramplan.configs.command import Words, assigned, named, option
from vramplan.configs.programs import nemo_models as model
from vramplan.configs.programs import nemo_recipes as recipes
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet, Written
from vramplan.configs.shell import Script
from vramplan.configs.table import Release, Table, names

UNDERSTOOD = names(
    """
    trainer.devices trainer.num_nodes trainer.precision trainer.gradient_clip_val trainer.accumulate_grad_batches
    model.seq_length model.data.seq_length_dec model.micro_batch_size model.global_batch_size
    model.tensor_model_parallel_size model.pipeline_model_parallel_size model.virtual_pipeline_model_parallel_size
    model.context_parallel_size model.expert_model_parallel_size model.encoder_seq_length model.hidden_dropout
    model.attention_dropout model.ffn_dropout model.megatron_amp_O2 model.sequence_parallel model.fp8
    model.fp8_hybrid model.fp8_e4m3 model.activations_checkpoint_granularity model.activations_checkpoint_method
    model.activations_checkpoint_num_layers model.use_flash_attention model.optim.name model.fsdp
    model.fsdp_sharding_strategy model.peft.peft_scheme model.peft.lora_tuning.target_modules
    model.peft.lora_tuning.adapter_dim model.peft.lora_tuning.alpha model.peft.lora_tuning.adapter_dropout
    model.data.train_ds.max_seq_length model.data.seq_length model.rampup_batch_size
    model.data.train_ds.packed_sequence
    """
)
WITHOUT_EFFECT = names(
    """
    defaults name run.* hydra.* exp_manager.* s3_checkpointing.* trainer.accelerator trainer.logger
    trainer.enable_checkpointing trainer.use_distributed_sampler trainer.replace_sampler_ddp trainer.max_epochs
    trainer.max_steps trainer.max_time trainer.log_every_n_steps trainer.val_check_interval
    trainer.limit_val_batches trainer.limit_test_batches trainer.benchmark trainer.enable_model_summary
    trainer.num_sanity_val_steps trainer.strategy trainer.resume_from_checkpoint trainer.check_val_every_n_epoch
    model.mcore_gpt model.skip_train model.init_method_std model.use_scaled_init_method
    model.apply_query_key_layer_scaling model.layernorm_epsilon model.do_layer_norm_weight_decay
    model.make_vocab_size_divisible_by model.pre_process model.post_process model.transformer_block_type
    model.openai_gelu model.normalize_attention_scores model.rotary_percentage model.rotary_base
    model.rotary_interleaved model.seq_len_interpolation_factor model.scale_positional_embedding model.reset_lr
    model.reset_lr_steps model.tokenizer.vocab_file model.tokenizer.merge_file model.tokenizer.delimiter
    model.tokenizer.sentencepiece_legacy model.tokenizer.* model.native_amp_* model.hysteresis model.seed
    model.resume_from_checkpoint model.use_cpu_initialization model.onnx_safe model.apex_transformer_log_level
    model.nccl_communicator_config_path model.sync_batch_comm model.dist_ckpt_* model.fsdp_sharded_checkpoint
    model.data.* model.nsys_profile.* model.memory_profile.* model.optim.lr model.optim.weight_decay
    model.optim.betas model.optim.sched.* model.optim.eps model.enable_megatron_timers model.megatron_timer_kwargs.*
    model.sharp model.reduce_amax model.fp8_margin model.fp8_interval model.fp8_amax_history_len
    model.fp8_amax_compute_algo model.moe_aux_loss_coeff model.moe_z_loss_coeff model.moe_router_load_balancing_type
    model.answer_only_loss model.save_nemo_on_validation_end model.peft.restore_from_path
    model.peft.restore_from_ckpt.* model.peft.restore_from_hparams_path model.peft.lora_tuning.column_init_method
    model.peft.lora_tuning.row_init_method model.peft.lora_tuning.position_embedding_strategy
    model.peft.lora_tuning.variant model.peft.adapter_tuning.* model.peft.p_tuning.* model.peft.ia3_tuning.*
    model.peft.selective_tuning.* chat chatbot_config.* server port web_server share username password web_port
    model.name restore_from_path model.peft.restore_from_ckpt_name inference.* model.test_ds.* model.hparams_file
    model.precision model.embedding_init_method_std model.tokens_head_bias
    model.share_decoder_tokens_head_embeddings model.megatron_legacy model.add_pooler model.add_lm_head
    model.nemo_path model.pretrained_checkpoint.* model.pretrained_model_path model.restore_path model.head_scale
    model.attention_type model.pp_* model.gc_interval
    """
)
UNMODELLED = {
    "model.persist_layer_norm": "which LayerNorm kernel",
    "model.headscale": "heads are scaled",
    "model.overlap_p2p_comm": "stages send during computation",
    "model.batch_p2p_comm": "stages send several tensors at once",
    "model.fp32_residual_connection": "the residual stream is in fp32",
    "model.fp16_lm_cross_entropy": "the cross entropy reads half-precision logits",
    "model.grad_allreduce_chunk_size_mb": "buckets of gradients",
    "model.grad_div_ar_fusion": "gradients are divided while they are reduced",
    "model.gradient_accumulation_fusion": "gradients of weights are added up inside the product",
    "model.bias_activation_fusion": "bias and activation are fused",
    "model.bias_dropout_add_fusion": "bias and dropout are fused",
    "model.masked_softmax_fusion": "the softmax of attention is fused",
    "model.get_attention_mask_from_fusion": "the softmax kernel makes the mask",
    "model.apply_rope_fusion": "the rotary embedding is fused",
    "model.gradient_as_bucket_view": "gradients are views of buckets",
    "model.validation_param_sync_overlap": "parameters are gathered during validation",
    "model.fsdp_grad_reduce_dtype": "element type of reduced gradients",
    "model.fsdp_use_orig_params": "how FSDP keeps its parameters",
    "model.num_micro_batches_with_partial_activation_checkpoints": "some micro-batches are not recomputed",
    "model.activations_checkpoint_layers_per_pipeline": "fewer blocks are recomputed on later stages",
    "model.transformer_engine": "layers of Transformer Engine",
    "model.use_emha": "attention of Transformer Engine",
    "model.ub_tp_comm_overlap*": "communication overlaps with products, with buffers of its own",
    "model.cpu_offloading*": "activations or weights on the host",
    "model.layernorm_zero_centered_gamma": "weights of norms are kept around zero",
    "model.mcore_customization_config.*": "a model that differs from GPT",
    "model.drop_layers": "layers that are left out",
    "model.embedding_dropout": "dropout of embeddings",
    "model.hybrid_override_pattern": "which blocks are Mamba's",
    "model.mamba_*": "blocks of Mamba",
    "model.retro.*": "blocks that attend to retrieved texts",
    "model.activations_checkpoint_recurrent": "recurrent blocks are recomputed",
    "model.window_size": "attention to a window",
    "model.logits_soft_cap": "logits are capped",
    "model.gated_linear_unit": "the MLP is gated",
    "model.add_bias_linear": "linear layers have biases",
    "model.kd_*": "distillation from a teacher",
    "quantization.*": "weights are quantized for inference",
    "model.eval_languages": "an evaluation",
    "model.moe_grouped_gemm": "the experts are one grouped product",
    "model.moe_token_dispatcher_type": "how tokens reach the experts",
    "model.peft.lora_tuning.layer_selection": "adapters on some layers only",
    "model.peft.lora_tuning.weight_tying": "adapters share weights",
    "model.optim.bucket_cap_mb": "buckets of the distributed optimizer",
    "model.optim.overlap_*": "the distributed optimizer communicates during computation",
    "model.optim.contiguous_*": "buffers of the distributed optimizer",
    "model.optim.grad_sync_dtype": "element type of reduced gradients",
    "model.optim.dtype": "element type of the distributed optimizer",
    "model.tp_comm_*": "communication overlaps with products, with buffers of its own",
}
DEFAULTS: dict[str, Any] = {
    "trainer.devices": 1,
    "trainer.num_nodes": 1,
    "model.tensor_model_parallel_size": 1,
    "model.pipeline_model_parallel_size": 1,
    "model.context_parallel_size": 1,
    "model.expert_model_parallel_size": 1,
    "model.megatron_amp_O2": False,
    "model.optim.name": "fused_adam",
    "model.peft.lora_tuning.adapter_dim": 32,
    "model.peft.lora_tuning.adapter_dropout": 0.0,
    "model.fsdp_sharding_strategy": "full",
}
RELEASES = (
    Release(
        "2.5.0",
        "2025-09-20",
        "NVIDIA/NeMo 2.5.0rc0 (8cfedd72), examples/nlp/language_modeling/conf/megatron_gpt_config.yaml",
        {**DEFAULTS, **recipes.DEFAULTS},
    ),
)

HALVES = {
    **dict.fromkeys(("bf16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("16", "16-mixed", "16-true", "fp16"), "fp16"),
    **dict.fromkeys(("32", "32-true", "fp32"), "fp32"),
}
OPTIMIZERS = {
    "fused_adam": "adam",
    "adam": "adam",
    "adamw": "adamw",
    "distributed_fused_adam": "adam",
    "mcore_distributed_optim": "adam",
    "megatron_fused_adam": "adam",
    "sgd": "sgd",
    "adafactor": "adafactor",
}
DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim")
TARGETS = {
    "attention_qkv": ("q_proj", "k_proj", "v_proj"),
    "attention_dense": ("o_proj",),
    "mlp_fc1": ("gate_proj", "up_proj"),
    "mlp_fc2": ("down_proj",),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are NeMo's alone."""
    own: tuple[str, ...]
    own = ("model.megatron_amp_O2", "model.tensor_model_parallel_size", "model.encoder_seq_length", "trainer.num_nodes")
    own += ("trainer.strategy._class", "trainer.strategy.tensor_model_parallel_size", "data.micro_batch_size")
    return sum(name in keys for name in (*own, "model.restore_from_path", "exp_manager.exp_dir"))


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a NeMo file."""
    if recipes.is_recipe(sheet.written):
        recipes.read(sheet, meaning)
        return
    meaning.say("runtime", "megatron", "model.mcore_gpt")
    length = sheet.count("model.encoder_seq_length") or sheet.count("model.seq_length")
    for key in ("model.data.train_ds.max_seq_length", "model.data.seq_length"):
        found = sheet.written.get(key)
        if length is None and found is not None and str(found.value).isdigit():
            length = sheet.count(key)
        sheet.taken.add(key)
    model.read(sheet, meaning, length)
    if length:
        meaning.say("sequence_length", length, "model.encoder_seq_length")
    else:
        meaning.ask("sequence_length", "the file has no model.encoder_seq_length (--seq N)")
    _batch(sheet, meaning)
    _numbers(sheet, meaning)
    _checkpointing(sheet, meaning)
    if sheet.flag("model.use_flash_attention"):
        meaning.say("attention", "flash", "model.use_flash_attention")
    _adapter(sheet, meaning)


def _batch(sheet: Sheet, meaning: Meaning) -> None:
    for key in ("model.hidden_dropout", "model.attention_dropout", "model.ffn_dropout", "model.rampup_batch_size"):
        sheet.get(key)
    sizes = {
        "parallel.tensor": "model.tensor_model_parallel_size",
        "parallel.pipeline": "model.pipeline_model_parallel_size",
        "parallel.context": "model.context_parallel_size",
        "parallel.expert": "model.expert_model_parallel_size",
    }
    degrees = {}
    for ours, key in sizes.items():
        degrees[ours] = sheet.count(key) or 1
        if degrees[ours] > 1:
            meaning.say(ours, degrees[ours], key)
    if sheet.flag("model.sequence_parallel") and degrees["parallel.tensor"] > 1:
        meaning.say("parallel.sequence_parallel", True, "model.sequence_parallel")
    chunks = sheet.count("model.virtual_pipeline_model_parallel_size")
    if chunks and chunks > 1:
        meaning.say("parallel.schedule", f"interleaved:{chunks}", "model.virtual_pipeline_model_parallel_size")
    each = degrees["parallel.tensor"] * degrees["parallel.pipeline"] * degrees["parallel.context"]
    devices = sheet.text("trainer.devices") or "1"
    world = sheet.devices or ((sheet.count("trainer.num_nodes") or 1) * int(devices) if devices.isdigit() else 0)
    sheet.count("trainer.num_nodes")
    data = world // each if world and world % each == 0 else 0
    if data:
        meaning.say("parallel.data", data, "trainer.devices", "trainer.num_nodes")
    else:
        meaning.ask("parallel.data", f"the file starts {world or 'all'} GPUs, and groups of {each} (--gpus N)")
        if world:
            meaning.note(f"trainer.devices x trainer.num_nodes is {world}, and {each} GPUs are needed")
        data = max(1, degrees["parallel.expert"] // degrees["parallel.context"])  # the fewest that experts need
    micro, total = sheet.count("model.micro_batch_size"), sheet.count("model.global_batch_size")
    sheet.count("trainer.accumulate_grad_batches")
    if micro:
        meaning.say("micro_batch_size", micro, "model.micro_batch_size")
    if micro and total:
        if total % (micro * data):
            message = f"{total} is no multiple of {micro} samples x {data} data-parallel devices"
            sheet.problem("model.global_batch_size", message)
        else:
            meaning.say("gradient_accumulation_steps", total // (micro * data), "model.global_batch_size")


def _numbers(sheet: Sheet, meaning: Meaning) -> None:
    half = sheet.word("trainer.precision", HALVES, "32")
    master = sheet.flag("model.megatron_amp_O2")
    sheet.flag("model.fp8_hybrid")
    sheet.flag("model.fp8_e4m3")
    of = ("trainer.precision", "model.megatron_amp_O2")
    if sheet.flag("model.fp8"):
        meaning.say("precision", "fp8", "model.fp8")
    elif half == "fp32":
        meaning.say("precision", "fp32", *of)
    elif half:
        meaning.say("precision", f"{'mixed' if master else 'amp'}-{half}", *of)
    name = sheet.text("model.optim.name") or ""
    word = sheet.word("model.optim.name", OPTIMIZERS)
    if word:
        meaning.say("optimizer", word, "model.optim.name")
    if name in DISTRIBUTED:
        meaning.say("parallel.sharding", "distributed-optimizer", "model.optim.name")
    strategy = sheet.text("model.fsdp_sharding_strategy") or "full"
    if sheet.flag("model.fsdp"):
        words = {"full": "fsdp", "grad": "fsdp-grad-op", "hybrid": "hsdp:8"}
        meaning.say("parallel.sharding", words.get(strategy, "fsdp"), "model.fsdp", "model.fsdp_sharding_strategy")
        meaning.say("parallel.fsdp_version", 1, "model.fsdp")
    norm = sheet.number("trainer.gradient_clip_val")
    meaning.say("max_gradient_norm", norm or None, "trainer.gradient_clip_val")


def _checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    granularity = sheet.text("model.activations_checkpoint_granularity")
    method = sheet.text("model.activations_checkpoint_method")
    each = sheet.count("model.activations_checkpoint_num_layers") or 1
    of = ("model.activations_checkpoint_granularity", "model.activations_checkpoint_num_layers")
    if granularity == "selective":
        meaning.say("activation_checkpointing", "selective", of[0])
    elif granularity == "full":
        word = "full" if method == "block" or each == 1 else f"every:{each}"
        meaning.say("activation_checkpointing", word, *of)
        if method == "block":
            meaning.lack("model.activations_checkpoint_method", "some blocks, and each is counted as recomputed")
    elif granularity in (None, "null", "None"):
        meaning.say("activation_checkpointing", "none", of[0])
    else:
        sheet.problem(of[0], f"{granularity!r} is not understood", "full, selective or null")


def _adapter(sheet: Sheet, meaning: Meaning) -> None:
    scheme = (sheet.text("model.peft.peft_scheme") or "").lower()
    rank, dropout = (
        sheet.count("model.peft.lora_tuning.adapter_dim"),
        sheet.number("model.peft.lora_tuning.adapter_dropout"),
    )
    named = sheet.texts("model.peft.lora_tuning.target_modules") or ["attention_qkv"]
    alpha = sheet.get("model.peft.lora_tuning.alpha")
    if sheet.flag("model.data.train_ds.packed_sequence"):
        meaning.say("packing", True, "model.data.train_ds.packed_sequence")
        meaning.say("attention", "flash", "model.data.train_ds.packed_sequence")  # it takes lengths alone
    if scheme in ("", "none", "null"):
        return
    if scheme in ("adapter", "ptuning", "ia3", "selective", "mora"):
        meaning.lack("model.peft.peft_scheme", f"{scheme}, and full fine-tuning is counted")
        return
    if scheme not in ("lora", "qlora"):
        sheet.problem("model.peft.peft_scheme", f"{scheme!r} is not understood", "lora, or null")
        return
    targets: Any = []
    for name in named:
        if name == "all":
            targets = "all-linear"
            break
        if name not in TARGETS:
            sheet.problem("model.peft.lora_tuning.target_modules", f"{name!r} is not understood", ", ".join(TARGETS))
            continue
        targets += TARGETS[name]
    meaning.say("adapter.kind", "lora", "model.peft.peft_scheme")
    meaning.say("adapter.rank", rank, "model.peft.lora_tuning.adapter_dim")
    meaning.say("adapter.targets", targets, "model.peft.lora_tuning.target_modules")
    meaning.say("adapter.dropout", dropout, "model.peft.lora_tuning.adapter_dropout")
    number = int(alpha) if str(alpha).isdigit() else rank
    meaning.say("adapter.alpha", number, "model.peft.lora_tuning.alpha")
    if "attention_qkv" in named:
        meaning.note("attention_qkv is one layer in NeMo; its adapter is counted as one each for q, k and v")


TABLE = Table(
    UNDERSTOOD | model.UNDERSTOOD | recipes.UNDERSTOOD,
    WITHOUT_EFFECT | recipes.WITHOUT_EFFECT,
    {**UNMODELLED, **recipes.UNMODELLED},
)
HYDRA = {
    "megatron_gpt_pretraining.py": "megatron_gpt_config",
    "megatron_gpt_finetuning.py": "megatron_gpt_finetuning_config",
}
HYDRA |= {"megatron_bert_pretraining.py": "megatron_bert_config", "megatron_t5_pretraining.py": "megatron_t5_config"}
"""The files that NeMo's scripts take without `--config-name`."""


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    folder, name = (option(words, key, file) for key in ("--config-path", "--config-name"))
    at = next((word for word in words if named(word) in HYDRA), None)
    module = next((word.text for before, word in pairwise(words) if before.text == "-m"), "nemo")
    if (name is None and at is None) or not module.startswith(("nemo", "torch.")):
        return None
    if name is None and at is not None:
        name = Written(HYDRA[named(at)], file, at.line)
    assert name is not None
    path = str(name.value) if str(name.value).endswith((".yaml", ".yml")) else f"{name.value}.yaml"
    if folder is not None:
        path = f"{str(folder.value).rstrip('/')}/{path}"
    return Launched(name._replace(value=path), assigned(words, file), None)


PROGRAM = Program("nemo", RELEASES, TABLE, read, recognise, started=started)
