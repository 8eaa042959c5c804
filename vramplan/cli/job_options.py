"""The options that describe a job: the keys of the job format with dashes, shared by every command that takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vramplan.spec import Job


def _option(*names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help)


def _later(*names: str, metavar: str = "VALUE") -> Any:
    """Words of the job format that are known and not modelled yet: accepted, and answered with an error."""
    return typer.Option(*names, metavar=metavar, hidden=True)


def _job(
    model: Annotated[
        str | None, _option("--model", "-m", metavar="MODEL", help="Profile name, profile file or config.json.")
    ] = None,
    gpu: Annotated[
        str | None, _option("--gpu", "-g", metavar="GPU", help="Profile name or file, or a size as in '24 GiB'.")
    ] = None,
    sequence_length: Annotated[
        str | None, _option("--seq", "--sequence-length", metavar="N", help="Tokens per sequence.")
    ] = None,
    micro_batch_size: Annotated[
        str | None,
        _option(
            "--micro-batch",
            "--micro-batch-size",
            metavar="N",
            help="Sequences per rank and forward pass; recommended if left out.",
        ),
    ] = None,
    global_batch_size: Annotated[
        str | None,
        _option(
            "--global-batch", "--global-batch-size", metavar="N", help="Sequences per optimizer step over all ranks."
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
            help="auto, fp32, amp-fp16, amp-bf16, mixed-fp16, mixed-bf16, pure-fp16, pure-bf16.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None, _option("--optimizer", metavar="NAME", help="adamw, adam, sgd, sgd-momentum, rmsprop, adafactor.")
    ] = None,
    optimizer_implementation: Annotated[
        str | None, _option("--optimizer-implementation", metavar="NAME", help="fused, foreach, for-loop.")
    ] = None,
    activation_checkpointing: Annotated[
        str | None,
        _option(
            "--checkpointing",
            "--activation-checkpointing",
            metavar="NAME",
            help="none, full, sqrt, every:K, layers:[[0,6],[7,13]].",
        ),
    ] = None,
    attention: Annotated[
        str | None, _option("--attention", metavar="NAME", help="sdpa, flash, efficient, eager.")
    ] = None,
    dropout: Annotated[
        str | None, _option("--dropout", metavar="P", help="Overrides every dropout of the model.")
    ] = None,
    hold_outputs: Annotated[
        bool | None,
        typer.Option("--hold-outputs/--no-hold-outputs", help="The loop keeps the logits through backward."),
    ] = None,
    runtime: Annotated[str | None, _option("--runtime", metavar="NAME", help="transformers, pytorch.")] = None,
    reserve: Annotated[
        str | None, _option("--reserve", metavar="SIZE", help="Held back for others, as in '1 GiB'.")
    ] = None,
    data: Annotated[
        str | None, _option("--gpus", "--data", metavar="N", help="Data-parallel ranks (replicas).")
    ] = None,
    sharding: Annotated[str | None, _option("--sharding", metavar="NAME", help="none.")] = None,
    loss: Annotated[str | None, _later("--loss")] = None,
    compile: Annotated[bool | None, typer.Option("--compile/--no-compile", hidden=True)] = None,
    image_size: Annotated[str | None, _later("--image-size")] = None,
    optimizer_in_backward: Annotated[
        bool | None, typer.Option("--optimizer-in-backward/--no-optimizer-in-backward", hidden=True)
    ] = None,
    every_second_matmul: Annotated[
        bool | None, typer.Option("--every-second-matmul/--no-every-second-matmul", hidden=True)
    ] = None,
    adapter: Annotated[str | None, _later("--adapter")] = None,
    rank: Annotated[str | None, _later("--rank")] = None,
    targets: Annotated[str | None, _later("--targets")] = None,
    modules_to_save: Annotated[str | None, _later("--modules-to-save")] = None,
    quantization: Annotated[str | None, _later("--quantization")] = None,
    frozen: Annotated[str | None, _later("--frozen")] = None,
    offload: Annotated[str | None, _later("--offload")] = None,
    tensor: Annotated[str | None, _later("--tensor")] = None,
    pipeline: Annotated[str | None, _later("--pipeline")] = None,
    schedule: Annotated[str | None, _later("--schedule")] = None,
    context: Annotated[str | None, _later("--context")] = None,
    expert: Annotated[str | None, _later("--expert")] = None,
    sequence_parallel: Annotated[
        bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel", hidden=True)
    ] = None,
    shards: Annotated[str | None, _later("--shards")] = None,
    weight_dtype: Annotated[str | None, _later("--weight-dtype")] = None,
    gradient_dtype: Annotated[str | None, _later("--gradient-dtype")] = None,
    master_dtype: Annotated[str | None, _later("--master-dtype")] = None,
    optimizer_state_dtype: Annotated[str | None, _later("--optimizer-state-dtype")] = None,
    compute_dtype: Annotated[str | None, _later("--compute-dtype")] = None,
    activation_model: Annotated[str | None, _later("--activation-model")] = None,
    activation_bytes: Annotated[str | None, _later("--activation-bytes")] = None,
    checkpoint_factor: Annotated[str | None, _later("--checkpoint-factor")] = None,
) -> None:
    """The template of the options; `with_job` gives them to a command."""


def with_job(command: Callable[..., None]) -> Callable[..., None]:
    """`command(given, ...)` as a command line: the options of a job, collected in `given`, then its own.

    `given` has every option by the name of its key; None is "left out". `job_of` makes the job of it.
    """
    options = list(inspect.signature(_job, eval_str=True).parameters.values())
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    names = [option.name for option in options]

    def run(**words: Any) -> None:
        given = {name: words.pop(name) for name in names}
        command(given, **words)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*options, *own)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def job_of(given: dict[str, Any], folders: Sequence[Path], required: Sequence[str] = ("model", "gpu")) -> Job:
    """The resolved job that the options describe. Raises InputError with everything that is wrong."""
    from vramplan.errors import InputError, Problem
    from vramplan.job import build_job

    missing = [Problem("is missing", f"--{key}", REQUIRED[key]) for key in required if given[key] is None]
    if missing:
        raise InputError(missing)
    return build_job(as_job(given), profile_dirs=folders)


REQUIRED = {
    "model": "a profile name, a profile file or a config.json; `vramplan models` lists the names",
    "gpu": "a profile name, a profile file or a size as in '24 GiB'; `vramplan gpus` lists the names",
}
PARALLEL_KEYS = (
    "data",
    "tensor",
    "pipeline",
    "schedule",
    "context",
    "expert",
    "sequence_parallel",
    "sharding",
    "shards",
)
ADAPTER_KEYS = {"adapter": "kind", "rank": "rank", "targets": "targets", "modules_to_save": "modules_to_save"}
LISTS = ("frozen", "offload", "targets", "modules_to_save")


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
        elif key == "gpu" and is_size(value):
            job[key] = {"name": value, "memory": value}
        else:
            job[key] = value
    return job


def is_size(text: str) -> bool:
    """Whether a GPU is given as a bare size ("24 GiB"), not as a name ("4090", "v100")."""
    import re

    return re.fullmatch(r"\s*[\d.]+\s*([kKMGTP]i?B?|[kKMGTP]?B|\s[A-Za-z]+)\s*", text) is not None
