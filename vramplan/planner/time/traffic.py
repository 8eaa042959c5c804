"""What the devices of a job tell each other in a step: collectives, when they run, and what hides them."""

from __future__ import annotations

from vramplan.planner.time.behaviour import timing_of
from vramplan.planner.time.communication import (
    Link,
    all_gather_seconds,
    all_reduce_seconds,
    copies_of,
    exchange_seconds,
    joined_of,
    link_of,
    own_card,
)
from vramplan.replay.kernels import BACKWARD, FORWARD, RECOMPUTE
from vramplan.replay.record import Record
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import (
    DDP,
    FSDP_GRAD_OP,
    Split,
    is_fsdp,
)

STEP = "step"  # after backward
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, SEND = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "send",
)


class Collective(NamedTuple):
    """Equal collectives of one device in a step."""

    kind: str
    group: str  # data | replicas | tensor | context | expert | pipeline
    when: str  # forward | recompute | backward | step
    size_bytes: int  # of each, of the whole tensor
    devices: int
    times: int  # in each micro-batch, or in a step where `once`
    once: bool  # in the last micro-batch of a step alone, or after it
    hidden: bool  # whether kernels run beside it
    seconds: float  # of each


def collectives_of(
    job: ResolvedJob, record: Record, micro: int, blocks: int, node_bandwidth: float | None
) -> list[Collective]:
    """All collectives of a step on one device; `blocks` are those of the model that it has."""
    if job.data_parallel_size == 1 and job.split is None:
        return []
    return [
        *_of_data(job, record, blocks, node_bandwidth),
        *_of_tensor(job, micro, blocks, node_bandwidth),
        *_of_context(job, micro, blocks, node_bandwidth),
        *_of_experts(job, micro, blocks, node_bandwidth),
    ]


def group_link(job: ResolvedJob, group: str, node_bandwidth: float | None) -> Link:
    """What a group talks over; tensor parallelism is innermost, then context, then data, then the pipeline.

    Source: megatron-core, core/parallel_state.py, order tp-cp-ep-dp-pp.
    """
    split = job.split or Split()
    inner = {"tensor": 1, "context": split.tensor, "data": split.tensor * split.context}
    inner["expert"] = inner["data"]
    inner["replicas"] = inner["data"] * (1 if job.sharding is None else job.sharding.shards)
    inner["pipeline"] = inner["data"] * job.data_parallel_size
    sizes = {
        "tensor": split.tensor,
        "context": split.context,
        "expert": split.expert,
        "pipeline": split.pipeline,
        "data": job.data_parallel_size if job.sharding is None else max(1, job.sharding.shards),
        "replicas": 1 if job.sharding is None else job.sharding.replicas,
    }
    return link_of(job.gpu, sizes[group], inner[group], job.devices_per_node, node_bandwidth)


def _of_data(job: ResolvedJob, record: Record, blocks: int, node_bandwidth: float | None) -> list[Collective]:
    """Gradients that are summed, and shards that are gathered."""
    sharding = job.sharding
    if sharding is None or job.data_parallel_size < 2:
        return []
    kind, shards = sharding.kind, sharding.shards
    link = group_link(job, "data", node_bandwidth)
    timing = timing_of(job)
    weights = record.parameters // timing.counted_devices(job)
    trained = record.reached_parameters // timing.counted_devices(job)
    half = 4 if job.precision == "fp32" else 2
    units = max(1, blocks)

    def one(kind: str, when: str, elements: int, width: int, *, once: bool, hidden: bool, more: int = 0) -> Collective:
        size = (elements * width + more) // units
        seconds = (all_reduce_seconds if kind == ALL_REDUCE else all_gather_seconds)(size, shards, link)
        return Collective(kind, "data", when, size, shards, units, once, hidden, seconds)

    if kind == DDP:
        halves = job.precision.startswith(("pure-", "mixed-")) or job.half_weights
        width = 2 if halves and not job.fp32_gradients else 4
        return [one(ALL_REDUCE, BACKWARD, trained, width, once=True, hidden=timing.hides_sums)]
    if is_fsdp(kind) or kind == "zero3":
        quantized, packed = record.packed  # which travel as they lie
        plain = weights - quantized
        elsewhere = _elsewhere(job, shards)
        if elsewhere < min(plain, trained):
            plain, trained = plain - elsewhere, trained - elsewhere
        once = timing.gathers_once(job)
        gathers = [one(ALL_GATHER, FORWARD, plain, half, once=once, hidden=True, more=packed)]
        if kind != FSDP_GRAD_OP:
            gathers.append(one(ALL_GATHER, BACKWARD, plain, half, once=False, hidden=True, more=packed))
        reduce = {"fp32": 4, None: half}.get(sharding.reduce_dtype, 2)
        if is_fsdp(kind) and sharding.reduce_dtype is None and job.precision.startswith("amp-"):
            reduce = 4
        found = [*gathers, one(REDUCE_SCATTER, BACKWARD, trained, reduce, once=sharding.no_sync, hidden=True)]
        if sharding.replicas > 1:
            size = trained * reduce // shards // units
            between = group_link(job, "replicas", node_bandwidth)
            seconds = all_reduce_seconds(size, sharding.replicas, between)
            found.append(
                Collective(ALL_REDUCE, "replicas", BACKWARD, size, sharding.replicas, units, False, True, seconds)
            )
        return found
    overlaps = sharding.zero is not None and sharding.zero.overlap_comm
    if kind == "zero2":
        reduced = one(REDUCE_SCATTER, BACKWARD, trained, half, once=False, hidden=overlaps)
    else:
        width = 4 if job.fp32_gradients else half
        reduced = one(REDUCE_SCATTER, BACKWARD, trained, width, once=True, hidden=overlaps)
    return [reduced, one(ALL_GATHER, STEP, trained, half, once=True, hidden=False)]


