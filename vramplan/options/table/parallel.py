"""Keys of devices that work together: how a model is split, how states are shared, and what connects the devices."""

from __future__ import annotations

from typing import Any

from vramplan.options import spellings, words
from vramplan.options.option import COUNT, FLAG, MAPPING, TEXT, WORD, Option
from vramplan.options.table.sections import PARALLELISM, TUNING

MAX_DEVICES = 2**20
MAX_ELEMENTS = 2**50  # of a buffer

FSDP = ("fsdp", "fsdp-grad-op", "hsdp:N")
ZERO = ("zero1", "zero2", "zero3")
ZERO3 = ("zero3",)


def _parallel(name: str, kind: str, help: str, **more: Any) -> Option:
    return Option(f"parallel.{name}", kind, help, section=PARALLELISM, **more)


def _devices(name: str, help: str, note: str, **more: Any) -> Option:
    return _parallel(name, COUNT, help, maximum=MAX_DEVICES, default=1, slot="", note=note, **more)


def _zero(name: str, kind: str, help: str, **more: Any) -> Option:
    return _parallel(name, kind, help, slot="", panel=TUNING, **{"sharding": ZERO3, **more})


PARALLEL_ROWS = (
    Option(
        "parallel",
        MAPPING,
        "How devices share the work: a mapping of degrees, sharding and switches.",
        usual="one device",
        flags=(),
        textbook=True,
        section=PARALLELISM,
    ),
    _parallel(
        "data",
        COUNT,
        "Data-parallel devices, beside --tensor, --pipeline, --context; auto in fit: the fewest that fit.",
        maximum=MAX_DEVICES,
        default=1,
        flags=("--gpus", "--data"),
        slot="data_parallel_size",
        absent=1,
        textbook=True,
        also=(
            "--num-gpus",
            "--n-gpus",
            "--ngpus",
            "--n-gpu",
            "--num-devices",
            "--devices",
            "--world-size",
            "--data-parallel",
            "--data-parallel-size",
            "--dp",
        ),
        everyday=True,
    ),
    _devices(
        "tensor",
        "Tensor parallelism: GPUs that share each matrix.",
        "Where the code of the runtime splits it.",
        also=("--tp", "--tensor-parallel", "--tensor-parallel-size", "--tensor-model-parallel-size"),
    ),
    _devices(
        "pipeline",
        "Pipeline parallelism: stages.",
        "Where the code of the runtime splits it.",
        also=("--pp", "--pipeline-parallel", "--pipeline-parallel-size", "--pipeline-model-parallel-size"),
    ),
    _parallel(
        "schedule",
        WORD,
        "Schedule of a pipeline.",
        words=words.SCHEDULES,
        default="1f1b",
        slot="",
    ),
    _devices(
        "context",
        "Context parallelism: GPUs that share each sequence.",
        "Where the code of the runtime splits it.",
        also=("--cp", "--context-parallel", "--context-parallel-size"),
    ),
    _devices(
        "expert",
        "Expert parallelism: data-parallel GPUs that share the experts.",
        "Where the code of the runtime splits them.",
        also=("--ep", "--expert-parallel", "--expert-parallel-size", "--expert-model-parallel-size"),
    ),
    _parallel(
        "sequence_parallel",
        FLAG,
        "Sequence parallelism: with --tensor, norms and dropout share the sequence too.",
        default=False,
        slot="",
    ),
    _parallel(
        "pipeline_split",
        WORD,
        "What the stages of a pipeline share evenly.",
        words=("blocks", "embedding-and-head"),
        usual="what divides them",
        slot="",
        metavar="HOW",
        note="[How stages are cut](megatron.md#pipelines).",
    ),
    _parallel(
        "context_communication",
        WORD,
        "With --context: how devices get the keys and values of the others.",
        words=("ring", "all-gather"),
        usual="`ring` under megatron, `all-gather` under [torchtitan](torchtitan.md#context-parallelism)",
        slot="",
        metavar="HOW",
        note="[How](megatron.md#context-parallelism).",
    ),
    _parallel(
        "sharding",
        WORD,
        "How data-parallel GPUs share weights, gradients and optimizer states.",
        words=words.SHARDINGS,
        usual="`ddp` with several devices, else `none`",
        note="[Modelled](devices.md); [ZeRO](zero.md) with a `mixed-*` precision; "
        "[`distributed-optimizer`](megatron.md#states) under `megatron`.",
        profile=("sharding",),
        textbook=words.TEXTBOOK_SHARDINGS,
        also=("--strategy", "--sharding-strategy"),
        spellings=spellings.SHARDINGS,
        everyday=True,
    ),
    _parallel(
        "shards",
        COUNT,
        "Devices that share sharded states, where not all.",
        maximum=MAX_DEVICES,
        usual="all",
        note="With FSDP and by the `textbook` any divisor of the data-parallel devices; under `torchtitan` "
        "[of `data` x `context`](torchtitan.md#groups-of-replicas).",
        textbook=True,
        panel=TUNING,
    ),
    _parallel(
        "no_sync",
        FLAG,
        "With FSDP: accumulate under no_sync, with whole gradients on each GPU.",
        usual="`true` under `transformers`, else `false`",
        note="[How](devices.md#fsdp).",
        off="--sync",
        sharding=FSDP,
        profile=("no_sync",),
        panel=TUNING,
    ),
    _parallel(
        "gradient_as_bucket_view",
        FLAG,
        "With DDP: gradients are views of its buckets.",
        usual="`false`",
        note="[How](devices.md#ddp).",
        sharding=("ddp",),
        profile=("gradient_as_bucket_view",),
        panel=TUNING,
    ),
    _parallel(
        "fsdp_version",
        COUNT,
        "With FSDP: FullyShardedDataParallel or fully_shard.",
        words=("1", "2"),
        usual="2",
        hint="1: FullyShardedDataParallel, 2: fully_shard",
        note="[What differs](devices.md#fsdp1).",
        sharding=FSDP,
        profile=("fsdp_version",),
        panel=TUNING,
    ),
    _parallel(
        "reduce_dtype",
        WORD,
        "With FSDP: element type of gradients while they are summed.",
        words=("fp32", *words.HALVES),
        usual="that of the shards; with `fsdp-bf16` and `fsdp-fp16` under `transformers`, `llm-foundry` and "
        "`fms-fsdp` that of the products",
        note="[How](devices.md#precision-under-fsdp).",
        sharding=FSDP,
        profile=("reduce_dtype",),
        profile_words=(words.AS_GATHERED,),
        spellings=spellings.FLOATS,
        panel=TUNING,
    ),
    _parallel(
        "fsdp_units",
        WORD,
        "With FSDP2: what is gathered at once beside each block.",
        words=words.FSDP_UNITS,
        usual="`embedding-and-norm-head` under `torchtitan`, else `blocks`",
        note="[How](devices.md#units-of-fsdp).",
        sharding=FSDP,
        profile=("fsdp_units",),
        panel=TUNING,
    ),
    _parallel(
        "limit_all_gathers",
        FLAG,
        "With FSDP1: at most two units are gathered ahead.",
        usual="`true` since PyTorch 2.1, `false` before",
        note="[What it does](devices.md#fsdp1).",
        off="--unlimited-all-gathers",
        sharding=FSDP,
        panel=TUNING,
    ),
    _zero(
        "reduce_bucket_size",
        COUNT,
        "ZeRO: gradients averaged at a time, in elements.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        zero="a bucket of 0 elements holds no gradient",
        usual="500000000; under `transformers` with `zero3` the square of the hidden size",
        note="[How](zero.md#switches).",
        sharding=ZERO,
    ),
    _zero(
        "allgather_bucket_size",
        COUNT,
        "ZeRO: accepted, but does not change memory.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="-",
        note="In elements; read with a [warning](zero.md#switches).",
        sharding=ZERO,
    ),
    _zero(
        "sub_group_size",
        COUNT,
        "ZeRO-3: elements that the optimizer updates at a time.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="1000000000",
        note="[How](zero.md#stage-3).",
    ),
    _zero(
        "stage3_max_live_parameters",
        COUNT,
        "ZeRO-3: most elements that are gathered at a time.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="1000000000",
    ),
    _zero(
        "stage3_prefetch_bucket_size",
        COUNT,
        "ZeRO-3: elements gathered ahead of their use.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="50000000; under `transformers` 0.9 times the square of the hidden size",
        note="[How](zero.md#stage-3).",
    ),
    _zero(
        "stage3_param_persistence_threshold",
        COUNT,
        "ZeRO-3: parameters up to this many elements are never sharded.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="100000; under `transformers` 10 times the hidden size",
        note="[How](zero.md#stage-3).",
    ),
    _zero(
        "overlap_comm",
        FLAG,
        "ZeRO: a second bucket is filled while the first is averaged.",
        usual="`false`; with `zero3` `true`",
        note="[How](zero.md#switches).",
        sharding=ZERO,
    ),
    _zero(
        "contiguous_gradients",
        FLAG,
        "ZeRO: gradients are copied into a contiguous bucket.",
        usual="`true`",
        note="`false` is of `zero3` alone.",
        sharding=ZERO,
    ),
    _zero(
        "offload_optimizer_device",
        WORD,
        "ZeRO-3: where an offloaded optimizer lives.",
        words=words.OFFLOAD_DEVICES,
        usual="`cpu`",
        note="[NVMe](zero.md#nvme).",
    ),
    _zero(
        "offload_optimizer_buffer_count",
        COUNT,
        "ZeRO-3: buffers on the host through which an optimizer on NVMe passes.",
        minimum=4,
        maximum=1024,
        usual="4",
    ),
    _zero(
        "offload_parameters_device",
        WORD,
        "ZeRO-3: where offloaded parameters live.",
        words=words.OFFLOAD_DEVICES,
        usual="`cpu`",
        note="[NVMe](zero.md#parameters-on-nvme).",
    ),
    _zero(
        "offload_parameters_buffer_count",
        COUNT,
        "ZeRO-3: buffers on the host, one for each parameter that comes from NVMe.",
        maximum=65536,
        usual="5",
    ),
    _zero(
        "offload_parameters_buffer_size",
        COUNT,
        "ZeRO-3: elements of each of these buffers.",
        maximum=MAX_ELEMENTS,
        usual="100000000",
    ),
    _zero(
        "offload_parameters_max_in_cpu",
        COUNT,
        "ZeRO-3: elements of a device's part that stay on the host.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="1000000000",
    ),
    _parallel(
        "devices_per_node",
        COUNT,
        "GPUs per node, which share the host memory.",
        maximum=MAX_DEVICES,
        usual="all, but at most 8",
        note="What is [offloaded](zero.md#offloading) lives there.",
        also=("--gpus-per-node", "--nproc-per-node"),
    ),
    _parallel(
        "node_bandwidth",
        TEXT,
        "Bandwidth of a node's network, each way, e.g. '200 GB/s' or '100 Gbit/s'.",
        slot="",
        usual="that of the usual node of the GPU",
        note="Of all its network cards together. Changes the [time of a step](time.md#communication) alone.",
        also=("--network-bandwidth",),
    ),
)
