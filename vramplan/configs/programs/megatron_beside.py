"""Arguments of programs that are built on Megatron-LM: Megatron-DeepSpeed, Pai-Megatron-Patch, images, ModelOpt, MIMO.

Source: deepspeedai/Megatron-DeepSpeed main (4efb479d), megatron/arguments.py and examples_deepspeed/;
NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), examples/multimodal/multimodal_args.py and model.py (the language model has
`--decoder-seq-length` tokens, and `--seq-length` are those of an image), examples/mimo/train.py,
megatron/post_training/arguments.py, examples/rl/; alibaba/Pai-Megatron-Patch main (a098ca5),
megatron_patch/arguments.py and tokenizer/__init__.py (`--vocab-size` is the tokenizer's, plus `--extra-vocab-size`).
"""

from __future__ import annotations

import re

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.table import names

UNDERSTOOD = names(
    """
    deepspeed zero_stage ds_sequence_parallel_size num_key_value_heads cpu_optimizer no_pipeline_parallel
    use_flash_attn_v1 use_flash_attn_v2 use_flash_attn_triton use_flash_attn_builder moe_expert_parallel_size topk
    patch_tokenizer_type extra_vocab_size intermediate_size
    pp_partition_method pad_vocab_size_to model_provider
    language_model_type vision_model_type enable_gpt_oss launcher.num_gpus launcher.num_nodes total_seq_length
    """
)
WITHOUT_EFFECT = names(
    """
    train_tokens lr_decay_tokens lr_warmup_tokens universal_checkpoint no_query_key_layer_scaling
    deepspeed_activation_checkpointing deepspeed_mpi aml_data_download_path mmap_warmup kill_switch_file
    repeated_dataloader reset_iteration train_data_exact_num_epochs train_desc_path train_doc_idx_path train_idx_path
    train_sample_idx_path train_shuffle_idx_path return_data_index use_dataset_only inference ds_inference
    rotary_position_embeddings_theta create_moe_param_group moe_eval_capacity_factor
    moe_min_capacity moe_loss_coeff disable_moe_top2_2nd_expert_sampling epochs train_data valid_data keep_last
    overlapping_eval strict_lambada use_pin_memory num_workers remote_device enable_zbh1_exact_semantics
    no_scatter_gather_tensors_in_pipeline curriculum_learning_legacy data_efficiency_curriculum_learning
    no_contiguous_buffers_in_local_ddp indexer_* prompt_path tokenizer_prompt_format allow_* apply_data_augment
    image_tag_type image_break_token only_keep_samples_with_img online_evaluation_config relax_* dataset_config
    video_default_fps video_prompt_version use_loss_scaling no_calculate_per_token_loss use_te enable_fusions eos_id
    use_mcore_inference use_new_dataloader_path optimize_broadcast dataset_provider image_token_id
    pad_token_id hf_assign_unused_tokens language_model_checkpoint mock_dataset_size bert_load modelopt_enabled
    finetune_hf_dataset finetune_data_files finetune_data_split output_path output_dir steps osl ground_truth_path
    prompts_path num_samples refit_method decode_only_cuda_graphs no_rl_use_sequence_packing model_temperature
    temperature top_k top_p return_log_probs num_tokens_to_generate no_use_layer_wise_param_layout mup mup_* use_mup
    no_yarn_correction_range_round_to_int prompts use_layer_wise_param_layout embedding_init_method_std
    retriever_report_topk_accuracies retriever_score_scaling offset_sampling_seed_by_dp_rank
    use_same_sampling_seed_across_dp_ranks filter_warnings fully_parallel_* flight_recorder_* start_eval_at_iter
    strict_fsdp_dtensor_load throughput_window_size validation_set_names wd_incr_steps wsd_decay_steps
    use_mp_args_from_checkpoint_args use_tokenizer_model_from_checkpoint_args dump_param_to_param_group_map
    object_storage_cache_path run_workload_inspector_server create_all_gather_group
    train_weighted_split_paths* valid_weighted_split_paths* test_weighted_split_paths* kill_switch_path
    abort_on_unmet_fused_kernel_constraints norm_target_loss valid_num_workers structured_logs structured_logs_dir
    trigger_path codecarbon_dir skip_train_iteration_range query_in_block_prob titles_data_path reset_progress
    answer_loss_only ft_neighbours train_with_neg train_hard_neg faiss_use_gpu sync_tp_duplicated_parameters
    loss_on_targets_only bert_embedder_type output_bert_embeddings no_train
    dataset max_padding_length mrope_section rotary_scale_factor use_llama2_rotary_position_embeddings
    use_mistral_rotary_position_embeddings generation_length logging_dir image_folder version
    """
)
_IMAGES = "images beside the text: the vision model is not counted"
_DISTILLED = "distillation: a teacher beside the trained model"
UNMODELLED = {
    "deepspeed_config": "buckets and offloading of DeepSpeed, which stand in that file",
    **dict.fromkeys(("partition_activations", "distribute_checkpointed_activations"), "checkpoints are shared"),
    "checkpoint_in_cpu": "checkpoints on the host",
    "contigious_checkpointing": "checkpoints in one buffer",
    "synchronize_each_layer": "devices wait after each block",
    "memory_centric_tiled_linear": "linear layers in tiles",
    **dict.fromkeys(("split_transformers", "tile_factor"), "linear layers in tiles"),
    "scattered_embeddings": "the embedding is shared between devices",
    "embedding_weights_in_fp32": "the embedding is in fp32",
    **dict.fromkeys(("zero_allgather_bucket_size", "zero_reduce_bucket_size"), "buckets of DeepSpeed"),
    **dict.fromkeys(("zero_contigious_gradients", "zero_reduce_scatter"), "buckets of DeepSpeed"),
    **dict.fromkeys(("cpu_torch_adam", "ds_fused_adam"), "which kernel steps"),
    "ds_sequence_parallel_fpdt*": "a long sequence in chunks, offloaded to the host",
    "disable_mem_efficient_ln": "the LayerNorm saves more",
    "enable_zbh1_pipeline": "a pipeline schedule without bubbles",
    "enable_expert_tensor_parallelism": "tensor parallelism of the experts",
    "use_tutel": "details of the experts",
    "num_experts_switch": "details of the experts",
    **dict.fromkeys(("kd", "kd_*", "mos", "num_layers_teacher", "num_experts_teacher"), _DISTILLED),
    **dict.fromkeys(("hidden_size_teacher", "num_attention_heads_teacher", "load_teacher"), _DISTILLED),
    **dict.fromkeys(("export_kd_*", "offline_distillation_data", "freeze_base_for_mtp"), _DISTILLED),
    "random_ltd": "tokens that some blocks leave out",
    "compression_training": "layers that are quantized or left out",
    "task": "a head for a task in the place of the language model's",
    "reset_*": "which tokens attend to which",
    **dict.fromkeys(("freeze_*", "unfreeze_*"), "which weights are frozen"),
    **dict.fromkeys(("vision_*", "disable_vision_class_token", "class_token_len", "pixel_shuffle"), _IMAGES),
    **dict.fromkeys(("use_tiling", "max_num_tiles", "use_thumbnail", "use_tile_tags", "num_frames"), _IMAGES),
    **dict.fromkeys(("conv_merging", "thumbnail_area_threshold", "dynamic_resolution*", "radio_*"), _IMAGES),
    **dict.fromkeys(("use_area_weighted_aspect_ratio", "use_vision_backbone_fp8_arch", "video_*"), _IMAGES),
    **dict.fromkeys(("efficient_video_*", "separate_video_embedder", "image_seq_length", "image_size"), _IMAGES),
    **dict.fromkeys(("masked_tiling_*", "match_tiling_*", "audio_encoder_model", "mimo_*"), _IMAGES),
    **dict.fromkeys(("sound_*", "recompute_sound*"), "sound beside the text"),
    **dict.fromkeys(("recompute_vision*", "recompute_granularity_vision", "recompute_method_vision"), _IMAGES),
    "decoder_tp_comm_overlap": "communication overlaps with products",
    "packing_*": "samples in one row",
    "use_packed_sequence": "samples in one row",
    **dict.fromkeys(("encoder_dp", "encoder_tp", "encoder_ddp_overlap", "llm_*"), "devices of each part of a model"),
    **dict.fromkeys(("flextron*", "enable_router", "soft_mask", "hard_sample_th", "binary_mask"), "elastic models"),
    **dict.fromkeys(("eagle_config", "mix_hidden_states", "algorithm", "extra_model_path"), "a draft model"),
    **dict.fromkeys(("enable_mhc_connections", "use_kitchen*", "use_flashinfer_*"), "kernels of another kind"),
    **dict.fromkeys(
        ("pin_cpu_*", "no_pin_cpu_*", "fine_grained_offloading_*"), "the optimizer or activations on the host"
    ),
    "delta_offload_bytes_across_pp_ranks": "activations on the host",
    "layernorm_zero_centered_gamma": "weights of norms are kept around zero",
    "tensor_parallel_num_weight_shards": "tensor parallelism of another kind",
    "high_priority_a2a_comm_stream": "which stream tokens travel on",
    "no_gradient_reduce_div_fusion": "how gradients are reduced",
    "no_data_sharding": "how samples reach the devices",
    **dict.fromkeys(("patch_size", "spatial_merge_size", "temporal_patch_size"), _IMAGES),
    **dict.fromkeys(("tune_mm_mlp_adapter", "mm_projector_type", "mm_vision_*"), _IMAGES),
    **dict.fromkeys(("enable_shared_expert", "shared_moe_ffn_hidden_size"), "experts that every token passes"),
    "sliding_window": "sliding windows",
    "transformer_type": "blocks of Transformers in the place of Megatron's",
    **dict.fromkeys(("use_alibi_mask", "position_encoding_2d"), "positions of another kind"),
    **dict.fromkeys(("n_head_kv", "attention_head_type"), "heads that share keys and values"),
    **dict.fromkeys(("disable_bias_linear_fc", "disable_bias_attn_fc"), "which layers have biases"),
    "geglu": "the activation",
    "embed_layernorm": "a norm behind the embedding",
    "bitfit": "which weights are frozen",
    "use_bnb_optimizer": "states of the optimizer in 8 bits",
    "retriever_seq_length": "texts of the retriever",
    **dict.fromkeys(("source_seq_len", "target_seq_len"), "lengths of two parts of a sequence"),
    "enable_variable_seq_lengths": "rows of different lengths",
}


