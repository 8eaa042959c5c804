"""Small models of every type of Transformers whose blocks can be checkpointed: the `config.json` of each.

Sizes differ between the parts of a model, so that a mix-up of two parts changes the figures.
"""

from __future__ import annotations

from typing import Any

TEXT = {"vocab_size": 1003, "max_position_embeddings": 128, "hidden_size": 96, "num_attention_heads": 6}
DEEP = {**TEXT, "num_hidden_layers": 5, "intermediate_size": 160}
GROUPED = {**DEEP, "num_key_value_heads": 2, "tie_word_embeddings": False, "pad_token_id": 0}
LATENT = {
    **DEEP,
    "num_key_value_heads": 6,
    "tie_word_embeddings": False,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
}
DELTA = {
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "full_attention_interval": 3,
}
SPACE = {
    "mamba_n_heads": 6,
    "mamba_d_head": 32,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}
LFM2 = ["conv", "conv", "full_attention", "conv", "full_attention"]
SOUND = {
    "vocab_size": 40,
    "hidden_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "intermediate_size": 160,
}
SOUND |= {"conv_dim": [32, 48, 64], "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2]}
SOUND |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
VISION = {"image_size": 64, "patch_size": 16, "num_channels": 3}
TOWER = {**VISION, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 144}

AXES = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
FILM = {
    "depth": 6,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}

FILM_35 = {**FILM, "hidden_size": 64, "out_hidden_size": 96, "intermediate_size": 144, "num_position_embeddings": 36}
SIDES = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}

BART = {
    "vocab_size": 1003,
    "max_position_embeddings": 128,
    "d_model": 96,
    "pad_token_id": 1,
    "encoder_layers": 5,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 160,
    "decoder_ffn_dim": 160,
    "decoder_start_token_id": 2,
}

