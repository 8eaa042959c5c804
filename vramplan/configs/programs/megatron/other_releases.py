"""Arguments that releases of Megatron-LM up to 2024 had, and those of copies of it.

Source: NVIDIA/Megatron-LM, arguments.py of April 2019 and megatron/arguments.py of 2020 to 2024;
microsoft/DeepSpeedExamples (abb27064), Megatron-LM/arguments.py; bigscience-workshop/Megatron-DeepSpeed,
megatron/arguments.py; swiss-ai/Megatron-LM and ROCm/Megatron-LM, megatron/training/arguments.py.
"""

from __future__ import annotations

from vramplan.configs.table import names

WITHOUT_EFFECT = names(
    """
    resume_dataloader lazy_loader use_npy_data_loader input_data_sizes_file delim text_key loose_json
    presplit_sentences use_tfrecords max_preds_per_seq deep_init min_scale cloze_eval pretrained_bert
    no_manual_gc_eval report_topk_accuracies max_training_rank evidence_data_path block_data_path embedding_path
    ict_load s3_cache_path renormalize_blend_weights reweight_loss_based_on_position_frequency goldfish_*
    """
)

_REDUCED = "how gradients are reduced"
_FUSED = "bias, activation, dropout or softmax are fused"
_NORMS = "norms that blocks leave out"

UNMODELLED = {
    **dict.fromkeys(("fp32_embedding", "fp32_layernorm", "fp32_tokentypes"), "layers that stay in fp32"),
    **dict.fromkeys(("fp32_allreduce", "no_align_grad_reduce", "use_contiguous_buffers_in_ddp"), _REDUCED),
    **dict.fromkeys(("bias_gelu_fusion", "bias_dropout_fusion", "scaled_masked_softmax_fusion"), _FUSED),
    "scaled_upper_triang_masked_softmax_fusion": _FUSED,
    **dict.fromkeys(("no_attn_layernorm", "no_mlp_layernorm", "no_final_layernorm"), _NORMS),
    **dict.fromkeys(("xielu", "xiprelu", "xiprelup"), "the activation"),
    **dict.fromkeys(
        ("num_unique_layers", "param_sharing_style"), "blocks that share weights, each of which is counted"
    ),
    "delay_param_gather": "parameters are gathered later",
    "use_ring_exchange_p2p": "how stages send",
    "disable_te_fused_rope": "the rotary embedding is not fused",
    "qknorm_impl": "which kernel norms queries and keys",
    "relative_attention_*": "positions that are relative",
}
