"""The words of the job format: which are known, and which of them the engine models today.

To model a technique is to move its word from the first kind to the second, beside the code that computes it.
"""

from __future__ import annotations

JOB_KEYS = (
    *("name", "model", "gpu", "sequence_length", "target_length", "image_size"),
    *("micro_batch_size", "global_batch_size"),
    *("gradient_accumulation_steps", "precision", "optimizer", "optimizer_implementation", "optimizer_in_backward"),
    *("max_gradient_norm", "grad_scaler", "ema"),
    *("expert_imbalance", "expert_capacity_factor", "expert_pad_to_capacity"),
    *("activation_checkpointing", "every_second_matmul", "checkpoint_reentrant"),
    *("attention", "loss", "label_smoothing", "dpo_reference"),
    *("padding", "packing", "compile", "dropout", "hold_outputs"),
    *("eval_batch_size", "generation_batch_size", "generation_length"),
    *("adapter", "quantization", "bitsandbytes", "frozen", "offload", "parallel", "runtime", "reserve", "expect"),
    *("max_utilization", "host_memory", "allocator", "gpu_free", "pytorch_version", "cuda_module_loading"),
    *("weight_dtype", "gradient_dtype", "master_dtype", "optimizer_state_dtype", "compute_dtype"),
    *("activation_model", "activation_bytes", "checkpoint_factor", "trainable_parameters"),
    *("base_batch_size", "base_learning_rate"),
)
"""The keys of a job, but for those of a validation case."""

CASE_KEYS = (
    *("measured", "use", "trace", "source", "confidence", "inferred", "missing", "ladder", "environment", "notes"),
)
"""The keys that only a validation case has; they go to `Job.case` as they are."""

TEXTBOOK = "textbook"  # the runtime of equations
TEXTBOOK_KEYS = ("activation_model", "activation_bytes", "checkpoint_factor", "trainable_parameters")
ACTIVATION_MODELS = ("book", "zero-paper", "korthikanti")
TEXTBOOK_CHECKPOINTINGS = ("none", "full", "sqrt", "every:K")  # the rows of the table that texts print
TEXTBOOK_OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop", "lion", "lamb", "lars")
TEXTBOOK_SHARDINGS = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op")

