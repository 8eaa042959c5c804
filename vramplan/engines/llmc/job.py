"""A job under llm.c: how its devices share states, and what it has not got."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from vramplan.engines.llmc.model import ROW_MULTIPLE, padded_vocabulary, parameters, weights
from vramplan.job.behaviour import LEAVE, JobBehaviour
from vramplan.job.evidence.accepted import refuse
from vramplan.values.job import ResolvedJob
from vramplan.values.model import ModelShape
from vramplan.values.parallel import DDP, ZERO1, Sharded

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

NAME = "llm.c"  # the runtime
NEVER = ("no_sync", "gradient_as_bucket_view", "fsdp_version", "reduce_dtype")


def sharding_under_llmc(resolver: Resolver, model: ModelShape | None) -> Sharded | None:
    """How data-parallel devices share the states: all have the same, or each has a part of the optimizer's."""
    raw = resolver.raw
    fields, kind, devices = raw.fields.fields("parallel") or raw.fields, raw.sharding, raw.data_parallel_size
    given = [key for key in NEVER if getattr(raw, key)] + list(raw.zero or ())
    for key in given:
        fields.refuse(key, f"means nothing to {NAME}, which reduces its own gradients in place", hint=LEAVE)
    if kind in {None, "none"}:
        return None
    if kind not in (DDP, ZERO1):
        fields.refuse("sharding", f"{kind} is not {NAME}'s", hint="ddp (its option -z 0), or zero1 (-z 1)")
        return None
    if raw.shards is not None and raw.shards != devices:
        fields.refuse("shards", f"{raw.shards} of {devices} devices: {NAME} shares states among all", hint=LEAVE)
    if kind == DDP and devices < 2:
        fields.refuse("sharding", f"{kind} needs several devices, not parallel.data {devices}", hint=LEAVE)
        return None
    if kind == ZERO1 and model is not None and model.engine is not None:
        uneven = next((one.name for one in weights(model) if one.elements % devices), None)
        if uneven is not None:
            message = f"zero1 needs tensors that {devices} devices can share evenly, and {uneven} is not one"
            fields.refuse("sharding", message, hint="ddp, or another parallel.data")
    assert kind is not None
    return Sharded(kind, devices)


LACKED_BY_A_LOOP_IN_C = (
    *("compile", "padding", "packing", "ema", "grad_scaler", "hold_outputs", "use_cache", "optimizer_in_backward"),
    *("checkpoint_reentrant", "label_smoothing", "eval_batch_size", "generation_batch_size", "generation_length"),
    *("pytorch_version", "transformers_version", "litgpt_version", "deepspeed_version"),
    *("cuda_module_loading", "allocator"),
)
EVERY_WEIGHT = "leave it out, as it trains every weight; or another --runtime"


class LlmcJob(JobBehaviour):
    """One program in CUDA, which trains every weight of a GPT-2."""

    shares_by_itself = True
    fp32_states_of = NAME
    lacks = MappingProxyType(
        {
            **dict.fromkeys(("adapter", "frozen", "quantization"), EVERY_WEIGHT),
            **dict.fromkeys(LACKED_BY_A_LOOP_IN_C, LEAVE),
        }
    )

    def sharding_of(self, resolver: Resolver, model: ModelShape | None) -> Sharded | None:
        """All devices have the same, or each has a part of the optimizer's states."""
        return sharding_under_llmc(resolver, model)

    def check(self, resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
        """Refuse gradients and states in other types than the program's; the job with what is told about it."""
        return _check(resolver, job)


BEHAVIOUR = LlmcJob()


def _check(resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
    fields = resolver.raw.fields
    if job.fp32_gradients:
        refuse(fields, "gradient_dtype", "fp32", job.runtime, LEAVE)
    if job.precision.startswith("pure-") and not job.fp32_states:
        message = f"{job.precision} has 16-bit states, and those of {NAME} are in fp32"
        hint = "optimizer_state_dtype: fp32 is its option -w 0; or use mixed-bf16"
        fields.refuse("precision", message, hint=hint)
    if job.precision == "fp32":
        resolver.assume("master_dtype", "fp32", "its option -w 1 copies the weights whatever their type is")
    model, padded = job.model, parameters(job.model)
    rows = padded_vocabulary(model)
    if rows != model.vocabulary_size:
        resolver.assume("model.vocabulary_size", rows, f"{NAME} pads the table to a multiple of {ROW_MULTIPLE} rows")
    declared = model.declared_parameters
    if declared is not None and padded - ROW_MULTIPLE * model.hidden_size < declared < padded:
        model = model._replace(declared_parameters=padded)  # it counts the rows without those that pad them
    return job._replace(model=model, assumptions=tuple(resolver.assumptions))
