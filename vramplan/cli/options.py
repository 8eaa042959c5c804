"""Options that several commands share, so that a word means the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

Format = Annotated[
    str, typer.Option("--format", metavar="NAME", help="How to print the answer: text, json, yaml, csv, markdown.")
]
GateFormat = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="NAME",
        help="How to print the answer: text, json, yaml, csv, markdown, junit, or github for workflow annotations.",
    ),
]
Print = Annotated[
    str | None,
    typer.Option("--print", metavar="KEY", help="Print values of the JSON answer, one a line, e.g. verdict,peak.device_bytes."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; report through the exit code.")]
Strict = Annotated[bool, typer.Option("--strict", help="A tight verdict fails (exit 4).")]
AllStages = Annotated[bool, typer.Option("--all-stages", help="List every stage of a pipeline, not the fullest alone.")]
Profiles = Annotated[
    list[str] | None,
    typer.Option("--profiles", metavar="DIR", help="Folder with gpus/ and models/ that adds to the shipped ones."),
]
Jobs = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="NAME", help="Only this job; * and ? are wildcards. Repeatable."),
]
Allocator = Annotated[
    str,
    typer.Option("--allocator", metavar="SETTINGS", help="simulate, estimate, or what PYTORCH_ALLOC_CONF has."),
]
File = Annotated[str, typer.Argument(metavar="FILE", help="A job file in YAML or JSON; - is standard input.")]
