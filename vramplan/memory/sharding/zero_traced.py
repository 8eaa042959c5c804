"""What DeepSpeed's ZeRO was traced with: the rest is refused and never recommended (tests/oracle/zero.json)."""

from __future__ import annotations

from vramplan.spec import Job

ADAM = ("adamw", "adam")  # DeepSpeed's FusedAdam


def untraced_with_zero(job: Job) -> dict[str, str]:
    """What a job has that was not traced with ZeRO, by its key; empty where it is modelled."""
    strategy = job.activation_checkpointing or ""
    return {
        "precision": "" if job.precision.startswith("mixed-") or job.precision == "fp32" else job.precision,
        "optimizer": "" if job.optimizer in ADAM else job.optimizer,
        "activation_checkpointing": strategy if strategy == "optimal" else "",
        "optimizer_in_backward": "true" if job.optimizer_in_backward else "",
        "grad_scaler": "true" if job.grad_scaler else "",
        "gradient_dtype": "fp32" if job.fp32_gradients else "",
        "ema": "true" if job.ema else "",
        "compile": "true" if job.compile else "",
        "loss": job.loss if job.loss == "dpo" else "",
        "label_smoothing": "the Trainer's own" if job.label_smoothing and job.runtime.name == "transformers" else "",
        "offload": "activations" if job.offload_activations else "",
        "eval_batch_size": "" if job.eval_batch_size is None else "an evaluation",
        "generation_batch_size": "" if job.generation_batch_size is None else "a generation",
        "checkpoint_reentrant": "true" if job.checkpoint_reentrant else "",
    }
