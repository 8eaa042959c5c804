"""`vramplan fit`: from a model and a GPU to a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vramplan.cli.options import Format, Print, Profiles, Quiet, Strict

RUN, BATCH, MEMORY, PARALLEL, OUTPUT = "Run", "Batch", "Memory", "Parallel", "Output"


def _option(*names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help)


def _later(*names: str, metavar: str = "VALUE") -> Any:
    """Words of the job format that are known and not modelled yet: accepted, and answered with an error."""
    return typer.Option(*names, metavar=metavar, hidden=True)


def fit(
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
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
    strict: Strict = False,
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
    """Says whether a training run fits, what fills the memory at the worst moment, and how to run it.

    What is left open (micro-batch, accumulation, checkpointing) is chosen for you; what is given is judged as given.

    \b
    Examples:
      vramplan fit --model gpt2-xl --gpu v100
      vramplan fit -m llama-3-8b -g h100 --seq 4096 --precision pure-bf16
      vramplan fit -m ./config.json -g '24 GiB' --micro-batch 4 --format json
      vramplan fit -m gpt2-xl -g v100 --print recommended.micro_batch_size

    \b
    Exit codes: 0 fits, 2 bad input, 3 does not fit, 4 tight (with --strict).
    """
    job = {name: value for name, value in locals().items() if name not in NOT_OF_THE_JOB}
    from vramplan.cli.output import emit, output
    from vramplan.exit_codes import code_of

    to = output(output_format, key, quiet)
    result = _answer(job, [Path(folder) for folder in profiles or ()])
    code = code_of(result.verdict, strict=strict)
    emit("fit", result, to, exit_code=code)
    raise typer.Exit(code)


NOT_OF_THE_JOB = frozenset({"profiles", "output_format", "key", "quiet", "strict"})


def _answer(given: dict[str, Any], folders: list[Path]) -> Any:
    from vramplan.answer import answer
    from vramplan.errors import InputError, Problem
    from vramplan.job import build_job

    missing = [Problem("is missing", f"--{key}", hint) for key, hint in REQUIRED.items() if given[key] is None]
    if missing:
        raise InputError(missing)
    job = build_job(as_job(given), profile_dirs=folders)

    def catalogue() -> Any:
        from vramplan.catalog.gpus import list_gpus

        try:
            return [profile.gpu() for profile in list_gpus(folders)]
        except InputError:  # a broken profile that the job does not name: `vramplan gpus` says what is wrong with it
            return []

    return answer(job, catalogue)


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
