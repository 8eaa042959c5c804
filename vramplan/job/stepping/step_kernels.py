"""Refusals of optimizers that have no kernel for the gradients, or for the shapes, of what a job trains."""

from __future__ import annotations

from math import prod

from vramplan.catalog.fields import Fields
from vramplan.options import words
from vramplan.replay.optimizers.bitsandbytes import SMALLEST_8BIT
from vramplan.replay.techniques.trained import WeightShapes, shapes_of
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import is_fsdp

KEY = "optimizer"


def check_step_kernels(fields: Fields, job: ResolvedJob) -> None:
    """Refuse a job whose first step ends with an error."""
    if job.optimizer == words.ADALOMO:
        _check_factors(fields, job, shapes_of(job.model, job.adapter, job.frozen))
    elif job.optimizer == words.PRODIGY:
        _check_rows(fields, job)
    elif _has_bf16_gradients(job):
        _check_bf16(fields, job)


def _has_bf16_gradients(job: ResolvedJob) -> bool:
    """Whether bitsandbytes steps weights in bf16: with a master copy they are not, nor is a block of BAdam."""
    is_its_own = job.fp32_states or job.optimizer in words.BITSANDBYTES_OPTIMIZERS
    if not is_its_own or words.over_master_copy(job.precision) or job.trained_blocks == "badam":
        return False
    if job.adapter is not None:
        return job.adapter.dtype == "bf16"
    return job.precision == "pure-bf16" or (job.precision == "amp-bf16" and job.half_weights)


def _check_bf16(fields: Fields, job: ResolvedJob) -> None:
    """bitsandbytes steps momentum, RMSprop, Adagrad and LARS in bf16 with states of 8 bits alone.

    Small parameters have states in fp32 all the same, and under the Trainer so have tables.
    Source: bitsandbytes 0.50.2, backends/cuda/ops.py, str2optimizer32bit and _optimizer_update_32bit_impl; optim/
    optimizer.py, Optimizer1State.init_state; transformers 5.23, trainer.py, Trainer.create_optimizer.
    """
    name, hint = words.kernel_of(job.optimizer), "weight_dtype: fp32" if job.half_weights else "use amp-bf16"
    missing = f"bitsandbytes has no {name} for bf16 gradients"
    if "8bit" not in job.optimizer:
        fields.refuse(KEY, missing, hint=hint)
        return
    if job.sharding is not None and is_fsdp(job.sharding.kind):
        return  # to whose flat parts no shape of a weight tells anything
    found = shapes_of(job.model, job.adapter, job.frozen)
    if job.runtime.embedding_states == "fp32" and found.trains_table:
        fields.refuse(KEY, f"{missing} with the fp32 states that the Trainer asks for embeddings", hint=hint)
    elif found.smallest < SMALLEST_8BIT:
        what = f"with the fp32 states of parameters below {SMALLEST_8BIT:,} elements (one has {found.smallest:,})"
        fields.refuse(KEY, f"{missing} {what}", hint=hint)


def _check_factors(fields: Fields, job: ResolvedJob, found: WeightShapes) -> None:
    """AdaLomo adds what it has of a matrix to one number for each row and each column.

    Source: lomo_optim 0.1.1, adalomo.py, AdaLomo.__init__ and AdaLomo.fuse_update.
    """
    hint = "use lomo"
    if any(not shape for shape in found.every):
        fields.refuse(KEY, f"adalomo takes no scalar weight, and {job.model.name} has one", hint=hint)
    large = max((shape for shape in found.trained if len(shape) > 2), key=prod, default=None)
    if large is not None:
        sizes = " x ".join(str(size) for size in large)
        message = f"adalomo factors matrices alone, and a weight of {job.model.name} is {sizes}: its step is an error"
        fields.refuse(KEY, message, hint=hint)


def _check_rows(fields: Fields, job: ResolvedJob) -> None:
    """Prodigy flattens each weight, which a DTensor has no view of unless all devices have as many of its rows.

    Source: prodigyopt 1.1.2, prodigy.py, Prodigy.step; torch 2.13, torch/distributed/tensor/_ops/_view_ops.py.
    """
    sharding = job.sharding
    if sharding is None or not is_fsdp(sharding.kind) or sharding.version != 2:
        return
    shapes = set(shapes_of(job.model, job.adapter, job.frozen).trained)
    if job.adapter is not None and job.adapter.virtual_tokens:
        shapes.add((job.adapter.virtual_tokens * len(job.model.stacks), job.model.hidden_size))
    uneven = min((shape[0] for shape in shapes if len(shape) > 1 and shape[0] % sharding.shards), default=None)
    if uneven is not None:
        why = (
            f"PyTorch flattens no DTensor whose rows ({uneven:,}) are not as many on each of {sharding.shards} devices"
        )
        fields.refuse(KEY, f"prodigy flattens weights: {why}", hint="fsdp_version 1, or adamw")
