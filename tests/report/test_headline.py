"""Every command that judges a job says of it, in its first lines, what `fit` says: the same words and figures."""

from __future__ import annotations

import pytest

from tests.cli.running import run

pytestmark = pytest.mark.contract

JOBS = (
    ("llama-3.2-1b", "8xh100", "--fsdp", "--micro-batch", "1", "--seq", "128"),
    ("llama-3.2-1b", "t4", "--qlora", "--micro-batch", "1", "--seq", "128"),
    ("gpt2", "2 GiB", "--micro-batch", "1", "--checkpointing", "none", "--seq", "128"),
)


@pytest.mark.parametrize("job", JOBS)
def test_the_run_and_its_memory_are_told_alike(job: tuple[str, ...]) -> None:
    title, memory = run("fit", *job).out.splitlines()[:2]
    several = () if "--fsdp" not in job else ("explain",)  # which has no answer where states are shared
    for command in {"explain", "timeline", "fit --details"}.difference(several):
        name, *more = command.split()
        first, second = run(name, *job, *more).out.splitlines()[:2]
        assert (first, second.strip()) == (title, memory.removeprefix("  memory  "))
    markdown = run("fit", *job, "--format", "markdown").out
    verdict, subject = title.split("  ", 1)
    assert f"## {verdict}: {subject.replace(' x ', ' × ')}" in markdown
    shown, _, rest = memory.removeprefix("  memory  ").partition(" per GPU, ")
    assert f"**{shown} per GPU**, {rest}." in markdown