PRECISIONS = {
    "fp32": "fp32",
    "tf32": "fp32",
    "bf16": "amp-bf16",
    "fp16": "amp-fp16",
    **{name: name for name in ("amp-fp16", "amp-bf16", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16")},
    "fsdp-bf16": "fsdp-bf16",
    "fsdp-fp16": "fsdp-fp16",
    "fsdp-fp8": "fsdp-fp8",
    "fp8": "fp8",
}
"""Modelled precisions and the names that they resolve to."""

KNOWN_PRECISIONS = ("auto", *PRECISIONS)

CELLS = ("weight_dtype", "gradient_dtype", "master_dtype", "optimizer_state_dtype", "compute_dtype")
CELL_WORDS = ("fp32", "fp16", "bf16", "fp8", "int8", "none")

BITSANDBYTES_OPTIMIZERS = ("adamw-8bit", "adamw-paged", "adamw-8bit-paged", "lion", "lamb", "lars")
TORCH_OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop", "adafactor", "muon")
GALORE = "galore-adamw:RANK"
OPTIMIZERS = (*TORCH_OPTIMIZERS, *BITSANDBYTES_OPTIMIZERS, "lomo", GALORE)
KNOWN_OPTIMIZERS = OPTIMIZERS
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
NEVER_FUSED = ("rmsprop", "adafactor")  # torch.optim has no fused kernel for them
FUSED_BY_RUNTIME = ("adamw", "adam", "muon")  # where a runtime says how they step; muon's AdamW, that is
FP32_STATES = ("adamw", "adam", "sgd-momentum", "rmsprop")  # of bitsandbytes, whatever the weights are
OWN_STATES = (*BITSANDBYTES_OPTIMIZERS, "sgd", "lomo")  # their states do not follow the weights
OVER_A_MASTER_COPY = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop")  # modelled with mixed-* and fp8

OPTIMAL = "optimal"
LLMC_CHECKPOINTINGS = ("gelu", "gelu-norms")  # the options -r 1 and -r 2 of llm.c
CHECKPOINTINGS = (
    *("none", "full", "sqrt", "every:K", "layers:[[0,6],[7,13]]", "optimal"),
    *("selective", "selective-op", "selective-layer:K"),
    *LLMC_CHECKPOINTINGS,
)

ATTENTIONS = ("eager", "flash", "efficient", "math", "sdpa")
HALF_LOGITS = "half-logits"
LM_LOSSES = (HALF_LOGITS, "chunked:N", "fused", "dpo")  # over a causal language model's head
MODELLED_LOSSES = ("standard", "fp32-logits", *LM_LOSSES, "classification", "vocab-parallel")
LOSSES = MODELLED_LOSSES  # the last is what Megatron does anyway, and torchtitan by default

PADDINGS = ("none", "right")
DPO_REFERENCES = ("model", "precomputed", "adapter-off")

# with defaults of their own
ENGINES = (
    *("deepspeed", "torchtitan", "torchtune", "litgpt", "nanogpt", "llm-foundry", "fms-fsdp", "unsloth", "llm.c"),
    "modded-nanogpt",
)
RUNTIMES = ("transformers", "pytorch", "megatron", *ENGINES, "textbook")
UNMODELLED_RUNTIMES: dict[str, str] = {}
"""Runtimes of published runs, and why they are refused."""
KNOWN_RUNTIMES = (*RUNTIMES, *UNMODELLED_RUNTIMES)

QUANTIZATIONS = ("nf4", "nf4-double", "int8", "gptq-int4")
ADAPTERS = ("lora", "dora", "ia3")
OFFLOADS = ("parameters", "gradients", "optimizer", "activations")
SHARDINGS = (
    *("none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp:N"),
    "distributed-optimizer",
)
DEVICES_PER_NODE = 8  # where a job does not say: of an HGX board, and of the DGX and p4d, p5, a3, ND nodes around it
OF_SEVERAL = {"reduce_dtype"}  # defaults of a runtime that jobs on one device do not take
PIPELINE_SPLITS = ("blocks", "embedding-and-head")
CONTEXT_COMMUNICATIONS = ("ring", "all-gather")
SCHEDULES = ("1f1b", "gpipe", "interleaved:V")
PARAMETER_DRIVE_KEYS = (
    *("offload_parameters_device", "offload_parameters_buffer_count", "offload_parameters_buffer_size"),
    "offload_parameters_max_in_cpu",
)
PARALLEL_KEYS = (
    *("data", "tensor", "pipeline", "context", "expert", "sequence_parallel", "sharding", "shards", "schedule"),
    *("no_sync", "gradient_as_bucket_view", "fsdp_version", "reduce_dtype", "pipeline_split"),
    "context_communication",
    *("reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "contiguous_gradients"),
    *("stage3_max_live_parameters", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"),
    *("sub_group_size", "devices_per_node", "offload_optimizer_device", "offload_optimizer_buffer_count"),
    *PARAMETER_DRIVE_KEYS,
)
ZERO_SIZES = (
    *("reduce_bucket_size", "allgather_bucket_size", "sub_group_size"),
    *("stage3_max_live_parameters", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"),
)
ZERO_SWITCHES = ("overlap_comm", "contiguous_gradients")
ZERO_KEYS = (
    *(*ZERO_SIZES, *ZERO_SWITCHES, "offload_optimizer_device", "offload_optimizer_buffer_count"),
    *PARAMETER_DRIVE_KEYS,
)
OFFLOAD_DEVICES = ("cpu", "nvme")
MODELLED_SHARDINGS = (
    *("none", "ddp", "fsdp", "fsdp-grad-op", "hsdp:N", "zero1", "zero2", "zero3", "distributed-optimizer"),
)
ADAPTER_KEYS = ("kind", "rank", "targets", "feedforward_targets", "modules_to_save", "alpha", "dropout", "dtype")

MODULE_LOADINGS = ("lazy", "eager")
FREE_NOW = "now"  # of gpu_free: what the tool that is asked for `gpu: local` reports
EXPECTATIONS = ("fits", "does-not-fit", "tight")

METRICS = ("allocated", "reserved", "device", "unspecified")
OUTCOMES = ("fits", "oom")
USES = ("peak", "fit", "mfu")
CONFIDENCES = ("high", "medium", "low")
MEASURED_KEYS = ("peak_bytes", "metric", "outcome", "mfu", "tokens_per_second", "sum_over_devices_bytes")

GPU_KEYS = (
    *("name", "memory", "capacity_basis", "title", "architecture", "compute_capability", "bf16", "flash_attention"),
    *("memory_bandwidth", "note"),
)
CAPACITY_BASES = ("visible", "nominal", "given")


def over_master_copy(precision: str) -> bool:
    """Whether a precision has half-precision weights and steps an fp32 copy of them."""
    return precision.startswith("mixed-") or precision == "fp8"


def pattern_word(text: str) -> str:
    """`every:4` -> `every:K`: the known word that a parametrised value belongs to, or the text itself."""
    head, colon, _ = text.partition(":")
    if not colon:
        return text
    words = (*CHECKPOINTINGS, *KNOWN_OPTIMIZERS, *LOSSES, *SHARDINGS, *SCHEDULES)
    return next((word for word in words if word.startswith(f"{head}:")), text)
