"""The options that describe a job: the keys of the job format with dashes, shared by every command that takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vramplan.values.job import Job
    from vramplan.values.textbook import AnyJob


def _option(*names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help)


def _job(
    model: Annotated[
        str | None, _option("--model", "-m", metavar="MODEL", help="Profile, file, config.json or cached ORG/NAME.")
    ] = None,
    gpu: Annotated[
        str | None, _option("--gpu", "-g", metavar="GPU", help="Profile name or file, a size as in '24 GiB', or local.")
    ] = None,
    sequence_length: Annotated[
        str | None, _option("--seq", "--sequence-length", metavar="N", help="Tokens per sequence.")
    ] = None,
    image_size: Annotated[
        str | None, _option("--image-size", metavar="N", help="Pixels of an edge, for models that take images.")
    ] = None,
    target_length: Annotated[
        str | None,
        _option("--target-length", metavar="N", help="Tokens of the decoder, where an encoder has those of --seq."),
    ] = None,
    micro_batch_size: Annotated[
        str | None,
        _option(
            "--micro-batch",
            "--micro-batch-size",
            metavar="N",
            help="Sequences or images per rank and forward pass; recommended if left out.",
        ),
    ] = None,
    global_batch_size: Annotated[
        str | None,
        _option(
            "--global-batch", "--global-batch-size", metavar="N", help="The same per optimizer step over all ranks."
        ),
    ] = None,
    gradient_accumulation_steps: Annotated[
        str | None,
        _option("--gradient-accumulation-steps", "--steps", metavar="N", help="Micro-batches per optimizer step."),
    ] = None,
    precision: Annotated[
        str | None,
        _option(
            "--precision",
            metavar="NAME",
            help="auto, fp32, amp-fp16, amp-bf16, mixed-fp16, mixed-bf16, pure-fp16, pure-bf16, fsdp-bf16, fsdp-fp16, "
            "fp8.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None, _option("--optimizer", metavar="NAME", help="adamw, adamw-8bit, sgd, adafactor, muon, lion, ...")
    ] = None,
    optimizer_implementation: Annotated[
        str | None, _option("--optimizer-implementation", metavar="NAME", help="fused, foreach, for-loop.")
    ] = None,
    optimizer_in_backward: Annotated[
        bool | None,
        typer.Option(
            "--optimizer-in-backward/--no-optimizer-in-backward",
            help="Each weight is stepped in backward, and its gradient goes.",
        ),
    ] = None,
    max_gradient_norm: Annotated[
        str | None, _option("--max-gradient-norm", metavar="X", help="Gradients are clipped to this total norm.")
    ] = None,
    grad_scaler: Annotated[
        bool | None,
        typer.Option("--grad-scaler/--no-grad-scaler", help="amp-fp16: the loss is scaled, gradients are unscaled."),
    ] = None,
    ema: Annotated[bool | None, typer.Option("--ema/--no-ema", help="A moving average of the weights.")] = None,
    activation_checkpointing: Annotated[
        str | None,
        _option(
            "--checkpointing",
            "--activation-checkpointing",
            metavar="NAME",
            help="none, full, sqrt, every:K, layers:[[0,6],[7,13]], optimal, selective, selective-op, "
            "selective-layer:K; under llm.c gelu and gelu-norms.",
        ),
    ] = None,
    every_second_matmul: Annotated[
        bool | None,
        typer.Option(
            "--every-second-matmul/--no-every-second-matmul",
            help="With selective-op: keep only the first, third, ... product of a block's linear layers.",
        ),
    ] = None,
    expert_imbalance: Annotated[
        str | None,
        _option("--expert-imbalance", metavar="X", help="Tokens of the most loaded expert over the mean."),
    ] = None,
    expert_capacity_factor: Annotated[
        str | None,
        _option(
            "--expert-capacity-factor",
            metavar="X",
            help="Tokens that an expert takes over the mean, as in 1.25; those above are dropped.",
        ),
    ] = None,
    expert_pad_to_capacity: Annotated[
        bool | None,
        typer.Option(
            "--expert-pad-to-capacity/--no-expert-pad-to-capacity",
            help="With a capacity factor: every expert gets as many tokens as it takes.",
        ),
    ] = None,
    checkpoint_reentrant: Annotated[
        bool | None,
        typer.Option("--checkpoint-reentrant/--no-checkpoint-reentrant", help="Checkpoints with use_reentrant=True."),
    ] = None,
    loss: Annotated[
        str | None,
        _option(
            "--loss",
            metavar="NAME",
            help="standard, fp32-logits, half-logits, chunked:N, fused, vocab-parallel, classification, dpo.",
        ),
    ] = None,
    label_smoothing: Annotated[
        str | None, _option("--label-smoothing", metavar="X", help="Smooth the labels, as in 0.1; 0 is none.")
    ] = None,
    dpo_reference: Annotated[
        str | None, _option("--dpo-reference", metavar="NAME", help="Of the loss dpo: model, precomputed, adapter-off.")
    ] = None,
    attention: Annotated[
        str | None, _option("--attention", metavar="NAME", help="sdpa, flash, efficient, math, eager.")
    ] = None,
    dropout: Annotated[
        str | None, _option("--dropout", metavar="P", help="Overrides every dropout of the model.")
    ] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile around the model and its loss.")
    ] = None,
    hold_outputs: Annotated[
        bool | None,
        typer.Option("--hold-outputs/--no-hold-outputs", help="The loop keeps the logits through backward."),
    ] = None,
    padding: Annotated[
        str | None, _option("--padding", metavar="NAME", help="none, or right: padded sequences need a mask.")
    ] = None,
    packing: Annotated[
        bool | None, typer.Option("--packing/--no-packing", help="Each sequence is packed from several short ones.")
    ] = None,
    eval_batch_size: Annotated[
        str | None,
        _option("--eval-batch-size", metavar="N", help="Warn where an evaluation of N sequences exceeds training."),
    ] = None,
    generation_batch_size: Annotated[
        str | None,
        _option("--generation-batch-size", metavar="N", help="Warn where generating N sequences exceeds training."),
    ] = None,
    generation_length: Annotated[
        str | None, _option("--generation-length", metavar="N", help="Tokens of a generated sequence and its prompt.")
    ] = None,
    runtime: Annotated[
        str | None,
        _option(
            "--runtime",
            metavar="NAME",
            help="transformers, pytorch, megatron, torchtitan, ..., textbook: `vramplan runtimes`.",
        ),
    ] = None,
    host_memory: Annotated[
        str | None,
        _option("--host-memory", metavar="SIZE", help="Of a node, as in '512 GiB': checked where something offloads."),
    ] = None,
    devices_per_node: Annotated[
        str | None, _option("--devices-per-node", metavar="N", help="Devices that share a host, by default up to 8.")
    ] = None,
    gpu_free: Annotated[
        str | None,
        _option("--gpu-free", metavar="SIZE", help="Free on a shared card before this run, as in '19 GiB'; or now."),
    ] = None,
    pytorch_version: Annotated[
        str | None, _option("--pytorch-version", metavar="X.Y", help="Whose CUDA context is taken, as in 2.1.")
    ] = None,
    cuda_module_loading: Annotated[
        str | None, _option("--cuda-module-loading", metavar="HOW", help="Kernels of the context: lazy, eager.")
    ] = None,
    allocator: Annotated[
        str | None,
        _option(
            "--allocator",
            metavar="SETTINGS",
            help="estimate; simulate; or simulate with what PYTORCH_ALLOC_CONF has: expandable_segments:True.",
        ),
    ] = None,
    reserve: Annotated[
        str | None, _option("--reserve", metavar="SIZE", help="Held back for others, as in '1 GiB'.")
    ] = None,
    data: Annotated[
        str | None,
        _option("--gpus", "--data", metavar="N", help="Data-parallel ranks, beside --tensor, --pipeline, --context."),
    ] = None,
    base_batch_size: Annotated[
        str | None,
        _option("--base-batch-size", metavar="N", help="Batch that --base-lr was found for: gives batch advice."),
    ] = None,
    base_learning_rate: Annotated[
        str | None,
        _option("--base-lr", "--base-learning-rate", metavar="RATE", help="Learning rate at --base-batch-size."),
    ] = None,
    sharding: Annotated[
        str | None,
        _option("--sharding", metavar="NAME", help="none, ddp, zero1, zero2, zero3, fsdp, fsdp-grad-op, hsdp:N."),
    ] = None,
    no_sync: Annotated[
        bool | None, typer.Option("--no-sync/--sync", help="fsdp: whole gradients until the last micro-step.")
    ] = None,
    fsdp_version: Annotated[
        str | None, _option("--fsdp-version", metavar="N", help="1: FullyShardedDataParallel, 2: fully_shard.")
    ] = None,
    reduce_dtype: Annotated[
        str | None,
        _option("--reduce-dtype", metavar="NAME", help="fsdp: fp32, bf16 or fp16 of gradients while summed."),
    ] = None,
    gradient_as_bucket_view: Annotated[
        bool | None,
        typer.Option(
            "--gradient-as-bucket-view/--no-gradient-as-bucket-view", help="ddp: gradients are views of its buckets."
        ),
    ] = None,
    reduce_bucket_size: Annotated[
        str | None,
        _option("--reduce-bucket-size", metavar="N", help="ZeRO: gradients averaged at a time, in elements."),
    ] = None,
    allgather_bucket_size: Annotated[
        str | None,
        _option("--allgather-bucket-size", metavar="N", help="ZeRO: read, and of no effect on what is allocated."),
    ] = None,
    overlap_comm: Annotated[
        bool | None,
        typer.Option("--overlap-comm/--no-overlap-comm", help="ZeRO: a second bucket is filled meanwhile."),
    ] = None,
    contiguous_gradients: Annotated[
        bool | None,
        typer.Option("--contiguous-gradients/--no-contiguous-gradients", help="ZeRO: gradients go through a bucket."),
    ] = None,
    stage3_prefetch_bucket_size: Annotated[
        str | None,
        _option("--stage3-prefetch-bucket-size", metavar="N", help="ZeRO-3: elements gathered ahead of their use."),
    ] = None,
    stage3_param_persistence_threshold: Annotated[
        str | None,
        _option("--stage3-param-persistence-threshold", metavar="N", help="ZeRO-3: smaller parameters stay whole."),
    ] = None,
    stage3_max_live_parameters: Annotated[
        str | None,
        _option("--stage3-max-live-parameters", metavar="N", help="ZeRO-3: elements that are whole at a time."),
    ] = None,
    sub_group_size: Annotated[
        str | None,
        _option("--sub-group-size", metavar="N", help="ZeRO-3: elements that are stepped at a time."),
    ] = None,
    offload_optimizer_device: Annotated[
        str | None,
        _option("--offload-optimizer-device", metavar="NAME", help="ZeRO-3: cpu, or nvme for an offloaded optimizer."),
    ] = None,
    offload_optimizer_buffer_count: Annotated[
        str | None,
        _option("--offload-optimizer-buffer-count", metavar="N", help="ZeRO-3: buffers on the way to NVMe."),
    ] = None,
    offload_parameters_device: Annotated[
        str | None,
        _option("--offload-parameters-device", metavar="NAME", help="ZeRO-3: cpu, or nvme for offloaded parameters."),
    ] = None,
    offload_parameters_buffer_count: Annotated[
        str | None,
        _option("--offload-parameters-buffer-count", metavar="N", help="ZeRO-3: buffers for parameters from NVMe."),
    ] = None,
    offload_parameters_buffer_size: Annotated[
        str | None,
        _option("--offload-parameters-buffer-size", metavar="N", help="ZeRO-3: elements of each of these buffers."),
    ] = None,
    offload_parameters_max_in_cpu: Annotated[
        str | None,
        _option("--offload-parameters-max-in-cpu", metavar="N", help="ZeRO-3: elements that stay on the host."),
    ] = None,
    activation_model: Annotated[
        str | None, _option("--activation-model", metavar="NAME", help="Textbook: book, zero-paper, korthikanti.")
    ] = None,
    activation_bytes: Annotated[
        str | None,
        _option("--activation-bytes", metavar="SIZE", help="Textbook: a figure quoted in fp32, as in '65 GB'."),
    ] = None,
    checkpoint_factor: Annotated[
        str | None,
        _option("--checkpoint-factor", metavar="X", help="Textbook: what checkpointing divides activations by."),
    ] = None,
    trainable_parameters: Annotated[
        str | None,
        _option("--trainable-parameters", metavar="COUNT", help="Textbook: how many are trained, as in 2.8B."),
    ] = None,
    weight_dtype: Annotated[
        str | None,
        _option(
            "--weight-dtype", metavar="NAME", help="Of the weights: fp32, fp16, bf16; the textbook takes any type."
        ),
    ] = None,
    gradient_dtype: Annotated[
        str | None, _option("--gradient-dtype", metavar="NAME", help="Of the gradients; fp32 with mixed-*.")
    ] = None,
    master_dtype: Annotated[
        str | None, _option("--master-dtype", metavar="NAME", help="Of the master copy; none for no copy.")
    ] = None,
    optimizer_state_dtype: Annotated[
        str | None,
        _option("--optimizer-state-dtype", metavar="NAME", help="Of the optimizer's states; fp32 beside half weights."),
    ] = None,
    compute_dtype: Annotated[
        str | None,
        _option("--compute-dtype", metavar="NAME", help="Of matrix products: bf16 or fp16 with fp32 is amp-*."),
    ] = None,
    adapter: Annotated[
        str | None, _option("--adapter", metavar="KIND", help="lora, dora, ia3: small weights beside a frozen model.")
    ] = None,
    rank: Annotated[str | None, _option("--rank", metavar="N", help="Of the adapter's matrices.")] = None,
    targets: Annotated[
        str | None,
        _option("--targets", metavar="A,B", help="Linear layers with an adapter: q_proj,v_proj or all-linear."),
    ] = None,
    feedforward_targets: Annotated[
        str | None, _option("--feedforward-targets", metavar="A,B", help="ia3: targets whose input is scaled.")
    ] = None,
    modules_to_save: Annotated[
        str | None, _option("--modules-to-save", metavar="A,B", help="Modules of which a copy is trained in full.")
    ] = None,
    alpha: Annotated[
        str | None, _option("--alpha", metavar="X", help="The adapter's scale, which costs nothing.")
    ] = None,
    adapter_dropout: Annotated[
        str | None, _option("--adapter-dropout", metavar="P", help="Dropout before the adapter.")
    ] = None,
    adapter_dtype: Annotated[
        str | None, _option("--adapter-dtype", metavar="NAME", help="fp32, or the model's own: fp16, bf16.")
    ] = None,
    quantization: Annotated[
        str | None,
        _option("--quantization", metavar="NAME", help="Frozen weights in few bits: nf4, nf4-double, int8, gptq-int4."),
    ] = None,
    bitsandbytes: Annotated[
        str | None,
        _option("--bitsandbytes", metavar="VERSION", help="The release that multiplies quantized weights."),
    ] = None,
    frozen: Annotated[
        str | None,
        _option(
            "--frozen",
            metavar="A,B",
            help="Parts without gradients: embeddings, layers.0-11, attention, norms, head, ...",
        ),
    ] = None,
    offload: Annotated[
        str | None,
        _option("--offload", metavar="A,B", help="On the host: activations, optimizer, gradients, parameters."),
    ] = None,
    tensor: Annotated[
        str | None, _option("--tensor", metavar="N", help="Devices that share each matrix (tensor parallelism).")
    ] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel", help="With --tensor: norms and dropout share the sequence."
        ),
    ] = None,
    pipeline: Annotated[
        str | None, _option("--pipeline", metavar="N", help="Devices with blocks of their own (pipeline stages).")
    ] = None,
    schedule: Annotated[
        str | None, _option("--schedule", metavar="NAME", help="Of a pipeline: 1f1b, gpipe, interleaved:V.")
    ] = None,
    pipeline_split: Annotated[
        str | None,
        _option("--pipeline-split", metavar="HOW", help="What stages share evenly: blocks, embedding-and-head."),
    ] = None,
    context: Annotated[
        str | None, _option("--context", metavar="N", help="Devices that share each sequence (context parallelism).")
    ] = None,
    context_communication: Annotated[
        str | None,
        _option("--context-communication", metavar="HOW", help="With --context, of keys and values: ring, all-gather."),
    ] = None,
    expert: Annotated[
        str | None, _option("--expert", metavar="N", help="Data-parallel devices that share the experts.")
    ] = None,
    shards: Annotated[
        str | None, _option("--shards", metavar="N", help="Devices that share sharded states, where not all.")
    ] = None,
) -> None:
    """The template of the options; `with_job` gives them to a command."""


def with_job(command: Callable[..., None]) -> Callable[..., None]:
    """`command(given, ...)` as a command line: the options of a job, collected in `given`, then its own.

    `given` has every option by the name of its key; None is "left out". `job_of` makes the job of it.
    """
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    taken = {option.name for option in own}  # `explain --tensor` is a name, not a degree of parallelism
    every = list(inspect.signature(_job, eval_str=True).parameters.values())
    options = [option for option in every if option.name not in taken]

    def run(**words: Any) -> None:
        given = {option.name: None if option.name in taken else words.pop(option.name) for option in every}
        command(given, **words)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*options, *own)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def job_of(given: dict[str, Any], folders: Sequence[Path], required: Sequence[str] = ("model", "gpu")) -> Job:
    """The resolved job that the options describe, to be replayed: not one of the runtime textbook.

    Raises InputError with everything that is wrong.
    """
    from vramplan.job import build_job

    require(given, required)
    return build_job(as_job(given), profile_dirs=folders)


def any_job_of(given: dict[str, Any], folders: Sequence[Path], required: Sequence[str] = ("model", "gpu")) -> AnyJob:
    """The same for every runtime."""
    from vramplan.job import build_any_job

    require(given, required)
    return build_any_job(as_job(given), profile_dirs=folders)


def require(given: dict[str, Any], keys: Sequence[str]) -> None:
    """Raise InputError if options that a command needs are left out."""
    from vramplan.errors import InputError, Problem

    missing = [Problem("is missing", f"--{key}", REQUIRED[key]) for key in keys if given[key] is None]
    if missing:
        raise InputError(missing)


REQUIRED = {
    "model": "a profile name, a profile file or a config.json; `vramplan models` lists the names",
    "gpu": "a profile name, a profile file, a size as in '24 GiB', or local; `vramplan gpus` lists the names",
}
PARALLEL_KEYS = (
    "data",
    "tensor",
    "pipeline",
    "schedule",
    "pipeline_split",
    "context",
    "context_communication",
    "expert",
    "sequence_parallel",
    "sharding",
    "shards",
    "no_sync",
    "gradient_as_bucket_view",
    "fsdp_version",
    "reduce_dtype",
    "reduce_bucket_size",
    "allgather_bucket_size",
    "overlap_comm",
    "contiguous_gradients",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "sub_group_size",
    "offload_optimizer_device",
    "offload_optimizer_buffer_count",
    "offload_parameters_device",
    "offload_parameters_buffer_count",
    "offload_parameters_buffer_size",
    "offload_parameters_max_in_cpu",
    "devices_per_node",
)
ADAPTER_KEYS = {
    "adapter": "kind",
    "adapter_dropout": "dropout",
    "adapter_dtype": "dtype",
    **{key: key for key in ("rank", "targets", "feedforward_targets", "modules_to_save", "alpha")},
}
LISTS = ("frozen", "offload", "targets", "feedforward_targets", "modules_to_save")


def as_job(given: dict[str, Any]) -> dict[str, Any]:
    """Options as the keys of a job, nested where the job format nests."""
    job: dict[str, Any] = {}
    for key, value in given.items():
        if value is None or value == "null":  # null in the job format: as if it were left out
            continue
        if key in LISTS:
            value = [part.strip() for part in value.split(",") if part.strip()]
        if key in PARALLEL_KEYS:
            job.setdefault("parallel", {})[key] = value
        elif key in ADAPTER_KEYS:
            job.setdefault("adapter", {})[ADAPTER_KEYS[key]] = value
        else:
            job[key] = value
    return job
