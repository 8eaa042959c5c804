"""How several devices share the states of a model and split a replica, as frozen values. Sizes are integer bytes."""

from __future__ import annotations

from vramplan.tuples import NamedTuple

DDP, FSDP, FSDP_GRAD_OP = "ddp", "fsdp", "fsdp-grad-op"


ZERO1, ZERO2, ZERO3 = "zero1", "zero2", "zero3"


DISTRIBUTED_OPTIMIZER = "distributed-optimizer"  # Megatron's: fp32 states are shared, weights and gradients whole


ZERO_STAGES = (ZERO1, ZERO2, ZERO3)  # of DeepSpeed


MOST_GRADIENTS = -1  # as a device of ZeRO 1 or 2: the one whose parameters, whole, are most


def is_fsdp(kind: str | None) -> bool:
    """Whether a word of parallel.sharding is FSDP's: `fsdp`, `fsdp-grad-op` or `hsdp:N`."""
    return kind is not None and kind.partition(":")[0] in (FSDP, FSDP_GRAD_OP, "hsdp")


class ParameterDrive(NamedTuple):
    """How the parameters of ZeRO-3 pass between NVMe and the host; sizes are in elements."""

    buffers: int  # on the host: one for each parameter that is there or whole
    buffer_size: int
    most_on_host: int  # of the groups of parameters that stay there for good


class Zero(NamedTuple):
    """The switches of DeepSpeed's ZeRO that decide what its buffers hold; sizes are in elements."""

    reduce_bucket_size: int  # gradients that are averaged at a time
    overlap_comm: bool  # a second bucket is filled meanwhile
    prefetch_bucket_size: int = 50_000_000  # stage 3: parameters that are gathered ahead of their use
    param_persistence_threshold: int = 100_000  # stage 3: smaller parameters stay whole
    max_live_parameters: int = 1_000_000_000  # stage 3: gathered at a time
    sub_group_size: int = 1_000_000_000  # stage 3: of the parameters that are stepped at a time
    drive_buffers: int | None = None  # stage 3: through which an optimizer on NVMe passes; None: it is not there
    parameter_drive: ParameterDrive | None = None  # stage 3: None: the parameters are not there
    beside: tuple[int, int] | None = None  # stage 3: of a reference the second and the third of these; None: the same
    allgather_bucket_size: int | None = None  # decides nothing, and is kept for the echo; None: not said
    contiguous_gradients: bool = True  # else gradients stay where they are until they are reduced
    flat_on_device: bool = True  # stages 1 and 2: weights are put together there; else on the host
    memory_efficient_linear: bool = True  # stage 3: else autograd keeps views of gathered weights of linear layers


BLOCKS, ENDS_AS_BLOCKS = "blocks", "embedding-and-head"  # what a pipeline is balanced by, or FSDP gathers at once
WITH_NORM = "embedding-and-norm-head"  # units of FSDP: the last norm and the head are one


class Sharded(NamedTuple):
    """How data-parallel devices share the states of a model."""

    kind: str  # DDP | FSDP | FSDP_GRAD_OP
    shards: int  # devices that share them; of ddp, that have the same
    no_sync: bool = False  # gradients of all micro-steps but the last stay whole on each device
    bucket_views: bool = False  # of ddp: gradients are views of the buckets that are summed
    zero: Zero | None = None  # of zero1, zero2 and zero3
    version: int = 2  # of FSDP: 1 is FullyShardedDataParallel, 2 is fully_shard
    reduce_dtype: str | None = None  # fp32 | bf16 | fp16, of gradients while they are summed; None: that of the shards
    way: str | None = None  # of ddp: what a training program brings for it; None: PyTorch's DistributedDataParallel
    replicas: int = 1  # groups of devices that each share all states, and sum what their shards have of gradients
    units: str = BLOCKS  # of FSDP, a word of parallel.fsdp_units: what is gathered at once
    limits_gathers: bool | None = (
        None  # of FSDP1: at most two units are gathered ahead; None: as PyTorch's release does
    )


RING, ALL_GATHER = "ring", "all-gather"  # how devices that share a sequence get each other's keys and values


class Split(NamedTuple):
    """How one replica of a model is split over devices; the first four are numbers of devices."""

    tensor: int = 1  # share every matrix
    pipeline: int = 1  # have blocks of their own
    context: int = 1  # share every sequence
    expert: int = 1  # of the data-parallel ones, share the experts
    sequence_parallel: bool = False  # what tensor parallelism leaves whole is shared along the sequence
    schedule: str = "1f1b"  # of a pipeline: 1f1b | gpipe | interleaved
    virtual: int = 1  # interleaved: parts of the model on each device of the pipeline
    pipeline_split: str | None = None  # BLOCKS, or the embeddings and the head count as a block each
    context_communication: str | None = None  # RING | ALL_GATHER: how keys and values come to the other devices
    group: int | None = None  # interleaved: micro-batches that go through a part in a row; None: as many as stages
    among_shards: int = 1  # devices of FSDP that share the experts: they hold as many bytes, but tell each other tokens

    @property
    def devices(self) -> int:
        """That hold one replica; expert parallelism takes the data-parallel ones."""
        return self.tensor * self.pipeline * self.context
