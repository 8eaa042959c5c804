"""What DeepSpeed's ZeRO was traced with: the rest is refused and never recommended (tests/engines/deepspeed)."""

from __future__ import annotations

from vramplan.values.job import Job, trains_all

ADAM = ("adamw", "adam")  # DeepSpeed's FusedAdam


FAMILIES = (
    *("bert", "bloom", "gemma", "gemma2", "gemma3", "glm", "gpt2", "llama", "mixtral", "neox", "opt", "phi", "phi3"),
    *("qwen_moe", "roberta", "t5", "vit"),
    *("chatglm", "olmo2", "olmoe", "starcoder2"),  # composed of their traced forward passes and of the traced stages
)

GATHERED_ADAPTERS = ("lora", "ia3")
"""Adapters of stage 3. DoRA reads the weight of a layer outside its module, which registers it as an external parameter
with the module around (parameter_offload.py, ZeROOrderedDict): that was not followed. So would IA3 with its factors,
but that they are always whole, as small parameters are.
"""

ONE_GATED_LAYER = ("phi3", "glm", "chatglm")  # families with one layer for the gate and what it is multiplied with

LOOKED_AT_AS_VIEWS = ("vit",)
"""Families whose code expands a weight before it uses it, which does not tell where it is used if it is not trained."""


def untraced_with_zero(job: Job) -> dict[str, str]:
    """What a job has that was not traced with ZeRO, by its key; empty where it is modelled."""
    strategy = job.activation_checkpointing or ""
    stage3 = job.sharding is not None and job.sharding.kind == "zero3"
    return {
        "sharding": "" if _is_traced(job, stage3) else job.model.code,
        "adapter" if job.adapter is not None else "frozen": _untrained(job) if stage3 else "",
        "quantization": job.quantization if stage3 and job.quantization is not None else "",
        "precision": "" if job.precision.startswith("mixed-") else job.precision,
        "optimizer": "" if job.optimizer in ADAM else job.optimizer,
        "activation_checkpointing": strategy if strategy == "optimal" else "",
        "optimizer_in_backward": "true" if job.optimizer_in_backward else "",
        "grad_scaler": "true" if job.grad_scaler else "",
        "gradient_dtype": "fp32" if job.fp32_gradients else "",
        "ema": "true" if job.ema else "",
        "compile": "true" if job.compile else "",
        "loss": job.loss if job.loss == "dpo" or (stage3 and job.loss != "standard") else "",
        "label_smoothing": "the Trainer's own" if job.label_smoothing and job.runtime.name == "transformers" else "",
        "offload": _untraced_offload(job),
        "eval_batch_size": "" if job.eval_batch_size is None else "an evaluation",
        "generation_batch_size": "" if job.generation_batch_size is None else "a generation",
        "checkpoint_reentrant": "true" if job.checkpoint_reentrant else "",
    }


def _untrained(job: Job) -> str:
    """What of training less than every weight was not traced under stage 3."""
    if trains_all(job):
        return ""
    if job.adapter is not None and job.adapter.kind not in GATHERED_ADAPTERS:
        return job.adapter.kind
    if job.adapter is not None and job.adapter.kind == "ia3" and not _stays_whole(job):
        return "ia3 with factors above stage3_param_persistence_threshold"
    if job.model.family in LOOKED_AT_AS_VIEWS:
        return f"less than every weight of {job.model.family}"
    assert job.sharding is not None
    if job.sharding.zero is not None and job.sharding.zero.parameter_drive is not None:
        return "less than every weight, and parameters on NVMe,"
    return ""


def _is_traced(job: Job, stage3: bool) -> bool:
    """Whether the family was; under stage 3 without the experts, whose weights belong to no module that is followed."""
    return job.model.family in FAMILIES and not (stage3 and job.model.experts is not None)


def _untraced_offload(job: Job) -> str:
    """The optimizer of a mixture of experts."""
    return "the optimizer of a mixture of experts" if job.offload and job.model.experts is not None else ""


def _stays_whole(job: Job) -> bool:
    """Whether no factors of IA3 are too many to stay whole: at most as many as the widest layer has outputs."""
    assert job.sharding is not None
    assert job.sharding.zero is not None
    model = job.model
    halves = 2 if model.family in ONE_GATED_LAYER else 1
    projected = (model.attention_heads + 2 * model.key_value_heads) * model.head_size
    return max(halves * model.intermediate_size, projected) <= job.sharding.zero.param_persistence_threshold
