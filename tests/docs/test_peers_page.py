"""docs/peers.md: its tables are what the program computes, and what stands between a tool and the replay adds up."""

from __future__ import annotations

import pytest

from tests.docs import peers

UNNAMED = 1e-4
"""Of the total: norms' statistics, 8 bytes for each token, token ids, and the rounding of each tensor to a block."""

CASES = range(4)


def test_the_tables_are_those_that_the_program_writes() -> None:
    text = peers.PAGE.read_text("utf-8")
    assert {found["name"] for found in peers.TABLE.finditer(text)} == set(peers.tables())
    assert peers.page(text) == text, "run python -m tests.docs.peers"


@pytest.mark.closed_form
@pytest.mark.parametrize("number", CASES)
def test_named_tensors_are_all_that_is_between_a_tool_and_the_replay(number: int) -> None:
    """Exact but for the smallest ones, which are more in the replay alone: no tool counts them."""
    case = peers.cases()[number]
    for peer in case.peers:
        assert 0 <= peer.rest(case.ours) < UNNAMED * case.ours.total, peer.tool


@pytest.mark.closed_form
def test_megatrons_own_states_are_the_replays() -> None:
    """6 + 12/8 bytes for each parameter of Llama-2-7B; the replay has the scale of the loss beside them."""
    (case,) = (one for one in peers.cases() if one.name == "llama-2-7b")
    megatron = case.peers[0].figures
    scale = 512
    assert (megatron.weights, megatron.gradients, megatron.optimizer + scale) == case.ours[1:4]


@pytest.mark.closed_form
def test_megatrons_report_of_gpt3_is_within_two_per_cent() -> None:
    """As the page says: it is made for such a run."""
    (case,) = (one for one in peers.cases() if one.name == "gpt3-175b")
    assert 0.98 * case.ours.total < case.peers[0].figures.total < case.ours.total


def test_there_are_as_many_cases() -> None:
    assert len(peers.cases()) == len(CASES)
