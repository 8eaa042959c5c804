"""Several devices: what divides each component among them, and what one device alone would hold."""

from __future__ import annotations

from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Rung
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP, FSDP, FSDP_GRAD_OP, Split

STATES = ("weights", "master", "optimizer", "ema", "buffers")  # the same during the whole iteration


def is_shared(job: ResolvedJob) -> bool:
    """Whether a device holds less than one device alone would."""
    return job.split is not None or (job.sharding is not None and job.sharding.kind != DDP)


def whole_sizes(judge: Judge, rung: Rung) -> dict[str, int]:
    """Bytes of each component on one device that runs the same micro-batch alone; gradients all at once.

    States are what they always are; activations, of a model that is split, those of the phase that has most of them.
    """
    job = judge.job
    # gradients that are summed in every micro-step are there when the next begins, and can be counted
    sharding = None if job.sharding is None else job.sharding._replace(shards=1, no_sync=False)
    alone = Judge(job._replace(data_parallel_size=1, sharding=sharding, split=None))
    micro, accumulates = rung.schedule.micro_batch_size, rung.schedule.accumulates
    record = alone.record(rung.placement, accumulates, micro == 1)
    sizes: dict[str, int] = {}
    for name in STATES:
        size = sum(one.at(micro) for one in record.states if one.category == name)
        if size:
            sizes[name] = size
    plain = Judge(alone.job._replace(sharding=None))  # an engine may have them in its buffers alone
    sizes["gradients"] = alone.gradient_bytes(rung.placement) or plain.gradient_bytes(rung.placement)
    if job.split is not None:  # else each device has the activations of its own micro-batch
        for phase, moment in record.moments(micro):
            parts = record.components(micro, phase, moment)
            for name in ("activations", "weight_casts"):
                sizes[name] = max(parts.get(name, 0), sizes.get(name, 0))
    return sizes


WITH_WEIGHTS = (FSDP, FSDP_GRAD_OP, "hsdp", "zero3")  # they share the weights
WITH_GRADIENTS = (*WITH_WEIGHTS, "zero2")  # and the gradients
OPTIMIZER = ("master", "optimizer", "ema")


def divided_by(job: ResolvedJob, *, accumulates: bool) -> dict[str, tuple[tuple[str, int], ...]]:
    """What divides each component among devices: how many shards, or devices of each way to split.

    Tensor parallelism divides what it splits: the norms and what is between its regions stay whole.
    """
    split, sharding = job.split or Split(), job.sharding
    parts = [(key, getattr(split, key)) for key in ("tensor", "pipeline")]
    model = tuple((key, size) for key, size in parts if size > 1)
    sample = tuple((key, size) for key, size in [*parts, ("context", split.context)] if size > 1)
    shards: tuple[tuple[str, int], ...] = ()
    kind = ""
    if sharding is not None and sharding.kind != DDP:
        kind = sharding.kind
        if sharding.shards > 1:  # of one device, which FSDP wraps too, nothing is divided
            shards = (("shards", sharding.shards),)
    whole_gradients = sharding is not None and sharding.no_sync and accumulates
    return {
        "weights": model + (shards if kind in WITH_WEIGHTS else ()),
        "gradients": model + (shards if kind in WITH_GRADIENTS and not whole_gradients else ()),
        **dict.fromkeys(OPTIMIZER, model + shards),
        **dict.fromkeys(("activations", "temporaries", "weight_casts"), sample),
    }