TOKENIZERS = {
    **dict.fromkeys(("Qwen2Tokenizer", "Qwen3Tokenizer", "Qwen2VLTokenizer"), 151643),
    **dict.fromkeys(("LLamaTokenizer", "LLama2Tokenizer", "MistralTokenizer", "MixtralTokenizer"), 32000),
    "LLama3Tokenizer": 128000,
}
"""Tokens of the tokenizers of Pai-Megatron-Patch, without `--extra-vocab-size`."""


def vocabulary(sheet: Sheet) -> int | None:
    """Tokens where Pai-Megatron-Patch names the tokenizer and how many are beside its own."""
    kind, extra = sheet.text("patch_tokenizer_type"), sheet.get("extra_vocab_size")
    known = TOKENIZERS.get(kind or sheet.text("tokenizer_type") or "")
    return known + extra if known is not None and isinstance(extra, int) else None


def sharding(sheet: Sheet, meaning: Meaning) -> bool:
    """How DeepSpeed shares the states, where it runs Megatron."""
    if not sheet.flag("deepspeed"):
        sheet.get("zero_stage")
        sheet.flag("cpu_optimizer")
        return False
    stage = _stage(sheet)
    pipelined = not sheet.flag("no_pipeline_parallel")  # of whose engine gradients are summed in fp32
    if stage == 0 and sheet.flag("bf16") and pipelined:
        stage = 1
        meaning.note("zero_stage 0 in bf16 is DeepSpeed's BF16_Optimizer, which shares its fp32 states as stage 1 does")
        meaning.say("gradient_dtype", "fp32", "zero_stage", "bf16")
    meaning.say("parallel.sharding", f"zero{stage}" if stage else "ddp", "zero_stage")
    if sheet.flag("cpu_optimizer"):
        meaning.say("offload", ["gradients", "optimizer"] if stage else ["optimizer"], "cpu_optimizer")
    sheet.flag("no_pipeline_parallel")
    is_split = "parallel.tensor" in meaning.job or "parallel.pipeline" in meaning.job
    if not is_split and (stage > 1 or "offload" in meaning.job):
        _by_the_engine(meaning, stage)
    elif stage == 1 and ("parallel.context" in meaning.job or _has_experts(meaning)):
        beside = "parts of sequences" if "parallel.context" in meaning.job else "experts"
        meaning.say("parallel.sharding", "distributed-optimizer", "zero_stage")
        meaning.lack("zero_stage", f"stage 1 beside {beside} is counted as Megatron's distributed optimizer")
    return True


