"""What ZeRO or its replay cannot do with a job, which is refused, and what goes with it and no traced row has."""

from __future__ import annotations

from vramplan.options.words import BY_PART_OPTIMIZERS, FLAT_OPTIMIZERS, PREFERENCE_LOSSES
from vramplan.replay.sharding.traced import ELEMENTWISE, SHARDED_BITS, smoothing_of_the_trainer
from vramplan.replay.techniques.evidence import given_without_rows, is_traced_with
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import ZERO3, ZERO_STAGES

ADAM = ("adamw", "adam")  # DeepSpeed's FusedAdam


ON_HOST = (*ADAM, *FLAT_OPTIMIZERS)

STEPPED = tuple(dict.fromkeys((*ELEMENTWISE, *BY_PART_OPTIMIZERS)))
"""Optimizers that step a flat part of the model: those that look at each element alone, or to which it is one vector.
Others look at matrices.

Source: deepspeed/runtime/zero/stage_1_and_2.py (single_partition_of_fp32_groups); accelerate/accelerator.py,
_prepare_deepspeed (zero_allow_untested_optimizer).
"""

INT8 = "int8"

STAGES = tuple(f"parallel.sharding: {stage}" for stage in ZERO_STAGES)

READ = (
    *("precision", "ema", "compile", "checkpoint_reentrant"),
    *("eval_batch_size", "generation_batch_size"),
)
"""Keys of techniques that change what a stage of ZeRO reads: beside it they need a traced row, of any stage."""


def refused_with_zero(job: ResolvedJob) -> dict[str, str]:
    """What of a job does not go with ZeRO, by its key; empty where it does."""
    strategy = job.activation_checkpointing or ""
    stage3 = job.sharding is not None and job.sharding.kind == "zero3"
    return {
        "quantization": _unshared(job, stage3),
        "precision": "" if job.precision.startswith("mixed-") or job.precision in ("fp8", "fp32") else job.precision,
        "optimizer": "" if job.optimizer in (ON_HOST if job.offload else STEPPED) else job.optimizer,
        "activation_checkpointing": strategy if strategy == "optimal" else "",
        "optimizer_in_backward": "true" if job.optimizer_in_backward else "",
        "grad_scaler": "true" if job.grad_scaler else "",
        "gradient_dtype": "fp32" if job.fp32_gradients else "",
    }


def composed_with_zero(job: ResolvedJob) -> dict[str, str]:
    """What was not traced with ZeRO and composes with it, by its key; empty where it was."""
    stage3 = job.sharding is not None and job.sharding.kind == ZERO3
    return {
        "model": "" if _is_traced(job, stage3) else job.model.code,
        **{key: given_without_rows(job, key, *STAGES) for key in READ},
        # stages 1 and 2 share gradients and states of what is trained, which no quantized weight is
        "quantization": given_without_rows(job, "quantization", *STAGES) if stage3 else "",
        "optimizer": "" if job.optimizer in ADAM else job.optimizer,
        # stages 1 and 2 leave the weights of the head where they are
        "loss": given_without_rows(job, "loss", *STAGES) if stage3 or job.loss in PREFERENCE_LOSSES else "",
        "label_smoothing": smoothing_of_the_trainer(job),
        "offload": _of_offload(job),
        "overlap_comm": _of_overlap(job),
    }


def _unshared(job: ResolvedJob, stage3: bool) -> str:
    """Weights that stage 3 was not seen to gather: of bitsandbytes it takes those of 4 and of 8 bits."""
    return job.quantization or "" if stage3 and job.quantization not in (*SHARDED_BITS, INT8) else ""


def _of_overlap(job: ResolvedJob) -> str:
    """A second bucket beside gradients that go to the host."""
    zero = None if job.sharding is None else job.sharding.zero
    assert job.sharding is not None
    return "true" if zero is not None and zero.overlap_comm and job.offload and job.sharding.kind != ZERO3 else ""


def _is_traced(job: ResolvedJob, stage3: bool) -> bool:
    """Whether the family was; under stage 3 without the experts, whose weights lie in one parameter of many."""
    return is_traced_with(job.model, *STAGES) and not (stage3 and job.model.experts is not None)


def _of_offload(job: ResolvedJob) -> str:
    """Parameters without the optimizer, and states of experts."""
    if not job.offload or (job.model.experts is None and job.offload != ("parameters",)):
        return ""
    return ", ".join(job.offload)
