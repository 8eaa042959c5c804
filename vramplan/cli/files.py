"""`vramplan check` and `vramplan validate`: all jobs of a file."""

from __future__ import annotations

from typing import Annotated

import typer

from vramplan.cli import done_by
from vramplan.cli.options import (
    Allocator,
    EngineVersion,
    File,
    Files,
    Format,
    From,
    GateFormat,
    IgnoreUnknown,
    Jobs,
    Print,
    Profiles,
    Quiet,
    Remedies,
    Strict,
)


@done_by("vramplan.cli.runs.files:check")
def check(
    files: Files,
    jobs: Jobs = None,
    strict: Strict = False,
    remedies: Remedies = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="FILE", help="Fail where a peak has grown over this answer of check --format json."
        ),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance", metavar="SHARE", help="How much a peak may grow, 1% by default; or a size as '100 MiB'."
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="GPU", help="Of files of training programs, which name no GPU.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=1, help="Of files of training programs: how many.")
    ] = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    profiles: Profiles = None,
    output_format: GateFormat = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """A gate for CI: every job of the files must have the verdict it expects. Fails closed.

    A tight job passes while its estimate is within the usable memory; --strict fails it too.

    \b
    Examples:
      vramplan check training.yaml --strict
      vramplan check training.yaml measured.yaml
      vramplan check training.yaml --job 'Llama*' --format json
      vramplan check training.yaml --remedies
      vramplan check axolotl.yaml --gpu rtx-4090
      vramplan check training.yaml --format junit > memory.xml
      vramplan check training.yaml --format json > baseline.json
      vramplan check training.yaml --baseline baseline.json --tolerance 2%

    \b
    Exit codes: 0 all passed, 2 bad input or a job that cannot be computed,
    3 a gate failed, 4 tight (with --strict).
    """


@done_by("vramplan.cli.runs.files:validate")
def validate(
    file: File,
    jobs: Jobs = None,
    profiles: Profiles = None,
    allocator: Allocator = "simulate",
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Compare predictions with the measured cases of FILE, like with like.

    What the allocator reserves is simulated where a case says nothing of it;
    `fit` simulates short iterations then, and others with --allocator simulate.

    \b
    Examples:
      vramplan validate measured.yaml
      vramplan validate measured.yaml --print summary.per_metric.allocated.median

    \b
    Exit codes: 0 all were computed, 2 bad input or a case that cannot be
    computed.
    """
