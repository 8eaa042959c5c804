"""A shell script that starts Megatron-LM with its arguments.

The words are those of `programs/megatron/`. Source: NVIDIA/Megatron-LM core 0.20.0, megatron/training/arguments.py,
examples/gpt3 and examples/mixtral (programs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vramplan.configs.asked import Asked, ProgramFiles, Writer, refused
from vramplan.configs.catalogue import Catalogue
from vramplan.configs.page import SHELL, Page
from vramplan.configs.programs.megatron import computing
from vramplan.configs.programs.megatron.devices import FSDP_STRATEGIES
from vramplan.configs.programs.megatron.kinds import GPT, KINDS, Kind
from vramplan.configs.writers import words

ATTENTIONS = {"flash": "flash", "eager": "unfused"}


def write(asked: Asked) -> Iterator[ProgramFiles]:
    """One script; the attention is named, or left to Megatron."""
    name, known = str(asked.shape.get("name")), Catalogue()
    if asked.shape.get("family") not in KINDS and known.has(name):
        raise refused("megatron-lm", name, known.of_families(KINDS))
    for named in (False, True) if asked["attention"] in ATTENTIONS else (False,):
        kind = KINDS.get(str(asked.shape.get("family")), GPT)
        program = f"{asked.torchrun()} {kind.program}"
        page = Page("megatron.sh", SHELL, program)
        _model(page, asked, kind)
        if named:
            page.put("attention_backend", ATTENTIONS[asked["attention"]], "attention")
        _training(page, asked)
        _checkpoints(page, asked)
        _devices(page, asked)
        page.put("train_iters", 1000, note="yours to choose")
        page.yours("lr", 0.0001)
        page.yours("tokenizer_type", "NullTokenizer")
        page.yours("mock_data", True)
        found = "PYTHONPATH=. " if "/" in kind.program else ""  # which has megatron/
        if not asked.fsdp and max(asked["parallel.tensor"] or 1, asked["parallel.context"] or 1) > 1:
            found += "CUDA_DEVICE_MAX_CONNECTIONS=1 "  # which validate_args asks for before Blackwell
        yield ProgramFiles(
            (page,), (f"{asked.environment()}{found}bash {page.name}", "in the folder of the repository")
        )


def _model(page: Page, asked: Asked, kind: Kind) -> None:
    shape = asked.shape
    key = "encoder_num_layers" if kind.is_encoder_decoder else "num_layers"
    page.put(key, shape["layers"], "model")
    if kind.is_encoder_decoder:
        page.put("decoder_num_layers", shape["decoder_layers"])
    page.put("hidden_size", shape["hidden_size"])
    page.put("num_attention_heads", shape["attention_heads"])
    page.put("ffn_hidden_size", shape["intermediate_size"])
    latent = shape.get("latent_attention")
    groups = None if latent else shape.get("key_value_heads")
    if latent:
        _latent(page, latent)
    if groups and groups != shape["attention_heads"]:
        page.put("group_query_attention", True)
        page.put("num_query_groups", groups)
    if not latent and shape.get("head_size") and shape["head_size"] * shape["attention_heads"] != shape["hidden_size"]:
        page.put("kv_channels", shape["head_size"])
    if kind.is_encoder_decoder:
        page.put("encoder_seq_length", asked["sequence_length"], "sequence_length")
        page.put("decoder_seq_length", asked["target_length"] or asked["sequence_length"], "target_length")
    else:
        page.put("seq_length", asked["sequence_length"], "sequence_length")
    if shape.get("max_positions"):
        longest = max(asked["sequence_length"], asked["target_length"] or 0) if kind.is_encoder_decoder else 0
        page.put("max_position_embeddings", max(shape["max_positions"], longest))  # validate_args takes no fewer
    page.put("vocab_size", shape["vocabulary_size"])
    if kind.is_gated:
        for name, value in (("swiglu", True), ("normalization", "RMSNorm"), ("disable_bias_linear", True)):
            page.put(name, value)
        page.put("position_embedding_type", "rope")
        if shape.get("qk_norm"):
            page.put("qk_layernorm", True)
        if shape.get("qkv_bias"):
            page.put("add_qkv_bias", True)
        if not shape.get("tied_embeddings"):
            page.put("untie_embeddings_and_output_weights", True)
        for name in ("hidden_dropout", "attention_dropout"):
            page.put(name, 0.0, "dropout")
    else:
        for name in ("hidden_dropout", "attention_dropout"):
            dropout = shape.get(name) if asked["dropout"] is None else asked["dropout"]
            if dropout is not None and (asked["dropout"] is not None or dropout == 0):
                page.put(name, dropout, "dropout")
    experts = shape.get("experts")
    if experts:
        page.put("num_experts", experts["count"])
        page.put("moe_router_topk", experts["active"])
        if experts.get("intermediate_size") not in (None, shape["intermediate_size"]):
            page.put("moe_ffn_hidden_size", experts["intermediate_size"])
        if experts.get("shared_intermediate_size"):
            page.put("moe_shared_expert_intermediate_size", experts["shared_intermediate_size"])
        if experts.get("dense_layers"):
            dense, layers = len(experts["dense_layers"]), shape["layers"]
            page.put("moe_layer_freq", f"([0]*{dense}+[1]*{layers - dense})")
        if asked["expert_capacity_factor"] is not None:
            page.put("moe_expert_capacity_factor", asked["expert_capacity_factor"], "expert_capacity_factor")
        if asked["expert_pad_to_capacity"]:
            page.put("moe_pad_expert_input_to_capacity", True, "expert_pad_to_capacity")


def _latent(page: Page, latent: Mapping[str, Any]) -> None:
    page.put("multi_latent_attention", True)
    for name, key in (
        ("q_lora_rank", "query_rank"),
        ("kv_lora_rank", "key_value_rank"),
        ("qk_head_dim", "plain_size"),
        ("qk_pos_emb_head_dim", "rotary_size"),
        ("v_head_dim", "value_size"),
    ):
        if latent.get(key):
            page.put(name, latent[key])


GRADIENTS: dict[tuple[str | None, Any], str] = {
    ("bf16", "bf16"): "grad_reduce_in_bf16",
    ("fp16", "fp32"): "accumulate_allreduce_grads_in_fp32",
}
"""By the type of the weights and that of their gradients: what sums them otherwise than Megatron does by itself."""


def _training(page: Page, asked: Asked) -> None:
    micro, steps = asked["micro_batch_size"] or 1, asked["gradient_accumulation_steps"] or 1
    page.put("micro_batch_size", micro, "micro_batch_size")
    total = micro * steps * (asked["parallel.data"] or 1)
    page.put("global_batch_size", total, "gradient_accumulation_steps")
    word = str(asked["precision"])
    if word.endswith("fp8"):
        page.put("bf16", True, "precision")
        page.put("fp8_format", "hybrid", "precision")
    elif asked.half:
        page.put(asked.half, True, "precision")
    summed = GRADIENTS.get((asked.half, asked["gradient_dtype"]))
    if summed is not None:
        page.put(summed, True, "gradient_dtype")
    name = words.turned(computing.OPTIMIZERS).get(str(asked["optimizer"]), "adam")
    note = "decouples weight decay, as AdamW does" if asked["optimizer"] == "adamw" else ""
    page.put("optimizer", name, "optimizer", note=note)
    page.put("clip_grad", asked["max_gradient_norm"] or 0.0, "max_gradient_norm")
    if asked.offloads("optimizer"):
        page.put("optimizer_cpu_offload", True, "offload")


def _checkpoints(page: Page, asked: Asked) -> None:
    word, _, apart = str(asked["activation_checkpointing"]).partition(":")
    of = "activation_checkpointing"
    if word == "selective":
        page.put("recompute_granularity", "selective", of)
    elif word != "none":
        page.put("recompute_granularity", "full", of)
        page.put("recompute_method", "uniform", of)
        page.put("recompute_num_layers", int(apart) if word == "every" and apart else 1, of)


def _devices(page: Page, asked: Asked) -> None:
    for name, key in (("tensor", "tensor"), ("pipeline", "pipeline"), ("expert", "expert")):
        if (asked[f"parallel.{name}"] or 1) > 1:
            page.put(f"{key}_model_parallel_size", asked[f"parallel.{name}"], f"parallel.{name}")
    if (asked["parallel.context"] or 1) > 1:
        page.put("context_parallel_size", asked["parallel.context"], "parallel.context")
    if asked["parallel.sequence_parallel"]:
        page.put("sequence_parallel", True, "parallel.sequence_parallel")
    word, _, chunks = str(asked["parallel.schedule"]).partition(":")
    if word == "interleaved":
        page.put("num_virtual_stages_per_pipeline_rank", int(chunks), "parallel.schedule")
        if asked["parallel.microbatch_group_size"]:
            group = asked["parallel.microbatch_group_size"]
            page.put("microbatch_group_size_per_virtual_pipeline_stage", group, "parallel.microbatch_group_size")
    strategies = {word: strategy for strategy, word in FSDP_STRATEGIES.items()}
    if asked.kind == "distributed-optimizer":
        page.put("use_distributed_optimizer", True, *words.STATES)
    elif asked.kind in strategies:
        page.put("use_megatron_fsdp", True, *words.STATES)
        page.put("data_parallel_sharding_strategy", strategies[asked.kind], *words.STATES)
        page.put("ckpt_format", "fsdp_dtensor")  # validate_args takes no other


GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh")

WRITER = Writer(
    "megatron-lm",
    ("megatron",),
    write,
    {"optimizer": ("adam", "adamw"), "model.activation": GELUS},
    {"parallel.sharding": {"zero1": "distributed-optimizer"}},  # of Megatron-DeepSpeed
)
"""Its GELU is one kernel with the bias, whichever of them a checkpoint has, and its Adam decouples weight decay.

Source: NVIDIA/Megatron-LM, megatron/core/fusions/fused_bias_gelu.py; megatron/core/optimizer/optimizer_config.py,
`decoupled_weight_decay`, and optimizer/__init__.py, which hands it to FusedAdam as `adam_w_mode`.
"""