EXPERTS = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "olmoe",
    "gpt_oss",
    "llama4_text",
    "glm4_moe",
    "qwen3_next",
    "qwen3_5_moe_text",
    "qwen3_5_moe",
    "qwen3_vl_moe",
    "lfm2_moe",
    "dbrx",
    "glm4_moe_lite",
    "mistral4",
    "minimax_m2",
    "afmoe",
    "jamba",
    "ernie4_5_moe",
    "hunyuan_v1_moe",
    "granitemoe",
    "dots1",
    "flex_olmo",
    "exaone_moe",
)
"""The types with mixtures of experts."""

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 1003, "n_positions": 128, "n_embd": 96, "n_layer": 5, "n_head": 6},
    "llama": GROUPED,
    "mistral": GROUPED,
    "internlm3": {**GROUPED, "head_dim": 16},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 16},
    "bert": {**DEEP, "pad_token_id": 0},
    "roberta": {**DEEP, "pad_token_id": 1},
    "xlm-roberta": {**DEEP, "pad_token_id": 1},
    "camembert": {**DEEP, "pad_token_id": 1},
    "data2vec-text": {**DEEP, "pad_token_id": 1},
    "ernie": {**DEEP, "pad_token_id": 0},
    "mpnet": {**DEEP, "pad_token_id": 1},
    "nomic_bert": {**DEEP, "pad_token_id": 0},
    "albert": {**DEEP, "pad_token_id": 0, "embedding_size": 64},
    "eurobert": GROUPED,
    "distilbert": {"vocab_size": 1003, "dim": 96, "hidden_dim": 192, "n_layers": 5, "n_heads": 6}
    | {"max_position_embeddings": 128, "pad_token_id": 0},
    "dbrx": {"vocab_size": 1003, "max_seq_len": 128, "d_model": 96, "n_heads": 6, "n_layers": 5, "pad_token_id": 0}
    | {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 5e5}}
    | {"ffn_config": {"ffn_hidden_size": 160, "moe_num_experts": 4, "moe_top_k": 2, "moe_jitter_eps": 0.01}},
    "deberta-v2": {**DEEP, "pad_token_id": 0, "type_vocab_size": 0, "position_buckets": 12, "share_att_key": True}
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"}
    | {"position_biased_input": False, "max_relative_positions": -1},
    "electra": {**DEEP, "pad_token_id": 0, "embedding_size": 64},
    "esm": {**DEEP, "pad_token_id": 1, "mask_token_id": 2, "position_embedding_type": "rotary", "token_dropout": True}
    | {"emb_layer_norm_before": False},
    "modernbert": {**DEEP, "pad_token_id": 0, "local_attention": 32, "global_attn_every_n_layers": 3}
    | {"classifier_pooling": "mean"},
    "gptj": {"vocab_size": 1003, "n_positions": 128, "n_embd": 96, "n_layer": 5, "n_head": 6, "rotary_dim": 8},
    "gpt_bigcode": {"vocab_size": 1003, "n_positions": 128, "n_embd": 96, "n_layer": 5, "n_head": 6, "pad_token_id": 0},
    "gpt_neox": {**DEEP, "tie_word_embeddings": False},
    "opt": {**TEXT, "num_hidden_layers": 5, "ffn_dim": 160, "word_embed_proj_dim": 96, "pad_token_id": 1},
    "phi": {**DEEP, "tie_word_embeddings": False},
    "phi3": {**GROUPED, "tie_word_embeddings": False},
    "gemma": {**GROUPED, "head_dim": 16, "tie_word_embeddings": True},
    "gemma2": {**GROUPED, "head_dim": 16, "tie_word_embeddings": True, "sliding_window": 16},
    "gemma3_text": {**GROUPED, "head_dim": 16, "tie_word_embeddings": True, "sliding_window": 16},
    "gemma4_text": {**GROUPED, "head_dim": 16, "global_head_dim": 32, "tie_word_embeddings": True}
    | {"sliding_window": 16, "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 1003},
    "gemma3n_text": {**GROUPED, "head_dim": 16, "tie_word_embeddings": True, "sliding_window": 16, "laurel_rank": 20}
    | {"hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 987, "num_hidden_layers": 6}
    | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
    | {"activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0]},
    "bloom": {"vocab_size": 1003, "hidden_size": 96, "n_layer": 5, "n_head": 6},
    "mpt": {"vocab_size": 1003, "d_model": 96, "n_layers": 5, "n_heads": 6, "max_seq_len": 128},
    "falcon": {**TEXT, "num_hidden_layers": 5, "multi_query": False, "new_decoder_architecture": False},
    "glm": {**GROUPED, "head_dim": 16},
    "glm4": {**GROUPED, "head_dim": 16},
    "smollm3": GROUPED,
    "olmo2": GROUPED,
    "olmo3": {**GROUPED, "sliding_window": 16},
    "starcoder2": GROUPED,
    "olmoe": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {**GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "llama4_text": {**GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1}
    | {"intermediate_size_mlp": 96, "attention_chunk_size": 16},
    "mixtral": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "qwen3_moe": {**GROUPED, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "deepseek_v2": {**LATENT, "first_k_dense_replace": 1, "topk_method": "greedy", "n_group": None, "topk_group": None},
    "deepseek_v3": {**LATENT, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
    "glm4_moe": {**GROUPED, "head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    | {"moe_intermediate_size": 48, "first_k_dense_replace": 1, "use_qk_norm": True},
    "glm4_moe_lite": {**LATENT, "mlp_layer_types": ["dense", *["sparse"] * 4], "n_group": 2, "topk_group": 1},
    "mistral4": {**LATENT, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
    "dots1": {**GROUPED, "head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    | {"moe_intermediate_size": 48, "first_k_dense_replace": 1},
    "flex_olmo": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "exaone_moe": {**GROUPED, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1}
    | {"moe_intermediate_size": 48, "sliding_window": 16, "sliding_window_pattern": 2},
    "minimax_m2": {**GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 8},
    "afmoe": {**GROUPED, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 2}
    | {"moe_intermediate_size": 48, "num_dense_layers": 1, "global_attn_every_n_layers": 3, "sliding_window": 16},
    "qwen3_next": {**GROUPED, **DELTA, "num_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 56, "mlp_only_layers": [4]},
    "qwen3_5_text": {**GROUPED, **DELTA},
    "qwen3_5_moe_text": {**{key: one for key, one in GROUPED.items() if key != "intermediate_size"}, **DELTA}
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 56},
    "ministral3": {**GROUPED, "head_dim": 16},
    "granite": GROUPED,
    "granitemoe": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoehybrid": {**GROUPED, **SPACE, "num_local_experts": 4, "shared_intermediate_size": 112}
    | {"layer_types": ["mamba", "mamba", "attention", "mamba", "attention"]},
    "falcon_h1": {**GROUPED, **SPACE, "mamba_d_ssm": 192, "mamba_norm_before_gate": False},
    "mamba": {"vocab_size": 1003, "hidden_size": 96, "num_hidden_layers": 5, "state_size": 8, "time_step_rank": 12},
    "falcon_mamba": {"vocab_size": 1003, "hidden_size": 96, "num_hidden_layers": 5, "state_size": 8},
    "lfm2": {key: one for key, one in GROUPED.items() if key != "intermediate_size"}
    | {"intermediate_size": 160, "block_multiple_of": 16, "layer_types": LFM2},
    "lfm2_moe": {**GROUPED, "layer_types": LFM2, "num_dense_layers": 2, "num_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 48},
    "bamba": {**GROUPED, **SPACE, "attn_layer_indices": [1, 3]},
    "jamba": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8, "mamba_dt_rank": 12}
    | {"attn_layer_period": 3, "attn_layer_offset": 1},
    "nemotron_h": {
        **{key: one for key, one in GROUPED.items() if key != "num_hidden_layers"},
        "head_dim": 16,
        "mamba_num_heads": 6,
        "mamba_head_dim": 32,
        "ssm_state_size": 24,
        "n_groups": 2,
        "chunk_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 56,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
    },
    "seed_oss": {**GROUPED, "head_dim": 16},
    "arcee": GROUPED,
    "apertus": GROUPED,
    "olmo": {**GROUPED, "clip_qkv": 8.0},
    "hunyuan_v1_dense": {**GROUPED, "head_dim": 16},
    "cohere2": {**GROUPED, "tie_word_embeddings": True, "sliding_window": 16},
    "cohere": {**GROUPED, "tie_word_embeddings": True},
    "ernie4_5": {**GROUPED, "head_dim": 16},
    "ernie4_5_moe": {**GROUPED, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 2}
    | {"moe_intermediate_size": 48, "moe_layer_start_index": 1},
    "hunyuan_v1_moe": {**GROUPED, "head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "exaone4": {**GROUPED, "sliding_window": 16},
    "stablelm": {**GROUPED, "partial_rotary_factor": 0.25},
    "nemotron": GROUPED,
    "helium": {**GROUPED, "head_dim": 16},
    "gpt_neo": {
        **TEXT,
        "num_layers": 5,
        "num_heads": 6,
        "intermediate_size": 160,
        "attention_types": [[["global"], 5]],
    },
    "t5": {"vocab_size": 1003, "d_model": 96, "d_kv": 16, "d_ff": 160, "num_layers": 5, "num_decoder_layers": 4}
    | {"num_heads": 6, "decoder_start_token_id": 0, "pad_token_id": 0},
    "mt5": {"vocab_size": 1003, "d_model": 96, "d_kv": 24, "d_ff": 160, "num_layers": 5, "num_decoder_layers": 4}
    | {"num_heads": 6, "decoder_start_token_id": 0, "pad_token_id": 0},
    "bart": BART,
    "mbart": BART,
    "m2m_100": {**BART, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    "pegasus": BART,
    "marian": BART,
    "whisper": {"vocab_size": 1003, "max_target_positions": 64, "max_source_positions": 75, "num_mel_bins": 24}
    | {"d_model": 96, "encoder_layers": 5, "decoder_layers": 4, "pad_token_id": 1, "decoder_start_token_id": 2}
    | {"encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 160, "decoder_ffn_dim": 160},
    "wav2vec2": SOUND,
    "wavlm": SOUND,
    "hubert": {**SOUND, "do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
    "vit": {**VISION, "hidden_size": 96, "num_hidden_layers": 5, "num_attention_heads": 6, "intermediate_size": 160},
    "vit_msn": {
        **VISION,
        "hidden_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "intermediate_size": 160,
    },
    "deit": {**VISION, "hidden_size": 96, "num_hidden_layers": 5, "num_attention_heads": 6, "intermediate_size": 160},
    "dinov2_with_registers": {
        **VISION,
        "hidden_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "mlp_ratio": 2,
    },
    "dinov2": {**VISION, "hidden_size": 96, "num_hidden_layers": 5, "num_attention_heads": 6, "mlp_ratio": 2},
    "clip": {
        "projection_dim": 32,
        "text_config": {"model_type": "clip_text_model", **DEEP, "projection_dim": 32},
        "vision_config": {"model_type": "clip_vision_model", **TOWER, "projection_dim": 32},
    },
    "siglip": {
        "text_config": {"model_type": "siglip_text_model", **DEEP},
        "vision_config": {"model_type": "siglip_vision_model", **TOWER},
    },
    "llava": {
        "image_token_index": 1002,
        "text_config": {"model_type": "llama", **GROUPED},
        "vision_config": {"model_type": "clip_vision_model", **TOWER, "projection_dim": 32},
    },
    "qwen2_vl": {
        "image_token_id": 1002,
        "text_config": {"model_type": "qwen2_vl_text", **GROUPED, "rope_parameters": AXES},
        "vision_config": {**FILM, "embed_dim": 64, "hidden_size": 96, "mlp_ratio": 2},
    },
    "qwen2_5_vl": {
        "image_token_id": 1002,
        "text_config": {"model_type": "qwen2_5_vl_text", **GROUPED, "rope_parameters": AXES},
        "vision_config": {**FILM, "hidden_size": 64, "out_hidden_size": 96, "intermediate_size": 144}
        | {"window_size": 56, "fullatt_block_indexes": [1, 4]},
    },
    "qwen3_vl": {
        "image_token_id": 1002,
        "text_config": {"model_type": "qwen3_vl_text", **GROUPED, "head_dim": 16, "rope_parameters": AXES},
        "vision_config": {**FILM, "hidden_size": 64, "out_hidden_size": 96, "intermediate_size": 144}
        | {"num_position_embeddings": 36, "deepstack_visual_indexes": [1, 4]},
    },
    "qwen3_vl_moe": {
        "image_token_id": 1002,
        "text_config": {
            "model_type": "qwen3_vl_moe_text",
            **GROUPED,
            "head_dim": 16,
            "rope_parameters": AXES,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
        },
        "vision_config": {**FILM, "hidden_size": 64, "out_hidden_size": 96, "intermediate_size": 144}
        | {"num_position_embeddings": 36, "deepstack_visual_indexes": [1, 4]},
    },
    "qwen3_5": {
        "image_token_id": 1002,
        "text_config": {"model_type": "qwen3_5_text", **GROUPED, **DELTA, "rope_parameters": SIDES},
        "vision_config": FILM_35,
    },
    "qwen3_5_moe": {
        "image_token_id": 1002,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            **{key: one for key, one in GROUPED.items() if key != "intermediate_size"},
            **DELTA,
            "rope_parameters": SIDES,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 56,
        },
        "vision_config": FILM_35,
    },
    "mistral3": {
        "image_token_index": 1002,
        "tie_word_embeddings": False,
        "text_config": {"model_type": "mistral", **GROUPED, "head_dim": 16, "sliding_window": None},
        "vision_config": {"model_type": "pixtral", **TOWER},
    },
    "mllama": {
        "image_token_index": 1003,
        "text_config": {"model_type": "mllama_text_model", **GROUPED, "num_hidden_layers": 7}
        | {"cross_attention_layers": [1, 4]},
        "vision_config": {
            "model_type": "mllama_vision_model",
            **{key: one for key, one in TOWER.items() if key != "num_attention_heads"},
            "attention_heads": 4,
            "num_global_layers": 3,
            "intermediate_layers_indices": [0, 3],
            "vision_output_dim": 192,
        },
    },
    "paligemma": {
        "image_token_index": 1002,
        "projection_dim": 96,
        "text_config": {"model_type": "gemma", **GROUPED, "head_dim": 16, "tie_word_embeddings": True},
        "vision_config": {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
    },
    "llava_next": {
        "image_token_index": 1002,
        "image_grid_pinpoints": [[128, 128]],
        "text_config": {"model_type": "mistral", **GROUPED, "sliding_window": None},
        "vision_config": {"model_type": "clip_vision_model", **TOWER},
    },
    "llava_onevision": {
        "image_token_index": 1002,
        "image_grid_pinpoints": [[128, 128]],
        "vision_aspect_ratio": "anyres_max_4",
        "text_config": {"model_type": "qwen2", **GROUPED},
        "vision_config": {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
    },
    "swin": {
        "image_size": 56,
        "patch_size": 4,
        "num_channels": 3,
        "num_labels": 10,
        "embed_dim": 24,
        "depths": [2, 3, 2],
        "num_heads": [2, 4, 8],
        "window_size": 3,
    },
    "beit": {
        **VISION,
        "num_labels": 10,
        "hidden_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "intermediate_size": 192,
        "use_relative_position_bias": True,
    },
    "convnext": {
        "image_size": 64,
        "patch_size": 4,
        "num_channels": 3,
        "num_labels": 10,
        "depths": [2, 3, 4, 2],
        "hidden_sizes": [24, 40, 64, 96],
    },
    "convnextv2": {
        "image_size": 64,
        "patch_size": 4,
        "num_channels": 3,
        "num_labels": 10,
        "depths": [2, 3, 4, 2],
        "hidden_sizes": [24, 40, 64, 96],
    },
    "idefics3": {
        "image_token_id": 1002,
        "text_config": {"model_type": "llama", **GROUPED},
        "vision_config": {"model_type": "idefics3_vision", **TOWER},
    },
    "smolvlm": {
        "image_token_id": 1002,
        "text_config": {"model_type": "llama", **GROUPED},
        "vision_config": {"model_type": "smolvlm_vision", **TOWER},
    },
    "internvl": {
        "image_token_id": 1002,
        "text_config": {"model_type": "qwen2", **GROUPED},
        "vision_config": {"model_type": "internvl_vision", **TOWER, "image_size": [64, 64], "patch_size": [16, 16]}
        | {"attention_bias": True},
    },
    "gemma3": {
        "image_token_index": 1002,
        "mm_tokens_per_image": 4,
        "text_config": {**GROUPED, "head_dim": 16, "tie_word_embeddings": True, "sliding_window": 16},
        "vision_config": {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
    },
}
"""The keys of `config.json` but for `model_type`, by model type."""

VARIANTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "idefics3": {"scale_factor": (1, 2, 4)},
    "swin": {"drop_path_rate": (0.0, 0.1), "image_size": (56, 61), "qkv_bias": (False, True)},
    "beit": {"drop_path_rate": (0.0, 0.1), "use_relative_position_bias": (True, False)},
    "convnext": {"drop_path_rate": (0.0, 0.1), "image_size": (64, 52)},
    "convnextv2": {"drop_path_rate": (0.0, 0.1), "image_size": (64, 52)},
    "smolvlm": {"scale_factor": (2, 4)},
    "internvl": {"text_config": tuple({**GROUPED, "model_type": name} for name in ("qwen2", "qwen3", "llama"))},
    "paligemma": {
        "text_config": (
            CONFIGS["paligemma"]["text_config"],
            {**CONFIGS["paligemma"]["text_config"], "model_type": "gemma2", "sliding_window": 16},
        )
    },
    "granitemoehybrid": {"num_local_experts": (0, 4), "position_embedding_type": (None, "rope")},
    "afmoe": {"mup_enabled": (False, True), "num_dense_layers": (0, 1, 2), "sliding_window": (16, 256)},
    "gpt_bigcode": {"multi_query": (True, True, False)},
    "jamba": {"mamba_conv_bias": (False, True), "mamba_proj_bias": (False, True), "expert_layer_offset": (0, 1)},
    "lfm2": {"conv_bias": (False, True), "conv_L_cache": (3, 4)},
    "lfm2_moe": {"conv_bias": (False, True), "num_dense_layers": (0, 2), "norm_topk_prob": (False, True)},
    "falcon_h1": {"mamba_rms_norm": (False, True), "mamba_norm_before_gate": (False, True)},
    "modernbert": {"global_attn_every_n_layers": (1, 2, 3), "classifier_pooling": ("cls", "mean")}
    | {"attention_bias": (False, True), "mlp_bias": (False, True), "local_attention": (16, 40)},
    "stablelm": {"qk_layernorm": (False, True), "use_parallel_residual": (False, True)},
    "nemotron_h": {"moe_latent_size": (None, 40), "use_bias": (False, True), "mlp_bias": (False, True)},
}
"""Other values of keys that make other modules of a type, of which a draw has one each."""
