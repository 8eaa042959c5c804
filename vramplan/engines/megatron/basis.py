"""What each component of a device is, in words, where a replica is split over several."""

from __future__ import annotations

from vramplan.engines.megatron.deepspeed import BUCKET_ELEMENTS
from vramplan.replay.pipeline.stages import Stage
from vramplan.replay.record import Record
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DISTRIBUTED_OPTIMIZER, FSDP, ZERO1, is_fsdp


def basis_of_split(record: Record, job: ResolvedJob, stage: Stage | None) -> dict[str, str]:
    """The words for a device of Megatron-LM."""
    split, kind = job.split, None if job.sharding is None else job.sharding.kind
    where = "" if stage is None else f" of stage {stage.number}"
    width = 4 if job.precision == "fp32" else 2
    count = f"{record.parameters:,}"
    gradient = 4 if job.fp32_gradients else width
    basis = {
        "weights": f"{count} x {width} B{where}",
        "gradients": f"{count} x {gradient} B, buffers that stay",
        "buffers": "of the model, and the one that collectives and attention share",
        "inputs": "a micro-batch with its mask and positions",
        "communication": f"a bucket of {BUCKET_ELEMENTS:,} gradients",
    }
    if kind == ZERO1 and job.fp32_gradients:
        basis["gradients"] = f"{count} x (2 + 4) B, buffers that stay"
    if is_fsdp(kind):
        assert job.sharding is not None
        basis["communication"] = "two blocks gathered, with what is in none, and two blocks of gradients"
        basis["gradients"] = f"{count} x {gradient} B / {job.sharding.shards} devices"
        basis["weights"] += f" / {job.sharding.shards} devices" * (kind == FSDP)
    if kind in {DISTRIBUTED_OPTIMIZER, ZERO1} or is_fsdp(kind):
        assert job.sharding is not None
        shared = f"/ {job.sharding.shards} devices"
        if split is not None and split.expert > 1:
            shared += f", experts / {job.sharding.shards // split.expert}"
        basis["master"] = f"fp32 copy of the weights, {shared}"
        basis["optimizer"] = f"{job.optimizer}, {job.optimizer_implementation}, {shared}"
    if stage is not None:
        assert split is not None
        parts = f" of {len(stage.parts)} parts" if len(stage.parts) > 1 else ""
        basis["in_flight"] = f"saved by {stage.in_flight - 1} other micro-batches{parts} in flight"
        basis["communication"] = "what stages hand to each other"
    return basis
