"""Megatron-LM: a shell script, its arguments as text, or the YAML of its functional tests (`MODEL_ARGS`).

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py and megatron/training/config/*.py
(arguments and defaults), megatron/core/{model_parallel_config,optimizer/optimizer_config}.py,
megatron/core/transformer/transformer_config.py, megatron/core/distributed/distributed_data_parallel_config.py;
examples/academic_paper_scripts (arguments of releases before core). The sheet has an argument as its name without
`--`, with `_` for `-`; `launcher.*` are those of torchrun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vramplan.configs import shell
from vramplan.configs.programs import megatron_beside as beside
from vramplan.configs.sheet import Meaning, Program, Release, Sheet, Table, Written, names

UNDERSTOOD = names(
    """
    program launcher.nproc_per_node launcher.nproc-per-node launcher.nnodes launcher.nodes num_layers
    encoder_num_layers decoder_num_layers hidden_size ffn_hidden_size num_attention_heads kv_channels
    group_query_attention num_query_groups max_position_embeddings seq_length encoder_seq_length decoder_seq_length
    vocab_size padded_vocab_size tokenizer_type vocab_file tokenizer_model vocab_extra_ids swiglu normalization
    position_embedding_type untie_embeddings_and_output_weights disable_bias_linear num_experts moe_router_topk
    moe_ffn_hidden_size micro_batch_size batch_size global_batch_size rampup_batch_size step_batch_size_schedule
    optimizer clip_grad fp16 bf16 fp8_format fp8_hybrid fp8_e4m3 fp8 recompute_activations recompute_granularity
    recompute_method recompute_num_layers checkpoint_activations activations_checkpoint_method
    activations_checkpoint_num_layers checkpoint_num_layers attention_backend use_flash_attn attention_dropout
    hidden_dropout tensor_model_parallel_size model_parallel_size pipeline_model_parallel_size context_parallel_size
    expert_model_parallel_size num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
    sequence_parallel use_distributed_optimizer overlap_param_gather overlap_grad_reduce optimizer_cpu_offload
    optimizer_offload_fraction moe_expert_capacity_factor moe_pad_expert_input_to_capacity use_megatron_fsdp
    data_parallel_sharding_strategy use_torch_fsdp2 qk_layernorm num_layers_in_first_pipeline_stage
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split sgd_momentum
    """
)

WITHOUT_EFFECT = names(
    """
    launcher.* lr lr_* min_lr adam_* weight_decay* start_weight_decay end_weight_decay head_lr_mult warmup
    decoupled_* train_iters train_samples exit_* manual_gc* log_* no_log_* timing_log_* tensorboard_* wandb_*
    one_logger* no_one_logger app_tag_run_* logging_level save* load* no_save_* no_load_* finetune
    pretrained_checkpoint ckpt_* no_ckpt_* dist_ckpt_* async_save use_dist_ckpt use_checkpoint_*
    auto_detect_ckpt_format use_persistent_ckpt_worker non_persistent_* exit_on_missing_checkpoint override_*
    replication* eval_* skip_train full_validation multiple_validation_sets test_mode data_* train_data_path
    valid_data_path test_data_path per_split_data_args_path per_dataset_sequences_path split mock_data merge_file
    tiktoken_* special_tokens tokenizer_* null_tokenizer_* legacy_tokenizer trust_remote_code chat_template
    num_workers dataloader_* no_mmap_bin_files no_create_attention_mask_in_dataloader num_dataset_builder_threads
    mid_level_dataset_surplus reset_position_ids reset_attention_mask eod_mask_loss mask_prob short_seq_prob seed
    data_parallel_random_init init_method_std init_method_xavier_uniform no_initialization perform_initialization
    use_cpu_initialization distributed_backend distributed_timeout_* local_rank lazy_mpu_init ddp_impl
    nccl_communicator_config_path disable_gloo_process_groups enable_gloo_process_groups use_gloo_process_groups
    use_tp_pp_dp_mapping use_sharp high_priority_stream_groups profile* use_pytorch_profiler pytorch_profiler_*
    record_memory_history memory_snapshot_path nvtx_ranges check_weight_hash_across_dp_replicas_interval check_for_*
    no_check_for_nan_in_loss_and_grad rerun_mode error_injection_* disable_straggler_on_startup straggler_*
    loss_scale* initial_loss_scale min_loss_scale hysteresis use_mcore_models use_legacy_models transformer_impl
    rotary_base rotary_percent rotary_interleaved rotary_seq_len_interpolation_factor use_rotary_position_embeddings
    rope_* use_rope_scaling no_position_embedding apply_layernorm_1p norm_epsilon layernorm_epsilon
    apply_query_key_layer_scaling attention_softmax_in_fp32 deterministic_mode calculate_per_token_loss
    moe_aux_loss_coeff moe_z_loss_coeff moe_input_jitter_eps moe_router_* moe_per_layer_logging
    moe_token_drop_policy train_sync_interval fp8_amax_* fp8_margin fp8_interval no_fp8_wgrad bert_no_binary_head
    classes_fraction data_per_class_fraction sample_rate fim_* enable_ft_package calc_ft_timeouts
    ft_num_warmup_iters inprocess_* sft sft_tokenizer_prompt_format qk_clip_* iterations_to_skip
    result_rejected_tracker_filename gpu_sniff_test_interval adlr_autoresume* delay_grad_reduce no_delay_grad_reduce
    align_grad_reduce align_param_gather no_align_param_gather ddp_average_in_collective mtp_loss_scaling_factor
    yaml_cfg onnx_safe otel_* enable_msc disable_msc muon_* lion_beta1 lion_beta2 config_logger_dir
    make_vocab_size_divisible_by flash_attention_version attention_dropout_* log use_one_sent_docs
    clone_scatter_output_in_embedding no_clone_scatter_output_in_embedding no_barrier_with_level_1_timing
    barrier_with_l1_time tp_comm_bootstrap_backend nccl_all_reduce_for_prefill fake_process_group kitchen_*
    inference_* export_* force_* te_rng_tracker rotary_scaling_factor mscale* async_strategy async_ckpt_*
    verify_integrity no_use_tokenizer_model_from_checkpoint_args no_record_throughput apply_wd_to_qk_layernorm
    flash_decode use_legacy_static_engine max_tokens_to_oom yarn_* no_weight_decay_cond_type
    grad_norm_skip_threshold attention_output_gate_* openai_gelu squared_relu_clip override_opt_param_scheduler
    cache_* workers
    """
)

UNMODELLED = {
    "grad_reduce_in_bf16": "gradients are kept and reduced in bf16",
    "accumulate_allreduce_grads_in_fp32": "gradients are kept and reduced in fp32",
    "fp8_param_gather": "weights are gathered in fp8",
    "fp8_recipe": "how fp8 is scaled",
    "fp8_output_proj": "which products are in fp8",
    "fp8_dot_product_attention": "attention in fp8",
    "fp8_multi_head_attention": "attention in fp8",
    "fp8_quantizer_factory": "how fp8 is scaled",
    "fp4_*": "training in fp4",
    "cross_entropy_loss_fusion": "the cross entropy is one kernel",
    "cross_entropy_fusion_impl": "the cross entropy is one kernel",
    "fp16_lm_cross_entropy": "the cross entropy reads half-precision logits",
    "moe_grouped_gemm": "the experts are one grouped product",
    "moe_use_legacy_grouped_gemm": "the experts are one grouped product",
    "moe_token_dispatcher_type": "how tokens reach the experts",
    "moe_*": "details of the experts",
    "expert_tensor_parallel_size": "tensor parallelism of the experts",
    "no_masked_softmax_fusion": "the softmax of attention is not fused",
    "no_bias_gelu_fusion": "bias and GELU are not fused",
    "no_bias_swiglu_fusion": "bias and SwiGLU are not fused",
    "no_bias_dropout_fusion": "bias and dropout are not fused",
    "no_rope_fusion": "the rotary embedding is not fused",
    "apply_rope_fusion": "the rotary embedding is fused",
    "bias_activation_fusion": "bias and activation are fused",
    "no_gradient_accumulation_fusion": "gradients of weights are not added up inside the product",
    "gradient_accumulation_fusion": "gradients of weights are added up inside the product",
    "no_persist_layer_norm": "the LayerNorm kernel of Apex is not used",
    "no_async_tensor_model_parallel_allreduce": "gradients of inputs are reduced before the product",
    "recompute_modules": "which parts of a block are recomputed",
    "distribute_saved_activations": "checkpoints are shared between tensor-parallel devices",
    "mhc_*": "hyper-connections",
    "tp_comm_*": "communication overlaps with products, with buffers of its own",
    "disable_tp_comm_*": "communication overlaps with products, with buffers of its own",
    "ddp_bucket_size": "the size of the buckets of gradients",
    "ddp_*": "buckets of gradients",
    "num_distributed_optimizer_instances": "the optimizer is shared within groups",
    "use_precision_aware_optimizer": "states of the optimizer in half precision",
    "main_grads_dtype": "element type of the main gradients",
    "main_params_dtype": "element type of the master copy",
    "exp_avg_dtype": "element type of the optimizer's states",
    "exp_avg_sq_dtype": "element type of the optimizer's states",
    "store_param_remainders": "the master copy is kept as 16 bits of remainders",
    "overlap_param_gather_with_optimizer_step": "parameters are gathered during the step",
    "overlap_cpu_optimizer_d2h_h2d": "the optimizer on the host",
    "use_torch_optimizer_for_cpu_offload": "the optimizer on the host",
    "optimizer_cuda_graph": "the step as a CUDA graph",
    "empty_unused_memory_level": "the allocator's cache is emptied during the step",
    "cuda_graph*": "CUDA graphs",
    "enable_cuda_graph": "CUDA graphs",
    "external_cuda_graph": "CUDA graphs",
    "cpu_offloading*": "activations or weights on the host",
    "fine_grained_activation_offloading": "activations on the host",
    "offload_modules": "activations on the host",
    "fp32_residual_connection": "the residual stream is in fp32",
    "apply_residual_connection_post_layernorm": "the residual stream starts behind the LayerNorm",
    "add_qkv_bias": "queries, keys and values have biases",
    "qk_*": "norms of queries and keys",
    "multi_latent_attention": "latent attention",
    "q_lora_rank": "latent attention",
    "kv_lora_rank": "latent attention",
    "v_head_dim": "latent attention",
    "mtp_*": "multi-token prediction",
    "hybrid_*": "Mamba layers",
    "mamba_*": "Mamba layers",
    "linear_*": "linear attention",
    "window_*": "sliding windows",
    "no_rope_freq": "layers without positions",
    "is_hybrid_model": "Mamba layers",
    "spec": "the modules of a block come from another file",
    "heterogeneous_*": "blocks of different sizes",
    "pipeline_model_parallel_layout": "which stage has which blocks",
    "num_layers_in_last_pipeline_stage": "the last stage has another number of blocks",
    "decoder_first_pipeline_num_layers": "the first stage has another number of blocks",
    "decoder_last_pipeline_num_layers": "the last stage has another number of blocks",
    "pipeline_model_parallel_split_rank": "where the decoder begins",
    "standalone_embedding_stage": "the embedding has a stage of its own",
    "cp_comm_type": "how context parallelism exchanges keys and values",
    "hierarchical_context_parallel_sizes": "context parallelism of two levels",
    "hybrid_context_parallel": "context parallelism by sample",
    "overlap_moe_expert_parallel_comm": "tokens travel during computation",
    "overlap_p2p_*": "stages send during computation",
    "no_overlap_p2p_communication": "stages do not send during computation",
    "delay_wgrad_compute": "gradients of weights are computed later",
    "defer_embedding_wgrad_compute": "the gradient of the embedding is computed later",
    "wgrad_deferral_limit": "the gradient of the embedding is computed later",
    "microbatch_group_size_per_vp_stage": "the order of the micro-batches",
    "microbatch_group_size_per_virtual_pipeline_stage": "the order of the micro-batches",
    "variable_seq_lengths": "lengths change from batch to batch",
    "fsdp_*": "details of Megatron's FSDP",
    "megatron_fsdp_*": "details of Megatron's FSDP",
    "init_model_with_meta_device": "weights are made on no device first",
    "torch_fsdp2_no_reshard_after_forward": "FSDP2 keeps gathered weights",
    "outer_dp_sharding_strategy": "sharding between nodes",
    "keep_fp8_transpose_cache": "transposes of fp8 weights are kept",
    "reuse_grad_buf_for_mxfp8_param_ag": "weights are gathered into the buffer of gradients",
    "use_nccl_ub": "NCCL's registered buffers",
    "suggested_communication_unit_size": "sizes of communication",
    "squared_relu": "the activation is a squared ReLU",
    "quick_geglu": "the activation is a quick GeGLU",
    "retro_*": "RETRO: a retriever beside the model",
    "rl_*": "reinforcement learning: an engine for inference beside training",
    "grpo_*": "reinforcement learning: an engine for inference beside training",
    "perform_rl_step": "reinforcement learning: an engine for inference beside training",
    "batch_invariant_mode": "kernels whose result does not depend on the batch",
    "use_transformer_engine_op_fuser": "fused kernels of Transformer Engine",
    "memory_efficient_layer_norm": "the LayerNorm saves less",
    "fused_*": "fused kernels",
    "use_fused_*": "fused kernels",
    "use_te_*": "kernels of Transformer Engine",
    "experimental_attention_variant": "another attention",
    "dsa_*": "sparse attention",
    "softmax_type": "the softmax of attention",
    "glu_*": "the activation",
    "activation_func_*": "the activation",
    "disable_bf16_reduced_precision_matmul": "sums inside products",
    "disable_jit_fuser": "fused kernels of TorchScript",
    "te_precision_config_file": "precision by layer",
    "gtp_*": "tensor parallelism of another kind",
    "enable_experimental": "functions under test",
    "decrease_batch_size_if_needed": "the batch is made smaller",
    "encoder_tensor_model_parallel_size": "tensor parallelism of the encoder",
    "encoder_pipeline_model_parallel_size": "pipeline stages of the encoder",
    "first_last_layers_bf16": "the first and last blocks stay in bf16 beside fp8",
    "num_layers_at_*": "how many of the first and last blocks stay in bf16",
    "attention_output_gate": "a gate behind attention",
    "patch_dim": "images",
    "img_h": "images",
    "img_w": "images",
    "langrl_env_config": "reinforcement learning: an engine for inference beside training",
    "logits_*": "distillation from stored logits",
}

DEFAULTS: dict[str, Any] = {
    "optimizer": "adam",
    "clip_grad": 1.0,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "attention_backend": "auto",
    "moe_router_topk": 2,
    "recompute_num_layers": 1,
}
RELEASES = (
    Release(
        "core 0.20.0",
        "2026-08-22",
        "NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py, megatron/core/*/*_config.py",
        DEFAULTS,
    ),
)

VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
}
OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd-momentum", "muon": "muon", "dist_muon": "muon"}
FSDP_STRATEGIES = {"optim_grads_params": "fsdp", "optim_grads": "fsdp-grad-op", "optim": "distributed-optimizer"}
DEVICES_OF_THE_TESTS = 8  # tests/test_utils/recipes: one node of 8
PER_NODE = 8

ARGUMENT_FILES = ("MODEL_ARGS", "TRAINING_ARGS", "ARGS")


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are Megatron's alone, with or without the dashes that its YAML has."""
    flat = (key for key in keys if "." not in key or key.split(".", 1)[0] in ARGUMENT_FILES)
    names = {key.rsplit(".", 1)[-1].lstrip("-").replace("-", "_") for key in flat}
    own = {"tensor_model_parallel_size", "num_layers", "num_attention_heads", "use_mcore_models", "clip_grad"}
    return len(names & (own | {"pipeline_model_parallel_size", "max_position_embeddings", "micro_batch_size"}))


