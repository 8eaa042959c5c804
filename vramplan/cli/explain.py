"""`vramplan explain`: the derivation behind the answer of `fit`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import Configs, EngineVersion, Format, From, IgnoreUnknown, JobOfFile, Print, Profiles, Quiet


@with_job
@done_by("vramplan.cli.runs.explain:explain")
def explain(
    given: dict[str, Any],
    job: JobOfFile = None,
    config: Configs = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    tensor: Annotated[
        str | None,
        typer.Option("--tensor", metavar="NAME", help="Follow one tensor from birth to death; a part may be enough."),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option("--block", metavar="N", help="The block to show, counted from 0; the one in the middle."),
    ] = None,
    time: Annotated[
        bool,
        typer.Option("--time", help="Where the time of a step goes: a roofline of its operators and of its blocks."),
    ] = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Derives the peak of a job: every operator of one block, what it saves and why, and all that is alive at the peak.

    The job is judged as `fit` does it, and the figures sum to its answer.

    \b
    Examples:
      vramplan explain --model gpt2-xl --gpu v100
      vramplan explain -m gpt2-xl -g v100 --checkpointing none --block 0
      vramplan explain -m gpt2-xl -g v100 --tensor block.17.attn.c_attn.addmm
      vramplan explain -m llama-3-8b -g h100 --tensor self_attn.q_proj.weight.grad
      vramplan explain -m gpt2-xl -g v100 --print peak.alive
      vramplan explain -m gpt2-xl -g v100 --time

    \b
    Exit codes: 0 answered, also for a job that does not fit; 2 bad input.
    """
