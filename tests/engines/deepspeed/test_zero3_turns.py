"""CLOSED FORM. Blocks that are alike under stage 3 are played once, with the peaks of the replay of every block."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.engines.deepspeed.test_zero import partitioned, partly_trained, zero
from tests.job.configured import job_of
from vramplan.engines.deepspeed import zero3_gathered, zero3_plan
from vramplan.engines.deepspeed.zero3_turning import Turning, TurningPlan
from vramplan.planner.setups import setup_of
from vramplan.replay.models.modules import Segment
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form

DRAWS = settings(max_examples=40, deadline=None)
LARGE = {"parallel": {"data": 8, "sharding": "zero3"}, "micro_batch_size": 1}


@st.composite
def deep(draw: st.DrawFn, setups: st.SearchStrategy[Setup]) -> Setup:
    """An iteration of many blocks, each, several or none of them in a checkpoint, with buckets of any size."""
    setup = draw(setups)
    assume(len(setup.model.stacks) == 1 and setup.sharding is not None and setup.sharding.zero is not None)
    assert setup.sharding is not None
    assert setup.sharding.zero is not None
    layers = draw(st.integers(5, 26))
    zero = setup.sharding.zero._replace(
        reduce_bucket_size=draw(st.sampled_from([3_000, 20_000, 100_000, 10**6, 10**7])),
        prefetch_bucket_size=draw(st.sampled_from([0, 3_000, 30_000, 10**6])),
        max_live_parameters=draw(st.sampled_from([10**4, 10**5, 10**9])),
    )
    return setup._replace(
        model=setup.model.with_layers(layers)._replace(key_value_sharing_layers=0),  # which may be more than there are
        segments=draw(divided(layers)) if any(one.checkpointed for one in setup.segments) else (stored(layers),),
        sharding=setup.sharding._replace(zero=zero),
    )


@st.composite
def divided(draw: st.DrawFn, layers: int) -> tuple[Segment, ...]:
    """Checkpoints of one size, and what is left stored or in another one."""
    size = draw(st.integers(1, 4))
    times = draw(st.integers(1, layers // size))
    rest = layers - times * size
    last = (stored(rest) if draw(st.booleans()) else Segment(1, rest, True),) if rest else ()
    return (Segment(times, size, True), *last)


def stored(blocks: int) -> Segment:
    return Segment(1, blocks, False)


def holds(setup: Setup, batch: int, reuse: int) -> None:
    """`reuse`: what is needed again within so many elements stays, which in a small model is everything."""
    with mock.patch.object(zero3_gathered, "MAX_REUSE_DISTANCE", reuse):
        zero3_plan.plan_of.cache_clear()
        short, literal = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
        zero3_plan.plan_of.cache_clear()
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.saved_bytes(batch) == literal.saved_bytes(batch)
    assert short.end_bytes(batch) == short.static_bytes(batch)
    assert short.host_states == literal.host_states


REUSE = st.sampled_from([0, 1_000, 30_000, 10**6])


@pytest.mark.sweep(8)
@DRAWS
@given(deep(partitioned(("zero3",))), st.sampled_from([1, 2, 3]), REUSE)
def test_few_blocks_have_the_peaks_of_all(setup: Setup, batch: int, reuse: int) -> None:
    holds(setup, batch, reuse)


@pytest.mark.sweep(8)
@DRAWS
@given(deep(partly_trained(("zero3",))), st.sampled_from([1, 2, 3]), REUSE)
def test_so_they_have_where_less_is_trained(setup: Setup, batch: int, reuse: int) -> None:
    holds(setup, batch, reuse)


def test_padded_parameters_do_not_let_blocks_be_alike_that_others_would() -> None:
    """Found at random: buckets of one size are of several once each of their gradients is padded."""
    shape = {"name": "r", "family": "gpt_neo", "layers": 5, "hidden_size": 64, "attention_heads": 1}
    sizes = {"intermediate_size": 192, "vocabulary_size": 64, "max_positions": 1024}
    job = job_of({**shape, **sizes}, precision="mixed-fp16", **LARGE)
    sharding = zero("zero3", 3, bucket=3000, threshold=0, ahead=30_000)
    assert sharding.zero is not None
    setup = setup_of(job, "none", accumulates=False)._replace(
        segments=(stored(5),), sharding=sharding._replace(zero=sharding.zero._replace(max_live_parameters=10_000))
    )
    holds(setup, 1, 10**6)


def test_what_waits_to_go_is_no_parameter_that_nobody_lets_go() -> None:
    """Found at random: a parameter that is not used again goes when the next module begins, in the block below."""
    shape = {"name": "r", "family": "roberta", "layers": 17, "hidden_size": 80, "attention_heads": 4}
    sizes = {"intermediate_size": 240, "vocabulary_size": 1000, "max_positions": 1024}
    job = job_of({**shape, **sizes}, precision="mixed-fp16", **LARGE)
    sharding = zero("zero3", 1, bucket=10**7, threshold=500, ahead=30_000)
    assert sharding.zero is not None
    setup = setup_of(job, "none", accumulates=False)._replace(
        segments=(Segment(8, 2, True), stored(1)),
        sharding=sharding._replace(zero=sharding.zero._replace(max_live_parameters=10_000)),
        offload=("optimizer", "parameters"),
    )
    holds(setup, 2, 1_000)


def test_what_is_handed_on_beyond_the_last_block_is_counted_once() -> None:
    """Found at random: what is gathered two blocks ahead outlives the blocks, which has to be played."""
    shape = {"name": "r", "family": "roberta", "layers": 10, "hidden_size": 80, "attention_heads": 4}
    sizes = {"intermediate_size": 320, "vocabulary_size": 64, "max_positions": 1024, "task": "cls"}
    job = job_of({**shape, **sizes}, precision="mixed-fp16", **{**LARGE, "sequence_length": 20})
    sharding = zero("zero3", 1, bucket=3_000, threshold=0, ahead=10**6)
    assert sharding.zero is not None
    setup = setup_of(job, "none", accumulates=False)._replace(
        segments=(Segment(10, 1, True),),
        sharding=sharding._replace(zero=sharding.zero._replace(max_live_parameters=10**5)),
        offload=("optimizer", "parameters"),
    )
    holds(setup, 3, 10**6)


def of_70b(strategy: str, **keys: object) -> Setup:
    job = job_of("llama-3-70b", **{**LARGE, "activation_checkpointing": strategy, **keys})
    return setup_of(job, strategy, accumulates=False)


def events(record: Record) -> int:
    return len(record.events)


@pytest.mark.parametrize(("strategy", "times"), [("none", 4), ("full", 4), ("every:8", 1.4)])
def test_of_a_large_model_few_are_played(strategy: str, times: float) -> None:
    """`times`: so many times fewer births and deaths; of ten checkpoints some stand at the ends."""
    setup = of_70b(strategy)
    short, literal = replay(setup, batch=1), replay(setup, batch=1, direct=True)
    assert short.peaks(1) == literal.peaks(1)
    assert times * events(short) < events(literal)


@pytest.mark.parametrize(
    ("model", "strategy"), [("gpt2-xl", "none"), ("gpt2-xl", "full"), ("bert-large-uncased", "none")]
)
def test_blocks_that_gather_further_and_further_ahead_are_alike_too(model: str, strategy: str) -> None:
    """Modules that are more than the parameters of a block gather one each, so that no two blocks begin alike."""
    keys = {"sequence_length": 512, "activation_checkpointing": strategy, **LARGE}
    setup = setup_of(job_of(model, **keys), strategy, accumulates=False)
    short, literal = replay(setup, batch=1), replay(setup, batch=1, direct=True)
    assert short.peaks(1) == literal.peaks(1)
    assert short.components(1, *short.worst(1)) == literal.components(1, *literal.worst(1))
    assert short.end_bytes(1) == short.static_bytes(1)
    assert 2.9 * events(short) < events(literal)


def test_blocks_whose_experts_are_one_leaf_are_alike_too() -> None:
    job = job_of("mixtral-8x7b", **{**LARGE, "activation_checkpointing": "full"})
    setup = setup_of(job, "full", accumulates=False)
    short, literal = replay(setup, batch=1), replay(setup, batch=1, unrolled=True)
    assert 5 * events(short) < events(literal)
    assert short.peaks(1) == literal.peaks(1)


def test_what_a_compiled_step_makes_late_stands_for_nothing_else() -> None:
    keys = {"sequence_length": 512, "compile": True, **LARGE}
    setup = setup_of(job_of("gpt2-xl", **keys), "none", accumulates=False)
    short, every = replay(setup, batch=1), replay(setup, batch=1, unrolled=True)
    assert short.peaks(1) == every.peaks(1)


def test_gradients_of_adapters_wait_over_many_blocks() -> None:
    setup = of_70b("full", adapter={"kind": "lora", "rank": 16, "targets": ["all-linear"]})
    short, literal = replay(setup, batch=1), replay(setup, batch=1, direct=True)
    assert short.peaks(1) == literal.peaks(1)
    assert 2 * events(short) < events(literal)


def test_what_turns_out_not_to_be_alike_is_played() -> None:
    """A plan that an iteration does not keep to: fewer blocks stand for others then, and the peaks are the same."""
    setup = of_70b("full")
    gave_up: list[Any] = []
    narrow, go_on = TurningPlan.narrow, Turning._go_on

    def counted(plan: TurningPlan) -> None:
        gave_up.append(plan.turns)
        narrow(plan)

    def doubtful(walk: Turning, *given: Any) -> None:
        if not gave_up:
            raise walk._not_alike()
        go_on(walk, *given)

    zero3_plan.plan_of.cache_clear()
    with mock.patch.object(TurningPlan, "narrow", counted), mock.patch.object(Turning, "_go_on", doubtful):
        short = replay(setup, batch=1)
        literal = replay(setup, batch=1, direct=True)
    zero3_plan.plan_of.cache_clear()
    assert short.peaks(1) == literal.peaks(1)
    assert gave_up
