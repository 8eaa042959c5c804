"""A job's iteration on one device that holds everything, and what it says of the memory of every way to share.

What shares a model or its states adds copies and buffers, and takes no activation away: so one plain replay bounds what
others, which take ten times as long, need at least.
"""

from __future__ import annotations

from typing import Any

from vramplan.planner.checkpoints import SELECTIVE, SELECTIVE_OP
from vramplan.planner.replays import Replays
from vramplan.planner.setups import iteration_of
from vramplan.replay.envelope import envelope_of
from vramplan.replay.kernels import Kernel
from vramplan.replay.models import ladder_of
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP, DISTRIBUTED_OPTIMIZER, FSDP_GRAD_OP, ZERO1, ZERO2, Split, is_fsdp

ROUNDED_BYTES = 1 << 16  # by which rounding each tensor to blocks may move what a sample adds
HALF_BYTES = 2  # of a weight in the narrowest type that is trained
WHOLE_WEIGHTS = (ZERO1, ZERO2)  # ways to share that leave each replica all weights; DDP leaves it all states
LEAST: dict[str, Any] = {
    "optimizer_implementation": "for-loop",  # no counters of steps on the device
    "max_gradient_norm": None,
    "hold_outputs": False,
    "outlives": False,
    "use_cache": False,
    "zeroes_late": False,
    "wide_embeddings": False,
}
"""What runs no kernel of a micro-batch and keeps least, so that programs which differ in it share a plain replay."""
ANY = 1 << 40  # micro-batches that no device has room for


class Plain(NamedTuple):
    """What bounds ask of a plain replay."""

    kernel_classes: tuple[Kernel, ...]  # none where no time is asked
    states: tuple[StandingState, ...]
    parameters: int
    reached_parameters: int
    packed: tuple[int, int]  # parameters that are quantized, and their bytes
    sample_bytes: int  # what grows with each sample at the moment when that is most, without states

    @property
    def static_bytes(self) -> int:
        """States of a micro-batch of one sample."""
        return sum(state.at(1) for state in self.states)


def plain_of(record: Record, kernels: tuple[Kernel, ...] = ()) -> Plain:
    """The same of the record of `plain_setup`; `kernels` are its classes, where a bound of the time is asked.

    Where each sample meets all others, as packed ones do in the code of some programs, a sample of a larger micro-batch
    costs more: that is left out, so that of no kernel it does.
    """
    inputs = sum(state.per_sample_bytes * state.copies for state in record.states)
    each = max(per_sample for _, per_sample in envelope_of(record).lines) - inputs
    kernels = tuple(_without_pairs(one) if _has_pairs(one) else one for one in kernels)
    return Plain(kernels, tuple(record.states), record.parameters, record.reached_parameters, record.packed, each)


def _has_pairs(kernel: Kernel) -> bool:
    return any(figure[2] for figure in (kernel.flops, kernel.again, kernel.read, kernel.written))


def _without_pairs(kernel: Kernel) -> Kernel:
    flops, again, read, written = (
        (fixed, each, 0) for fixed, each, _ in (kernel.flops, kernel.again, kernel.read, kernel.written)
    )
    return kernel._replace(flops=flops, again=again, read=read, written=written)


def has_pairs(record: Record) -> bool:
    """Whether a sample of a larger micro-batch may cost more than one of a smaller."""
    return any(map(_has_pairs, record.kernel_classes))


def plain_setup(job: ResolvedJob, *, whole: bool = False, cut: bool = True) -> Setup:
    """The iteration of a job on a device that holds the whole model and its states, operator by operator.

    `whole`: as the job runs it, compiled or not, and of the part of a replica that its program cuts by a plan; of the
    whole replica where it is not `cut`.
    """
    alone = job._replace(sharding=None, split=None, data_parallel_size=1, offload=())
    if not whole:
        alone = alone._replace(compile=False)
    if not (whole and cut):
        alone = alone._replace(planned=None)
    casts = job.sharding is not None and is_fsdp(job.sharding.kind) and job.sharding.version == 1
    return iteration_of(alone)._replace(**LEAST, casts_buffers=casts)


def room_setup(job: ResolvedJob, *, cut: bool = True) -> Setup:
    """The same where room is asked: devices that share a sequence run other code around its attention, and keep less.

    So theirs is the iteration of one of them, with its part of each sequence.
    """
    setup, context = plain_setup(job, whole=True, cut=cut), _shares_sequences(job)
    if context == 1 or job.split is None:
        return setup
    return setup._replace(split=Split(context=context, context_communication=job.split.context_communication))