def _has_experts(meaning: Meaning) -> bool:
    told = meaning.job.get("model")
    return told is not None and isinstance(told.value, dict) and "experts" in told.value


_WRITTEN_STAGE = re.compile(r"s/ZERO_STAGE/(\d)/")


def _stage(sheet: Sheet) -> int:
    """The stage of an argument; else the one that the script writes into a copy of its template (sed)."""
    written = None if sheet.given("zero_stage") else _WRITTEN_STAGE.search(sheet.source)
    return int(written[1]) if written else sheet.count("zero_stage", 1) or 0


def _by_the_engine(meaning: Meaning, stage: int) -> None:
    """A whole model under stages that Megatron has no code of: DeepSpeed's engine around blocks of Transformers."""
    meaning.say("runtime", "deepspeed", "zero_stage", "deepspeed")
    if "attention" not in meaning.job:
        meaning.say("attention", "eager", "use_flash_attn_v1", "use_flash_attn_v2")
    meaning.lack("deepspeed", f"Megatron's blocks under stage {stage} are counted as those of Transformers")


ALL_TRAINED = "(--frozen none counts all of it as trained)"


def frozen(sheet: Sheet, meaning: Meaning, key: str) -> None:
    """Ask for what is trained where a key says that the language model is not."""
    if sheet.flag(key):
        why = "the language model is frozen beside what reads images, which is not modelled as Megatron computes it"
        meaning.ask("frozen", f"{key}: {why} {ALL_TRAINED}")