def from_script(script: shell.Script, file: str | None) -> dict[str, Written]:
    """The arguments of a script as settings."""
    written = arguments(script.arguments, file, script.empty)
    for key, item in arguments(script.launcher, file).items():
        written[f"launcher.{key}"] = item
    if script.program is not None:
        written["program"] = Written(script.program.text, file, script.program.line)
        first = script.arguments[0] if script.arguments else None
        if first is not None and first.text.endswith((".yaml", ".yml", ".json")) and "config" not in written:
            written["config"] = Written(first.text, file, first.line)  # HfArgumentParser and its kin
    for name, key in (("NNODES", "nnodes"), ("NUM_NODES", "nnodes"), ("GPUS_PER_NODE", "nproc_per_node")):
        held = script.values.get(name)
        if held and f"launcher.{key}" not in written and not shell.unknowns(held[0].text):
            written[f"launcher.{key}"] = Written(held[0].text, file, held[0].line)
    return written


OPTIONS = re.compile(r"(?i)\w*(args?|arguments|opts?|options?|flags?)")


def arguments(words: Sequence[shell.Argument], file: str | None, empty: list[str] | None = None) -> dict[str, Written]:
    """`--key value` and `--flag` as settings; the last of several wins, as argparse has it.

    `empty` takes the names of variables that nothing sets and that stand where further arguments do: they are none.
    """
    written: dict[str, Written] = {}
    empty = [] if empty is None else empty
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text[2:].partition("=")
        values = [value] if equals else []
        while not equals and at < len(words) and not words[at].text.startswith("--"):
            values.append(words[at].text)
            at += 1
        for place in range(len(values) - 1, -1, -1):
            unset = shell.unknowns(values[place])
            further = len(unset) == 1 and values[place] == f"{shell.OPEN}{unset[0]}{shell.CLOSE}"
            if further and not equals and (place > 0 or OPTIONS.fullmatch(unset[0])):
                empty += [name for name in unset if name not in empty]
                values.pop(place)
        key = name.replace("-", "_").lower()
        written[key] = Written(_plain(values), file, word.line)
    return written


