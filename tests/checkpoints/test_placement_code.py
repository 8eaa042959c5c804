"""The code that places checkpoints: that it is Python, and says the segments that are judged."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.draws import jobs
from tests.cli.running import ABLE, run
from vramplan.answers.fit import describe
from vramplan.answers.placement import placement_code, placements_of
from vramplan.job import build_job
from vramplan.planner.decision import decide
from vramplan.replay.models.capable import no_checkpointing
from vramplan.report.placement_code import python
from vramplan.results import CODE

pytestmark = pytest.mark.contract


def constants(text: str) -> dict[str, Any]:
    """What the module assigns at its top."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=20)
@given(jobs())
def test_the_code_says_the_segments_of_the_answer(raw: dict[str, Any]) -> None:
    job = build_job({**raw, "activation_checkpointing": "sqrt"})
    if no_checkpointing(job.model.family) is not None:
        return
    code = placement_code(job)
    said = constants(python(code))
    assert said["SEGMENTS"] == list(code.segments)
    assert sum(said["STACKS"].values()) == sum(job.model.stacks)
    assert said["OPTIONS"] == {"use_reentrant": job.checkpoint_reentrant}
    compile(python(code), "placement.py", "exec")


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=20)
@given(jobs(), st.sampled_from(["sqrt", "every:2", "full"]))
def test_what_is_recommended_as_code_is_written_as_the_note_says(raw: dict[str, Any], strategy: str) -> None:
    gpu = {"name": "a card", "memory": "9000 GiB", **ABLE}
    job = build_job({**raw, "gpu": gpu, "activation_checkpointing": strategy})
    result = describe(decide(job))
    notes = [one for one in result.warnings if f"--checkpointing {strategy} and --emit python" in one]
    assert bool(notes) == (result.recommended.checkpointing_by == CODE)
    if notes:
        code = placement_code(job)
        assert code.segments == result.checkpoints
        assert len(code.lists) == len(code.stacks)


def test_the_note_of_an_open_strategy_leads_to_the_code_of_the_answer() -> None:
    raw = {"model": "gpt2-xl", "gpu": "v100", "global_batch_size": 512}
    result = describe(decide(build_job(raw)))
    assert result.recommended.checkpointing_by == CODE
    pinned = build_job({**raw, "activation_checkpointing": result.recommended.activation_checkpointing})
    assert placement_code(pinned).segments == result.checkpoints


def test_the_code_does_not_depend_on_what_is_trained() -> None:
    raw = {"model": "llama-3.2-1b", "gpu": "a100-80gb", "micro_batch_size": 1, "activation_checkpointing": "sqrt"}
    assert placement_code(build_job({**raw, "adapter": {"kind": "lora"}})) == placement_code(build_job(raw))


def test_without_a_strategy_the_optimal_placement_is_written() -> None:
    job = build_job({"model": "gpt2", "gpu": "t4", "micro_batch_size": 16, "gradient_accumulation_steps": 1})
    rows = {row.name: row.checkpoints for row in placements_of(job).strategies}
    assert placement_code(job).segments == rows["optimal"]


def test_the_command_writes_code_and_nothing_else() -> None:
    command = ("checkpoints", "-m", "gpt2-xl", "-g", "v100", "--checkpointing", "sqrt", "--emit", "python")
    code, out, _ = run(*command)
    assert code == 0
    assert constants(out)["SEGMENTS"][:2] == [(0, 6), (7, 13)]
    assert run(*command, "--format", "json")[0] == 2
    assert run(*command[:-1], "bash")[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-m", "gpt2", "--checkpointing", "none"), "none stores every block"),
        (("-m", "gpt2", "--checkpointing", "selective"), "selective is not made of whole blocks"),
        (("-m", "gpt2", "--checkpointing", "selective-op"), "selective-op is not made of whole blocks"),
        (("-m", "gpt2", "--micro-batch", "1"), "optimal stores every block"),
        (("-m", "gpt2", "--micro-batch", "1", "--budget", "1 GiB"), "no placement is within 1073741824 bytes"),
        (("-m", "resnet-50"), "resnet-50 has nothing to place"),
    ],
)
def test_what_is_no_placement_of_blocks_is_refused(words: tuple[str, ...], said: str) -> None:
    code, _, err = run("checkpoints", "-g", "a100-80gb", *words, "--emit", "python")
    assert code == 2
    assert said in err
