"""Names of GPUs as shops and drivers write them."""

from __future__ import annotations

import pytest

from vramplan.catalog.gpus import match_gpu

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("RTX 3060 12GB", "rtx-3060"),
        ("rtx-3090 (24 GiB)", "rtx-3090"),
        ("H200 141GB", "h200"),
        ("4090 16GB", None),
        ("a100-81gb", None),
    ],
)
def test_the_own_size_of_a_card_may_stand_behind_its_name(name: str, profile: str | None) -> None:
    found = match_gpu(name)
    assert (None if found is None else found.name) == profile
