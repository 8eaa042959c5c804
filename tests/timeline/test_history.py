"""CLOSED FORM: the history of the quick replay is that of the replay of every block, sample by sample."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.draws import UNREAD_LAST, setups
from tests.engine.examples import ONE_BY_ONE, PACKED_TURNS, TILES, setup
from vramplan.planner.replays import Replays
from vramplan.replay.history import history
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.results.timeline import History, Sample

pytestmark = pytest.mark.closed_form

BATCHES = st.sampled_from([1, 2, 3, 7, 16])
DRAWS = settings(max_examples=18, deadline=None)


def quick(setup: Setup, batch: int) -> Record:
    return Replays().shown(setup, batch)


def literal(setup: Setup, batch: int) -> History:
    return history(replay(setup, batch=batch, direct=True), batch)


def of_phase(made: History, name: str) -> list[tuple[Sample, dict[str, int]]]:
    """Samples with their components by name; which components there are may differ in order only."""
    names = [part.name for part in made.components]
    return [
        (sample._replace(components=()), dict(zip(names, sample.components, strict=True)))
        for sample in made.samples
        if sample.phase == name
    ]


@pytest.mark.sweep(4)
@DRAWS
@given(setups(), BATCHES)
@example(setup(ONE_BY_ONE, sequence_length=5, attention="efficient", image_size=16), 2)
@example(setup(ONE_BY_ONE, sequence_length=5, attention="efficient", image_size=16), 7)
@example(PACKED_TURNS, 3)
def test_it_is_the_history_of_the_replay_of_every_block(setup: Setup, batch: int) -> None:
    """Block, operator, level and components of every sample, to the byte; and what each phase begins and ends with."""
    short, whole = history(quick(setup, batch), batch), literal(setup, batch)
    for name in ("forward", "backward", "step"):
        assert of_phase(short, name) == of_phase(whole, name)
    assert short.phases == whole.phases
    assert {*short.components} == {*whole.components}
    assert short.peak_sample == whole.peak_sample


@pytest.mark.sweep(4)
@DRAWS
@given(setups(), BATCHES)
def test_its_highest_samples_are_the_peaks(setup: Setup, batch: int) -> None:
    record = quick(setup, batch)
    made = history(record, batch)
    assert {phase.name: phase.peak_bytes for phase in made.phases} == record.peaks(batch)
    phase, moment = record.worst(batch)
    peak = made.samples[made.peak_sample]
    assert peak.allocated_bytes == record.peak_bytes(batch) == max(sample.allocated_bytes for sample in made.samples)
    assert (peak.phase, peak.operator) == (phase, record.operator_at(moment))
    assert {part.name: part.bytes for part in made.components if part.bytes} == record.components(batch, phase, moment)


@pytest.mark.sweep(2)
@DRAWS
@given(setups(), BATCHES)
def test_it_ends_where_it_began(setup: Setup, batch: int) -> None:
    record = quick(setup, batch)
    made = history(record, batch)
    forward, backward, step = made.phases
    assert forward.start_bytes == step.end_bytes == record.static_bytes(batch)
    assert made.samples[0].allocated_bytes == made.samples[-1].allocated_bytes == record.static_bytes(batch)
    assert forward.end_bytes - forward.start_bytes == record.saved_bytes(batch)
    assert (backward.start_bytes, step.start_bytes) == (forward.end_bytes, backward.end_bytes)


@pytest.mark.sweep(2)
@DRAWS
@given(setups(), BATCHES)
@example(setup(TILES, sequence_length=1, image_size=16), 1)
def test_every_block_is_there_and_the_phases_divide_the_samples(setup: Setup, batch: int) -> None:
    made = history(quick(setup, batch), batch)
    blocks = set(range(setup.model.numbered_blocks))
    vision = setup.model.vision_layers if setup.model.family in UNREAD_LAST else None
    unread = set() if vision is None else {vision - 1}  # LLaVA reads what the last block but one returns
    for phase in made.phases:
        part = made.samples[phase.first_sample : phase.first_sample + phase.samples]
        assert {sample.phase for sample in part} == {phase.name}
        assert max(sample.allocated_bytes for sample in part) == phase.peak_bytes
        if phase.name != "step":
            seen = {sample.block for sample in part}
            assert seen <= blocks | {None}
            assert blocks | {None} <= seen | (unread if phase.name == "backward" else set())
    assert sum(phase.samples for phase in made.phases) == len(made.samples)


@pytest.mark.sweep(2)
@DRAWS
@given(setups(), BATCHES)
def test_a_sample_is_one_operator_in_one_block(setup: Setup, batch: int) -> None:
    made = history(quick(setup, batch), batch)
    for sample in made.samples:
        assert sum(sample.components) == sample.allocated_bytes
        assert all(0 <= size <= part.most_bytes for size, part in zip(sample.components, made.components, strict=True))
    for one, following in pairwise(made.samples):
        assert one[:3] != following[:3]