def _shares_sequences(job: ResolvedJob) -> int:
    """How many devices share each sequence, where the model's own code does it."""
    return 1 if job.planned is not None else (job.split or Split()).context


def simpler(job: ResolvedJob) -> ResolvedJob:
    """A job with checkpoints of every block, or with none, which computes no more than the given one.

    Checkpoints of several blocks compute again what those of single blocks do, and the products that end these; those
    that keep some results compute more than none. Between two stacks of blocks some is computed for each checkpoint, so
    there the job is its own.
    """
    strategy = job.activation_checkpointing
    if strategy is None or len(job.model.stacks) > 1 or ladder_of(job.model.family) is not None:
        return job
    if strategy == "sqrt" or strategy.startswith("every:"):
        return job._replace(activation_checkpointing="full")
    return job._replace(activation_checkpointing="none") if strategy in (SELECTIVE, SELECTIVE_OP) else job


def parts_of(job: ResolvedJob) -> int:
    """The devices that share one replica of the model."""
    return (job.split or Split()).devices


def cuts_of(job: ResolvedJob, *, cut: bool = True) -> int:
    """Into how many parts the program cuts the plain iteration of a job, `whole` and `cut` as it is."""
    return 1 if cut and job.planned is not None else parts_of(job)


def least_bytes(job: ResolvedJob, plain: Plain) -> int:
    """What is alive on the device all the time at least: of states that devices share, each has a part.

    Devices that share sequences have the same weights, and share states as data-parallel ones do. Where experts are
    split too, data-parallel devices have other weights.
    """
    split, shared = job.split or Split(), job.sharding
    weights = 0 if "parameters" in job.offload else _narrow_weights(plain)
    rest = weights if job.offload else plain.static_bytes
    if shared is None or shared.kind == DDP:
        whole = rest
    elif shared.kind == DISTRIBUTED_OPTIMIZER:
        whole = weights + _sum_of(plain, "gradients")
    else:
        whole = weights if shared.kind in WHOLE_WEIGHTS else 0
    parts = split.tensor * split.pipeline
    return whole // (parts * split.expert) + (rest - whole) // (parts * split.context * job.data_parallel_size)


def gathered_bytes(job: ResolvedJob, plain: Plain) -> int:
    """What is there beside that when backward begins at least: FSDP that shards no weights keeps what forward gathered.

    Megatron's has them whole all the time and no shard of them, so a shard is not counted twice.
    Source: torch 2.13, torch/distributed/fsdp/_fully_shard/_fully_shard.py, `reshard_after_forward=False`.
    """
    split, shared = job.split or Split(), job.sharding
    if shared is None or shared.kind != FSDP_GRAD_OP or shared.shards == 1:
        return 0
    parts = split.tensor * split.pipeline
    shard = _sum_of(plain, "weights") // (parts * split.context * job.data_parallel_size)
    return max(0, _narrow_weights(plain) // (parts * split.expert) - shard)


def _sum_of(plain: Plain, category: str) -> int:
    return sum(state.at(1) for state in plain.states if state.category == category)


def _narrow_weights(plain: Plain) -> int:
    """The weights in the narrowest type that they may be used in."""
    return min(_sum_of(plain, "weights"), HALF_BYTES * plain.parameters)


def samples_within(job: ResolvedJob, plain: Plain, limit_bytes: int, *, cut: bool = True) -> int:
    """The largest micro-batch that may have room beside the states: so much of each sample is there at some moment.

    `plain` is that of `room_setup`. 0 where not even one may. Activations and their gradients are the same where
    weights and states are shared. A stage of a pipeline has less, but each saves what its blocks save, and one of them
    has the moment: all stages together have no less.
    """
    if job.offload_activations:
        return ANY
    each = plain.sample_bytes // (cuts_of(job, cut=cut) // _shares_sequences(job))
    room = limit_bytes - least_bytes(job, plain)
    return 0 if room < gathered_bytes(job, plain) else room // max(1, each - ROUNDED_BYTES)


def has_room_for_states(job: ResolvedJob, strategy: str, limit_bytes: int, replays: Replays) -> bool:
    """Whether what is alive on the device all the time may have room within the limit."""
    setup = plain_setup(job._replace(activation_checkpointing=strategy))
    plain = plain_of(replays.record(setup, 2))
    return least_bytes(job, plain) + gathered_bytes(job, plain) <= limit_bytes


def most_within(job: ResolvedJob, strategy: str, limit_bytes: int, replays: Replays) -> int:
    """The same of a job under a strategy."""
    setup = room_setup(job._replace(activation_checkpointing=strategy))
    return samples_within(job, plain_of(replays.record(setup, 2)), limit_bytes)