def _elsewhere(job: ResolvedJob, shards: int) -> int:
    """Elements of experts that FSDP gathers on no device of its own: those of the others that share them.

    Where as many devices share the experts as the weights, each has its own whole and gathers none.
    Source: torchtitan, models/moe, apply_fsdp (the mesh of experts has the devices that have the same ones).
    """
    among, experts, shape = (job.split or Split()).among_shards, job.model.experts, job.model
    if among < 2 or experts is None:
        return 0
    each = (3 if shape.gated_mlp else 2) * shape.hidden_size * experts.intermediate_size
    held = experts.routed * each * (shape.blocks - len(experts.dense_layers))
    return held if among == shards else held - held // among


def _hidden_bytes(job: ResolvedJob, micro: int) -> int:
    """Of a hidden state of one micro-batch, whole but for context parallelism."""
    split = job.split or Split()
    width = 4 if job.precision == "fp32" else 2
    return micro * job.sequence_length // split.context * job.model.hidden_size * width


def _of_tensor(job: ResolvedJob, micro: int, blocks: int, node_bandwidth: float | None) -> list[Collective]:
    """Two sums of the hidden state in each block and direction, which nothing hides.

    With sequence parallelism each is a reduce-scatter and an all-gather, of the same bytes.
    Source: arXiv:1909.08053, section 3; arXiv:2205.05198, section 4.2.
    """
    split = job.split
    if split is None or split.tensor < 2:
        return []
    size = _hidden_bytes(job, micro)
    seconds = all_reduce_seconds(size, split.tensor, group_link(job, "tensor", node_bandwidth))
    whens = [FORWARD, BACKWARD]
    if (job.activation_checkpointing or "none") not in ("none", "selective"):
        whens.append(RECOMPUTE)
    return [
        Collective(ALL_REDUCE, "tensor", when, size, split.tensor, 2 * blocks, False, False, seconds) for when in whens
    ]


def _of_context(job: ResolvedJob, micro: int, blocks: int, node_bandwidth: float | None) -> list[Collective]:
    """Keys and values go round, beside the attention; in backward their gradients too."""
    split = job.split
    if split is None or split.context < 2:
        return []
    shape = job.model
    own = micro * job.sequence_length * 2 * shape.key_value_heads // split.tensor * shape.head_size * 2
    seconds = all_gather_seconds(own, split.context, group_link(job, "context", node_bandwidth))
    return [
        Collective(ALL_GATHER, "context", FORWARD, own, split.context, blocks, False, True, seconds),
        Collective(ALL_GATHER, "context", BACKWARD, own, split.context, 2 * blocks, False, True, seconds),
    ]


def _of_experts(job: ResolvedJob, micro: int, blocks: int, node_bandwidth: float | None) -> list[Collective]:
    """Each token goes to its experts and comes back, in each direction; to each machine once, which hands it on.

    So does DeepEP, which NVIDIA's recipes for Hopper have (Megatron-Bridge, `moe_flex_dispatcher_backend`;
    yanring/Megatron-MoE-ModelZoo); NCCL's all-to-all, which is Megatron-LM's own choice, sends a token to each expert.
    """
    split, experts = job.split, job.model.experts
    if split is None or experts is None:
        return []
    spread = max(split.expert, split.among_shards)
    if spread < 2:
        return []
    size = int(_hidden_bytes(job, micro) // split.tensor * experts.active * (job.expert_imbalance or 1.0))
    inner = split.tensor * split.context  # devices from one member of the group to the next
    near = min(spread, max(1, joined_of(job.gpu, job.devices_per_node) // inner))
    inside = link_of(job.gpu, near, inner, job.devices_per_node, node_bandwidth)
    links = inside, own_card(job.gpu, job.devices_per_node, node_bandwidth)
    copies = copies_of(experts.active, spread // near)
    seconds = exchange_seconds(size, spread, near, links, copies)
    routed = max(0, blocks - len(experts.dense_layers))
    whens = [FORWARD, BACKWARD]
    if (job.activation_checkpointing or "none") not in ("none", "selective", "selective-op"):
        whens.append(RECOMPUTE)
    return [Collective(ALL_TO_ALL, "expert", when, size, spread, 2 * routed, False, False, seconds) for when in whens]
