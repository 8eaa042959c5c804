"""CLOSED FORM and invariants of iterations with several techniques at once."""

from __future__ import annotations

import gc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.draws import BEYOND
from tests.engine.examples import model
from tests.engine.examples import setup as plain
from tests.engine.trained_draws import trained_setups
from vramplan.replay.models.capable import head_losses
from vramplan.replay.models.modules import DPO, DPO_ADAPTER_OFF, DPO_PRECOMPUTED, Segment
from vramplan.replay.models.parts import holds_outputs
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.job import Adapter

pytestmark = pytest.mark.closed_form

BATCHES = st.sampled_from([1, 2, 3, 5])


@st.composite
def combined_setups(draw: st.DrawFn, *, preferences: bool = False) -> Setup:
    """Less than every weight is trained, and more."""
    setup = draw(
        trained_setups(adapted=preferences).filter(
            lambda one: (
                one.model.family in BEYOND
                and (not preferences or (one.model.task == "lm" and DPO in head_losses(one.model.family)))
            )
        )
    )
    reentrant = not holds_outputs(setup.model.family) and not any(one.selects for one in setup.segments)
    setup = setup._replace(checkpoint_reentrant=reentrant and draw(st.booleans()))
    takes_pairs = setup.model.task == "lm" and DPO in head_losses(setup.model.family) and setup.sequence_length > 1
    if takes_pairs and (preferences or draw(st.booleans())):
        references = [DPO, DPO_PRECOMPUTED] if setup.adapter is None else [DPO_ADAPTER_OFF, DPO_PRECOMPUTED]
        return setup._replace(
            loss=draw(st.sampled_from(references)), hold_outputs=False, dropout=0.0, grad_scaler=False
        )
    dora = setup.adapter is not None and setup.adapter.kind == "dora"
    return setup._replace(offload_activations=not dora and draw(st.booleans()))


HELD_BY_FUNCTIONS = plain(
    model("llama", layers=5),
    sequence_length=8,
    segments=(Segment(1, 5, True),),
    checkpoint_reentrant=True,
    adapter=Adapter(kind="lora", rank=1, targets=("q_proj",)),
    quantization="int8",
)
"""What bitsandbytes' function keeps of each block goes with the graph of the whole checkpoint."""


@pytest.mark.sweep(4)
@settings(max_examples=15, deadline=None)
@given(combined_setups(), BATCHES)
@example(HELD_BY_FUNCTIONS, 1)
def test_the_quick_replay_equals_the_replay_of_every_block(setup: Setup, batch: int) -> None:
    """Phase peaks, what forward saves, what lies on the host; and nothing leaks."""
    short, literal = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.saved_bytes(batch) == literal.saved_bytes(batch)
    on_host = [sum(one.at(batch) * one.copies for one in record.host) for record in (short, literal)]
    assert on_host[0] == on_host[1]
    for record in (short, literal):
        assert record.end_bytes(batch) == record.static_bytes(batch)


@pytest.mark.sweep(3)
@settings(max_examples=9, deadline=None)
@given(combined_setups(), BATCHES)
def test_lifetimes_are_reference_counts_alone(setup: Setup, batch: int) -> None:
    replay(setup, batch=batch, direct=True)  # imports and caches of the first time
    gc.freeze()  # what is there already is not looked through again
    gc.disable()
    try:
        replay(setup, batch=batch, direct=True)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.sweep(4)
@settings(max_examples=12, deadline=None)
@given(combined_setups(preferences=True), BATCHES)
def test_the_model_without_its_adapter_is_the_smaller_reference(setup: Setup, batch: int) -> None:
    """It has no weights of its own, so what is there before the step is what is there without a reference model."""
    own, beside = (replay(setup._replace(loss=loss), batch=min(batch, 2)) for loss in (DPO_ADAPTER_OFF, DPO))
    assert own.static_bytes(batch) < beside.static_bytes(batch)
    assert not any(state.category == "reference" for state in own.states)
    weights = sum(state.at(batch) for state in beside.states if state.category == "reference")
    assert beside.static_bytes(batch) - own.static_bytes(batch) == weights