def _plain(values: Iterable[str]) -> Any:
    texts = [value for value in values if value]
    return True if not texts else texts[0] if len(texts) == 1 else " ".join(texts)


def from_yaml(written: Mapping[str, Written]) -> dict[str, Written]:
    """`MODEL_ARGS: {--num-layers: 12}` of the functional tests as settings."""
    result: dict[str, Written] = {}
    for key, item in written.items():
        head, _, rest = key.partition(".")
        if head in ARGUMENT_FILES and rest.startswith("--"):
            result[rest[2:].replace("-", "_").lower()] = item
    if result:
        result["launcher.nproc_per_node"] = Written(DEVICES_OF_THE_TESTS)
    return result


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a Megatron command."""
    _Command(sheet, meaning).read()


class _Command:
    def __init__(self, sheet: Sheet, meaning: Meaning) -> None:
        self.sheet, self.meaning = sheet, meaning

    def count(self, key: str, asks: str | None = None) -> int | None:
        """A whole number; what only the caller knows is asked for under `asks`."""
        value = self.sheet.get(key)
        if isinstance(value, str) and shell.unknowns(value):
            name = shell.unknowns(value)[0]
            self.meaning.ask(asks or key, f"--{key.replace('_', '-')} is ${name}, which only the caller gives")
            return None
        return self.sheet.count(key)

    def read(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        meaning.say("runtime", "megatron", "program")
        program = (sheet.text("program") or "").rsplit("/", 1)[-1]
        family = self.family(program)
        length = self.count("seq_length", "sequence_length")
        self.model(family)
        if sheet.given("decoder_seq_length") and family != "t5":
            length = self.count("decoder_seq_length", "sequence_length")  # `--seq-length` are the tokens of an image
        elif sheet.given("total_seq_length"):
            length = self.count("total_seq_length", "sequence_length")
        if family == "t5":
            length = self.count("encoder_seq_length", "sequence_length") or length
            target = self.count("decoder_seq_length")
            if target:
                meaning.say("target_length", target, "decoder_seq_length")
        else:
            length = length or self.count("encoder_seq_length", "sequence_length")
        if length:
            meaning.say("sequence_length", length, "seq_length")
        else:
            meaning.ask("sequence_length", "--seq-length is missing")
        self.batch()
        self.numbers()
        self.checkpointing()
        self.attention(family)
        self.sharding()

    def family(self, program: str) -> str:
        sheet = self.sheet
        images = beside.reads_images(sheet)
        if "t5" in program or (sheet.given("decoder_seq_length") and not images):
            return "t5"
        pieces = str(sheet.get("tokenizer_type")).startswith("BertWordPiece")
        if "bert" in program or pieces or str(sheet.get("vocab_file")).endswith("vocab.txt"):
            return "bert"
        sheet.text("vocab_extra_ids")
        if sheet.flag("enable_gpt_oss"):
            return "gpt_oss"
        if (self.experts() or 0) > 1:
            return "mixtral"
        gated = sheet.flag("swiglu") and (sheet.text("normalization") or "").lower() == "rmsnorm"
        rotary = sheet.text("position_embedding_type") in ("rope", "mrope")
        if not sheet.flag("swiglu") and rotary and sheet.flag("group_query_attention"):
            sheet.flag("squared_relu")
            return "starcoder2"
        return "llama" if gated else "gpt2"

    def experts(self) -> int | None:
        """Experts of a block; the most of them, where Megatron-DeepSpeed's pyramid has a number for each block."""
        text = self.sheet.text("num_experts") or ""
        numbers = [int(word) for word in text.split() if word.isdecimal()]
        if len(numbers) > 1 and len(set(numbers)) > 1:
            self.meaning.lack("num_experts", f"{text}, and every block is counted with {max(numbers)}")
        return max(numbers) if len(numbers) > 1 else self.count("num_experts")

    def model(self, family: str) -> None:
        sheet, meaning = self.sheet, self.meaning
        key = "encoder_num_layers" if sheet.given("encoder_num_layers") else "num_layers"
        layers, width = self.count(key, "model"), self.count("hidden_size", "model")
        heads = self.count("num_attention_heads", "model")
        self.count("decoder_num_layers")
        gated = sheet.flag("swiglu")
        inner = self.count("ffn_hidden_size") or self.count("intermediate_size")
        if any(sheet.given(word) for word in ("hybrid_layer_pattern", "hybrid_override_pattern")):
            meaning.ask("model", "--hybrid-layer-pattern has blocks that are no transformer's (--model NAME)")
            return
        if layers is None or width is None or heads is None:
            meaning.ask("model", "the sizes of the model are not in the arguments (--model NAME)")
            return
        if inner is None:
            inner = int((4 * width * 2 / 3) / 64) * 64 if gated else 4 * width
        positions = self.count("max_position_embeddings")
        grouped = sheet.flag("group_query_attention") or sheet.given("num_key_value_heads")
        groups = self.count("num_key_value_heads") or self.count("num_query_groups")
        head_size = self.count("kv_channels")
        experts = self.experts() if family in ("mixtral", "gpt_oss") else None
        vocabulary = self.vocabulary(family)
        sheet.text("position_embedding_type")
        sheet.flag("disable_bias_linear")
        normed = sheet.flag("qk_layernorm")
        untied = sheet.flag("untie_embeddings_and_output_weights")
        sheet.get("moe_router_topk")
        sheet.get("topk")
        one = self.count("moe_ffn_hidden_size")
        sizes: dict[str, Any] = {
            "family": family,
            "layers": layers,
            "hidden_size": width,
            "attention_heads": heads,
            "intermediate_size": inner,
            "vocabulary_size": vocabulary,
            "max_positions": positions,
        }
        if grouped and groups:
            sizes["key_value_heads"] = groups
        if head_size and head_size * heads != width:
            sizes["head_size"] = head_size
        if experts:
            sizes["experts"] = experts
        if family == "starcoder2" and sheet.flag("disable_bias_linear"):
            sizes["qkv_bias"] = False
        if family in ("llama", "mixtral", "gpt_oss", "starcoder2"):
            sizes["tied_embeddings"] = not untied
        known = None
        if family != "gpt2":
            left_out = ("vocabulary_size",) if family == "t5" else ()  # its own vocabulary is that of another tokenizer
            exact = sizes if family in ("t5", "bert") else {**sizes, "head_size": head_size or width // heads}
            known = sheet.shape_named({name: value for name, value in exact.items() if name not in left_out})
        if family == "mixtral" and not known:
            latent = sheet.given("multi_latent_attention")  # whose heads have sizes of their own
            others = {name: value for name, value in sizes.items() if not (latent and name.startswith("head_"))}
            known = sheet.shape_named({**others, "family": "deepseek" if latent else "qwen_moe"})
        if known:
            meaning.say("model", known, key, "hidden_size", "num_attention_heads")
            return
        if vocabulary is None:
            meaning.ask("model.vocabulary_size", "the tokenizer of --tokenizer-model says how many tokens there are")
            vocabulary = sizes["vocabulary_size"] = 50257 if family == "gpt2" else 32000
        if one and family == "mixtral":
            sizes["intermediate_size"] = inner = one
        attention = (2 * heads + 2 * (groups if grouped and groups else heads)) * (head_size or width // heads)
        billions = layers * width * (attention + (3 if gated else 2) * inner * (experts or 1)) / 1e9
        if normed and family == "llama":
            sizes["qk_norm"] = True
        shape = {"name": f"{family}-{billions:.1f}b", **{name: v for name, v in sizes.items() if v is not None}}
        if family in ("mixtral", "gpt_oss"):
            active = self.count("topk") or self.count("moe_router_topk")
            shape["experts"] = {"count": experts, "active": active}
        meaning.say("model", shape, key, "hidden_size", "num_attention_heads")

    def vocabulary(self, family: str) -> int | None:
        sheet = self.sheet
        given = self.count("vocab_size") or self.count("padded_vocab_size")
        kind = sheet.text("tokenizer_type")
        file = sheet.text("vocab_file") or ""
        tokenizer = sheet.text("tokenizer_model") or ""
        if given:
            return given
        patched = beside.vocabulary(sheet)
        if patched is not None:
            return patched
        named = sheet.shape_of(tokenizer) if "/" in tokenizer and not shell.unknowns(tokenizer) else None
        if named is not None:
            return named.vocabulary_size
        if kind in VOCABULARIES:
            return VOCABULARIES[kind]
        if family == "bert" or file.endswith("vocab.txt"):
            return 30522
        if family == "t5":
            return 32128
        if kind is None and (file or family == "gpt2"):
            return VOCABULARIES["GPT2BPETokenizer"]
        return None

    def batch(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        micro = self.count("micro_batch_size", "micro_batch_size")
        if micro is None:
            micro = self.count("batch_size", "micro_batch_size")
        if micro is not None:
            meaning.say("micro_batch_size", micro, "micro_batch_size")
        else:
            meaning.ask("micro_batch_size", "--micro-batch-size is missing")
        data = self.devices()
        total = self.count("global_batch_size", "global_batch_size")
        sheet.get("rampup_batch_size")
        sheet.get("step_batch_size_schedule")
        key = "gradient_accumulation_steps"
        if total and micro and data:
            if total % (micro * data) and self.supposed():
                meaning.job.pop("parallel.data", None)
                meaning.ask("parallel.data", f"{total} samples are not those of {DEVICES_OF_THE_TESTS} GPUs (--gpus N)")
            elif total % (micro * data):
                self.sheet.problem(
                    "global_batch_size", f"{total} is no multiple of {micro} samples x {data} data-parallel devices"
                )
            else:
                meaning.say(key, total // (micro * data), "global_batch_size", "micro_batch_size")
        elif micro and "global_batch_size" not in sheet.written:
            meaning.say(key, 1, "global_batch_size")  # the default is one micro-batch per data-parallel device

    def supposed(self) -> bool:
        """Whether nobody says how many GPUs there are: Megatron's tests run on one node unless a list says so."""
        place = self.sheet.written.get("launcher.nproc_per_node")
        return self.sheet.devices is None and place is not None and place.file is None

    def devices(self) -> int:
        """Data-parallel devices; sizes of every kind of parallelism are said here."""
        meaning = self.meaning
        key = "model_parallel_size" if self.sheet.given("model_parallel_size") else "tensor_model_parallel_size"
        tensor = self.count(key, "parallel.tensor") or 1
        self.count("model_parallel_size")
        stages = self.count("pipeline_model_parallel_size", "parallel.pipeline") or 1
        context = self.count("context_parallel_size", "parallel.context") or 1
        expert = self.count("expert_model_parallel_size", "parallel.expert") or 1
        expert = self.count("moe_expert_parallel_size", "parallel.expert") or expert
        heads = self.count("ds_sequence_parallel_size", "parallel.context") or 1
        if heads > 1:
            context = heads
            meaning.lack(
                "ds_sequence_parallel_size", "Ulysses splits heads within the attention, and a ring is counted"
            )
        for name, value, of in (
            ("parallel.tensor", tensor, key),
            ("parallel.pipeline", stages, "pipeline_model_parallel_size"),
            ("parallel.context", context, "context_parallel_size" if heads == 1 else "ds_sequence_parallel_size"),
            ("parallel.expert", expert, "expert_model_parallel_size"),
        ):
            if value > 1:
                meaning.say(name, value, of)
        if self.sheet.flag("sequence_parallel") and tensor > 1:
            meaning.say("parallel.sequence_parallel", True, "sequence_parallel")
        self.schedule(stages)
        each, world = tensor * stages * context, self.world()
        if world is not None and world % each == 0 and world // each >= 1:
            data = world // each
            if data * context % expert == 0:
                meaning.say("parallel.data", data, "launcher.nproc_per_node", "launcher.nnodes")
                return data
        if world is not None:
            meaning.note(f"the script starts {world} GPUs, and {each * max(1, expert // context)} are needed")
        meaning.ask("parallel.data", "the launcher says how many GPUs there are (--gpus N)")
        return max(1, expert // context)

    def world(self) -> int | None:
        """All GPUs: what was named beside the file, or what the launcher starts."""
        if self.sheet.devices is not None:
            return self.sheet.devices
        nodes = None
        for key in ("launcher.nnodes", "launcher.nodes", "launcher.num_nodes"):
            text = self.sheet.text(key)
            if text and text.split(":")[0].isdigit():
                nodes = int(text.split(":")[0])
        for key in ("launcher.nproc_per_node", "launcher.nproc-per-node", "launcher.num_gpus"):
            text = self.sheet.text(key)
            if text and text.isdigit():
                return int(text) * (nodes or 1)
        if nodes:
            self.meaning.note(f"{nodes} nodes are taken to have {PER_NODE} GPUs each")
            return nodes * PER_NODE
        return None

    def schedule(self, stages: int) -> None:
        per_stage = self.count("num_layers_per_virtual_pipeline_stage")
        chunks = self.count("num_virtual_stages_per_pipeline_rank")
        layers = self.count("num_layers")
        self.sheet.flag("account_for_embedding_in_pipeline_split")
        self.sheet.flag("account_for_loss_in_pipeline_split")
        self.sheet.get("num_layers_in_first_pipeline_stage")
        of = "num_virtual_stages_per_pipeline_rank"
        if per_stage and layers and stages > 1:
            chunks, of = layers // stages // per_stage, "num_layers_per_virtual_pipeline_stage"
        if chunks and chunks > 1 and stages > 1:
            self.meaning.say("parallel.schedule", f"interleaved:{chunks}", of)

    def numbers(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        half = "bf16" if sheet.flag("bf16") else "fp16" if sheet.flag("fp16") else None
        fp8 = sheet.text("fp8_format") or sheet.text("fp8") or sheet.flag("fp8_hybrid") or sheet.flag("fp8_e4m3")
        if fp8:
            meaning.say("precision", "fp8", "fp8_format")
        else:
            meaning.say("precision", f"mixed-{half}" if half else "fp32", "bf16", "fp16")
        word = sheet.word("optimizer", OPTIMIZERS)
        if word:
            meaning.say("optimizer", word, "optimizer")
        else:
            meaning.note(f"optimizer: a job has no word for {sheet.text('optimizer')}")
        sheet.number("sgd_momentum")
        meaning.say("max_gradient_norm", sheet.number("clip_grad") or None, "clip_grad")

    def checkpointing(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        granularity = sheet.text("recompute_granularity")
        method = sheet.text("recompute_method") or sheet.text("activations_checkpoint_method")
        old = sheet.flag("checkpoint_activations") or bool(sheet.text("activations_checkpoint_method"))
        each = self.count("recompute_num_layers") or 1
        for key in ("activations_checkpoint_num_layers", "checkpoint_num_layers"):
            each = self.count(key) or each
        if sheet.flag("recompute_activations") or granularity == "selective":
            meaning.say("activation_checkpointing", "selective", "recompute_granularity", "recompute_activations")
        elif granularity == "full" or old:
            whole = method == "block" or each == 1
            of = "recompute_granularity" if granularity else "checkpoint_activations"
            word = "full" if whole else f"every:{each}"
            meaning.say("activation_checkpointing", word, of, "recompute_num_layers")
            if method == "block":
                meaning.lack("recompute_method", "some blocks of a stage, and each is counted as recomputed")
        else:
            meaning.say("activation_checkpointing", "none", "recompute_granularity")

    def attention(self, family: str) -> None:
        sheet, meaning = self.sheet, self.meaning
        backend = sheet.text("attention_backend") or "auto"
        legacy = [sheet.flag("use_flash_attn"), beside.flash(sheet)]
        if "unfused" in backend or "local" in backend:
            meaning.say("attention", "eager", "attention_backend")
        elif "flash" in backend or any(legacy):
            meaning.say("attention", "flash", "attention_backend", "use_flash_attn")
        given = sheet.given("hidden_dropout") or sheet.given("attention_dropout")
        hidden, inside = sheet.number("hidden_dropout"), sheet.number("attention_dropout")
        if given and family in ("gpt2", "bert", "t5"):
            meaning.say("dropout", hidden, "hidden_dropout", "attention_dropout")
            if hidden != inside:
                meaning.lack("attention_dropout", f"{inside}, and --hidden-dropout is taken for both")
        for key, name in (
            ("moe_expert_capacity_factor", "expert_capacity_factor"),
            ("moe_pad_expert_input_to_capacity", "expert_pad_to_capacity"),
        ):
            value = sheet.get(key)
            if value not in (None, False):
                meaning.say(name, sheet.number(key) if name.endswith("factor") else True, key)

    def sharding(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        sheet.flag("overlap_param_gather")
        sheet.flag("overlap_grad_reduce")
        strategy = sheet.text("data_parallel_sharding_strategy")
        if beside.sharding(sheet, meaning):
            pass
        elif sheet.flag("use_megatron_fsdp") and strategy in FSDP_STRATEGIES:
            meaning.say("parallel.sharding", FSDP_STRATEGIES[strategy], "data_parallel_sharding_strategy")
            meaning.lack("use_megatron_fsdp", "Megatron's FSDP is counted as that of PyTorch")
        elif sheet.flag("use_torch_fsdp2"):
            meaning.say("parallel.sharding", "fsdp", "use_torch_fsdp2")
            meaning.say("parallel.fsdp_version", 2, "use_torch_fsdp2")
        elif sheet.flag("use_distributed_optimizer"):
            meaning.say("parallel.sharding", "distributed-optimizer", "use_distributed_optimizer")
        sheet.flag("use_torch_fsdp2")
        sheet.flag("use_distributed_optimizer")
        fraction = sheet.number("optimizer_offload_fraction", 1.0)
        if sheet.flag("optimizer_cpu_offload"):
            meaning.say("offload", ["optimizer"], "optimizer_cpu_offload")
            if fraction != 1:
                meaning.lack(
                    "optimizer_offload_fraction", f"{fraction}, and the whole optimizer is counted on the host"
                )


TABLE = Table(
    UNDERSTOOD | beside.UNDERSTOOD, WITHOUT_EFFECT | beside.WITHOUT_EFFECT, {**UNMODELLED, **beside.UNMODELLED}
)
PROGRAM = Program("megatron-lm", RELEASES, TABLE, read, recognise)
