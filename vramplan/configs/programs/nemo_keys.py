"""Keys of NeMo's YAML files: what each means, and which change memory or time without a word of a job.

Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and its variants;
the same files up to February 2022, with the arguments of Lightning 1.5 (2ebca225);
NVIDIA/NeMo-Framework-Launcher, launcher_scripts/conf; NVIDIA/NeMo-Aligner, examples/nlp/gpt/conf.
"""

from __future__ import annotations

from vramplan.configs.table import names

UNDERSTOOD = names(
    """
    trainer.devices trainer.gpus trainer.num_nodes trainer.precision trainer.gradient_clip_val
    trainer.accumulate_grad_batches
    model.seq_length model.data.seq_length_dec model.micro_batch_size model.global_batch_size
    model.tensor_model_parallel_size model.pipeline_model_parallel_size model.virtual_pipeline_model_parallel_size
    model.context_parallel_size model.expert_model_parallel_size model.encoder_seq_length model.hidden_dropout
    model.attention_dropout model.ffn_dropout model.megatron_amp_O2 model.sequence_parallel model.fp8
    model.fp8_hybrid model.fp8_e4m3 model.activations_checkpoint_granularity model.activations_checkpoint_method
    model.activations_checkpoint_num_layers model.use_flash_attention model.optim.name model.fsdp
    model.fsdp_sharding_strategy model.peft.peft_scheme model.peft.lora_tuning.target_modules
    model.peft.lora_tuning.adapter_dim model.peft.lora_tuning.alpha model.peft.lora_tuning.adapter_dropout
    model.data.train_ds.micro_batch_size model.data.train_ds.global_batch_size
    model.data.train_ds.max_seq_length model.data.seq_length model.rampup_batch_size
    model.data.train_ds.packed_sequence model.moe_expert_capacity_factor model.moe_pad_expert_input_to_capacity
    trainer.sft.gradient_clip_val trainer.rm.gradient_clip_val trainer.dpo.gradient_clip_val model.model_parallel_size
    trainer.kto.gradient_clip_val trainer.knowledge_distillation.gradient_clip_val
    model.optim.grad_sync_dtype model.dpo model.dpo.* model.kto model.kto.* model.reward_model_type
    """
)
WITHOUT_EFFECT = names(
    """
    defaults name run.* hydra.* exp_manager.* s3_checkpointing.* trainer.accelerator trainer.logger
    trainer.enable_checkpointing trainer.use_distributed_sampler trainer.replace_sampler_ddp trainer.max_epochs
    trainer.max_steps trainer.max_time trainer.log_every_n_steps trainer.val_check_interval
    trainer.limit_val_batches trainer.limit_test_batches trainer.benchmark trainer.enable_model_summary
    trainer.num_sanity_val_steps trainer.strategy trainer.resume_from_checkpoint trainer.check_val_every_n_epoch
    trainer.checkpoint_callback trainer.amp_level trainer.amp_backend trainer.weights_summary
    trainer.progress_bar_refresh_rate model.log_token_counts model.gc_interval
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
    model.megatron_legacy model.add_pooler model.add_lm_head
    model.nemo_path model.pretrained_checkpoint.* model.pretrained_model_path model.restore_path model.head_scale
    export.* start_from_idx end_at_idx output_path top_k model.steerlm model.steerlm2.* model.steerable_attributes.*
    model.forward_micro_batch_size model.temperature model.num_soft_negatives model.use_all_possible_negatives
    model.attention_type model.pp_* model.gc_interval model.deterministic_mode model.overwrite_base_config.*
    trainer.sft.* trainer.rm.* trainer.dpo.* trainer.kto.*
    trainer.knowledge_distillation.* precision pretrained_checkpoint.* model.output_sequence
    model.use_avg_pool model.force_head_dtype model.regression.* model.moe_drop_* model.data
    model.use_te_rng_tracker model.torch_distributed_checkpoint model.wgrad_deferral_limit model.vocab_file
    model.merges_file model.language_model_path model.existing_tasks
    model.new_tasks model.task_templates.* model.task_templates env_vars.* model.tokenizer
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
    "model.optim.nccl_ub": "buffers of the distributed optimizer that NCCL registers",
    "model.optim.dtype": "element type of the distributed optimizer",
    "model.cross_entropy_loss_*": "which kernel computes the loss",
    "model.async_grad_allreduce": "gradients are reduced during backward",
    "model.defer_embedding_wgrad_compute": "the gradient of the head is computed at the end of the pipeline",
    "model.fp8_wgrad": "whether gradients of weights are products in fp8",
    "model.fp8_params": "weights are kept in fp8",
    "model.tp_only_amax_red*": "how numbers are scaled",
    "model.knowledge_distillation.*": "distillation: a teacher beside the trained model",
    "model.mm_cfg.*": "the encoder of images, its weights and the layers behind it",
    "model.optim.ddp_bucket_size": "buckets of the distributed optimizer",
    "model.ddp_overlap": "gradients are reduced during backward",
    "model.tp_comm_*": "communication overlaps with products, with buffers of its own",
}