LANGUAGE_MODELS = {
    "llama3_8b": "llama-3-8b",
    "llama3.1_8b": "llama-3.1-8b",
    "llama3.1_70B": "llama-3.1-70b",
    "llama3.2_1b": "llama-3.2-1b",
    "mistral_7b": "mistral-7b-v0.3",  # README.md: Mistral-7B-Instruct-v0.3
    "yi-34b": "yi-34b",
    "qwen2.0_72B": "qwen2-72b",
    "qwen2.5_7B": "qwen2.5-7b",
    "qwen2.5_72B": "qwen2.5-72b",
}
"""Words of `--language-model-type` and the models that they stand for.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), examples/multimodal/config.py, get_language_model_config.
"""


def language_model(sheet: Sheet) -> str | None:
    """The model of text beside a model of images, by the word that a script has for it."""
    return LANGUAGE_MODELS.get(sheet.text("language_model_type") or "")


def reads_images(sheet: Sheet) -> bool:
    """Whether the sizes are those of a language model beside a model of images."""
    tokenizer = sheet.written.get("tokenizer_type")
    kind = any(sheet.text(key) for key in ("language_model_type", "vision_model_type"))
    return kind or (tokenizer is not None and tokenizer.value == "MultimodalTokenizer")


def flash(sheet: Sheet) -> bool:
    """Whether attention is a kernel of FlashAttention, by the names of Megatron-DeepSpeed."""
    keys = ("use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attn_builder")
    asked = [sheet.flag(key) for key in keys]  # each counts as read
    return any(asked)
