"""What DeepSpeed's ZeRO was traced with: the rest is refused and never recommended (tests/oracle/zero.json)."""

from __future__ import annotations

from vramplan.spec import Job, trains_all

ADAM = ("adamw", "adam")  # DeepSpeed's FusedAdam


FAMILIES = (
    *("bert", "bloom", "gemma", "gemma2", "gemma3", "glm", "gpt2", "llama", "mixtral", "neox", "opt", "phi", "phi3"),
    *("qwen_moe", "roberta", "vit"),
)


def untraced_with_zero(job: Job) -> dict[str, str]:
    """What a job has that was not traced with ZeRO, by its key; empty where it is modelled."""
    strategy = job.activation_checkpointing or ""
    stage3 = job.sharding is not None and job.sharding.kind == "zero3"
    whole = trains_all(job) or not stage3
    return {
        "sharding": "" if _is_traced(job, stage3) else job.model.family,
        "adapter" if job.adapter is not None else "frozen": "" if whole else "less than every weight",
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


def _is_traced(job: Job, stage3: bool) -> bool:
    """Whether the family was; under stage 3 without the experts, whose weights belong to no module that is followed."""
    return job.model.family in FAMILIES and not (stage3 and job.model.experts is not None)


def _untraced_offload(job: Job) -> str:
    """The optimizer of a mixture of experts."""
    return "the optimizer of a mixture of experts" if job.offload and job.model.experts is not None else ""
