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
    typer.Option(
        "--print", metavar="KEY", help="Print values of the JSON answer, one a line, e.g. verdict,peak.device_bytes."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; report through the exit code.")]
Strict = Annotated[bool, typer.Option("--strict", help="A tight verdict fails (exit 4).")]
Max = Annotated[
    str | None,
    typer.Option(
        "--max",
        metavar="WHAT",
        help="The largest that fits, exactly: sequence, micro-batch, rank, or layers of the model.",
    ),
]
Remedies = Annotated[
    bool, typer.Option("--remedies", help="Say of each job that is tight or does not fit what would make it fit.")
]
AllStages = Annotated[bool, typer.Option("--all-stages", help="List every stage of a pipeline, not the fullest alone.")]
Details = Annotated[
    bool, typer.Option("--details", help="Print every table and every assumption, not the short answer.")
]
Profiles = Annotated[
    list[str] | None,
    typer.Option("--profiles", metavar="DIR", help="Folder with gpus/ and models/ that adds to the shipped ones."),
]
Jobs = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="NAME", help="Only this job; * and ? are wildcards. Repeatable."),
]
JobOfFile = Annotated[
    str | None,
    typer.Option("--job", metavar="FILE[#NAME]", help="Take a job of a job file; other options replace its keys."),
]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="FILE", help="A file of a training program; it may stand without --config. Repeatable."
    ),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="PROGRAM", help="The program that the file is for; without it, its keys say so."),
]
EngineVersion = Annotated[
    str | None,
    typer.Option("--engine-version", metavar="VERSION", help="The release of the program whose defaults hold."),
]
IgnoreUnknown = Annotated[
    bool, typer.Option("--ignore-unknown", help="Go on where settings are not understood; they are listed.")
]
Emit = Annotated[
    str | None,
    typer.Option(
        "--emit",
        metavar="PROGRAM",
        help="Print the plan as the file of a training program, with its launch command: trl, axolotl, torchtune, ...",
    ),
]
EmitTo = Annotated[
    str | None, typer.Option("--emit-to", metavar="FOLDER", help="Write all files of --emit into a folder.")
]
Force = Annotated[bool, typer.Option("--force", help="Write over files that are in the folder.")]
Allocator = Annotated[
    str,
    typer.Option("--allocator", metavar="SETTINGS", help="simulate, estimate, or what PYTORCH_ALLOC_CONF has."),
]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...", help="Job files in YAML or JSON, or files of training programs; - is standard input."
    ),
]
File = Annotated[str, typer.Argument(metavar="FILE", help="A job file in YAML or JSON; - is standard input.")]
Svg = Annotated[
    str | None,
    typer.Option("--svg", metavar="FILE", help="Write memory against rate as a picture, over what is there."),
]
