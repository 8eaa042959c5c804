"""A session that has answered before answers as a fresh one, and a gate's figures are those of the whole answer."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.fit import answer
from vramplan.answers.session import Session, figures_of
from vramplan.job import build_any_job
from vramplan.planner.decision import IN_DOUBT
from vramplan.planner.replays import Replays
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay

JOBS: tuple[dict[str, Any], ...] = (
    {"model": "gpt2", "gpu": "v100"},
    {"model": "gpt2", "gpu": "t4", "micro_batch_size": 4},
    {"model": "gpt2", "gpu": "t4", "micro_batch_size": 64},
    {"model": "gpt2", "gpu": "t4", "micro_batch_size": 64, "activation_checkpointing": "none"},
    {"model": "gpt2", "gpu": "v100", "activation_checkpointing": "optimal", "micro_batch_size": 32},
    {"model": "gpt2", "gpu": "t4", "allocator": "simulate", "micro_batch_size": 8},
    {"model": "gpt2", "gpu": "t4", "gradient_accumulation_steps": 4},
    {"model": "bert-base-uncased", "gpu": "t4", "activation_checkpointing": "sqrt"},
    {"model": "llama-3.2-1b", "gpu": "t4", "precision": "amp-fp16"},
    {"model": "gpt2-xl", "gpu": "t4", "runtime": "textbook"},
)


@pytest.fixture(scope="module")
def warm() -> Session:
    """A session that has answered every job, in another order and with few replays kept."""
    session = Session(most_records=5)
    for keys in reversed(JOBS):
        session.answer(build_any_job(keys))
    return session


@pytest.mark.sweep(12)
@pytest.mark.parametrize("keys", JOBS, ids=str)
def test_a_warm_session_answers_as_a_fresh_one(keys: dict[str, Any], warm: Session) -> None:
    job = build_any_job(keys)
    assert warm.answer(job) == Session().answer(job) == answer(job, closer_from=IN_DOUBT)
    assert warm.compared(job) == Session().compared(job)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("keys", JOBS, ids=str)
def test_the_figures_of_a_gate_are_those_of_the_whole_answer(keys: dict[str, Any], warm: Session) -> None:
    job = build_any_job(keys)
    assert warm.figures(job) == Session().figures(job) == figures_of(answer(job, closer_from=IN_DOUBT))


def test_what_a_session_keeps_is_bounded(warm: Session) -> None:
    assert 0 < len(warm.replays) <= 5


def test_replays_of_what_turned_out_to_be_of_no_use_go_first() -> None:
    kept, useless, later = (build_any_job({**JOBS[1], "sequence_length": length}) for length in (64, 128, 256))
    replays = Replays(most_records=2)
    setups = [setup_of(job, "none", accumulates=False) for job in (kept, useless, later)]
    first = replays.record(setups[0], 2)
    replays.begin()
    replays.record(setups[1], 2)
    replays.let_go_first()
    replays.record(setups[2], 2)
    assert len(replays) == 2
    assert replays.record(setups[0], 2) is first


def test_jobs_that_differ_in_their_gpu_share_their_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    def counted(*arguments: Any, **options: Any) -> Any:
        played.append(arguments)
        return replay(*arguments, **options)

    monkeypatch.setattr("vramplan.planner.replays.replay", counted)
    session = Session()
    keys = {
        "model": "gpt2",
        "precision": "amp-fp16",
        "attention": "efficient",
        "micro_batch_size": 4,
        "activation_checkpointing": "none",
    }
    for gpu in ("v100", "t4", "a100-40gb"):
        session.figures(build_any_job({**keys, "gpu": gpu}))
    assert len(played) == 1
