"""Contract: what LitGPT cannot run."""

from __future__ import annotations

import pytest

from vramplan import InputError, fit

pytestmark = pytest.mark.contract


def test_a_sequence_of_one_token_has_nothing_to_predict() -> None:
    with pytest.raises(InputError, match="sequence_length: 1 leaves no token to predict"):
        fit(model="llama-3.2-1b", gpu="a100", runtime="litgpt", sequence_length=1)
