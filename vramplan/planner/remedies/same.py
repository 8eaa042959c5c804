"""Changes after which the run computes the same: kernels, what is kept for nothing, states that devices share."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.planner.behaviour import is_replicated, planning_of
from vramplan.planner.candidate import NUMBERS, Candidate
from vramplan.results import NOTHING
from vramplan.values.job import NEXT_FORWARD, ResolvedJob
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP, ZERO_STAGES, is_fsdp

OF_DDP = ("parallel.gradient_as_bucket_view",)
OF_FSDP = ("parallel.no_sync", "parallel.fsdp_version", "parallel.reduce_dtype", "parallel.fsdp_units")
CHUNKS = "chunked:8"  # as torchtune's recipes have it: torchtune/modules/loss, num_output_chunks = 8
LOSSES = ("standard", "fp32-logits", "half-logits")  # that hold the logits of a micro-batch at once


def same_run(base: ResolvedJob) -> Iterator[Candidate]:
    """Less memory, and neither more time nor other results."""
    yield from _device(base)
    yield from _kernels(base)
    yield from _sharing(base)


def _device(base: ResolvedJob) -> Iterator[Candidate]:
    if base.gpu_free_bytes is not None and base.gpu_free_bytes < base.gpu.capacity_bytes:
        yield Candidate({"gpu_free": None}, NOTHING, "none, once nothing else runs on the card")
    if base.allocator is not None and not base.allocator.expandable_segments:
        words = "none: PYTORCH_ALLOC_CONF of the run, from PyTorch 2.1 on"
        yield Candidate({"allocator": "expandable_segments:True"}, NOTHING, words)


def _kernels(base: ResolvedJob) -> Iterator[Candidate]:
    if base.optimizer_implementation == "foreach" and base.optimizer in ("adamw", "adam"):
        yield Candidate({"optimizer_implementation": "fused"}, NOTHING, "none: same arithmetic in one kernel")
    if base.attention in ("eager", "math", "sdpa") and base.model.attention_heads:
        words = "none: faster, no attention weights to look at"
        grouped = base.attention != "eager" and base.model.key_value_heads < base.model.attention_heads
        for kernel in ("flash", "sdpa") if grouped else ("efficient", "flash", "sdpa"):
            yield Candidate({"attention": kernel}, NOTHING, words, "attention")
    space = base.model.state_space
    if space is not None and space.layers and not base.mamba_kernels and base.model.engine is None:
        yield Candidate(
            {"mamba_kernels": True}, NOTHING, "none: faster, once mamba-ssm and causal-conv1d are installed"
        )
    if base.quantization == "int8" and base.activation_checkpointing != "none" and not base.checkpoint_reentrant:
        words = "none: use_reentrant=True; beside the others 8-bit layers keep what they read until backward is over"
        yield Candidate({"checkpoint_reentrant": True}, NOTHING, words)
    if base.hold_outputs:
        words = "none: drop the logits before backward"
        yield Candidate({"hold_outputs": False, "hold_outputs_until": None}, NOTHING, words)
    if base.hold_outputs_until == NEXT_FORWARD:
        words = "none: drop logits and loss before the next forward"
        yield Candidate({"hold_outputs_until": "backward"}, NOTHING, words)
    if base.loss in LOSSES and base.model.task == "lm":
        words = "none: the same loss in one kernel, which never holds all logits"
        yield Candidate({"loss": "fused"}, NOTHING, words, "loss")
        yield Candidate({"loss": CHUNKS}, NOTHING, "none: the same loss, of an eighth of the tokens at a time", "loss")


def _sharing(base: ResolvedJob) -> Iterator[Candidate]:
    sharding = base.sharding
    if sharding is None:
        return
    if sharding.kind in (FSDP, FSDP_GRAD_OP) and not base.precision.startswith("fsdp-"):
        half = "fp16" if base.precision.endswith("fp16") else "bf16"
        words = f"none: weights are gathered in {half}, as FSDP's mixed-precision policy does"
        yield Candidate({"precision": f"fsdp-{half}"}, NOTHING, words, resets=NUMBERS)
    experts = base.model.experts
    if is_fsdp(sharding.kind) and sharding.version == 2 and experts is not None and experts.routed < sharding.shards:
        words = "none: flat parameters are shared evenly, where fully_shard gives a device whole experts or none"
        yield Candidate({"parallel": {"fsdp_version": 1}}, NOTHING, words)
    if not is_replicated(base):
        return
    yield from planning_of(base).shared_states(base)
    if not sharding.bucket_views:
        words = "none: gradients are views of the buckets that are summed"
        yield Candidate({"parallel": {"gradient_as_bucket_view": True}}, NOTHING, words)
    if base.split is None:
        words = "none: same communication, states are shared by DeepSpeed"
        for stage in ZERO_STAGES[:2]:
            yield Candidate({"parallel": {"sharding": stage}}, NOTHING, words, "zero", (*OF_DDP, *NUMBERS))
