"""Names of GPUs as shops and drivers write them."""

from __future__ import annotations

import pytest

from vramplan.catalog.gpus import find_gpu, match_gpu
from vramplan.errors import InputError

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("RTX 3060 12GB", "rtx-3060"),
        ("rtx-3090 (24 GiB)", "rtx-3090"),
        ("H200 141GB", "h200"),
        ("H100 80GB PCIe", "h100-pcie"),  # inside the name
        ("NVIDIA A100 40GB PCIe", "a100-pcie-40gb"),
        ("Tesla V100 16GB SXM2", "v100-16gb"),
        ("H100 40GB PCIe", None),
        ("4090 16GB", None),
        ("a100-81gb", None),
    ],
)
def test_the_own_size_of_a_card_may_stand_behind_its_name(name: str, profile: str | None) -> None:
    found = match_gpu(name)
    assert (None if found is None else found.name) == profile


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("GTX 1060 6GB", "gtx-1060"),
        ("1060 3gb", "gtx-1060-3gb"),
        ("NVIDIA GeForce GTX 1660 SUPER", "gtx-1660-super"),
        ("1650 Ti", "gtx-1650-ti-laptop"),
        ("TITAN X", "titan-x-pascal"),
        ("Quadro P6000 24GB", "quadro-p6000"),
        ("RTX 2070 Mobile", "rtx-2070-laptop"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
    ],
)
def test_common_cards_have_a_profile(name: str, profile: str) -> None:
    """People who own one card name it so on forums; these were answered with other cards."""
    found = match_gpu(name)
    assert found is not None
    assert found.name == profile


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Tesla M40 24GB", "builds of PyTorch for CUDA 12.6"),
        ("gtx 980 ti", "builds of PyTorch for CUDA 12.6"),
        ("k80", "neither CUDA 12 nor present builds of PyTorch"),
        ("P102-100", "--gpu '8 GiB' is a size"),
        ("mi50", "MI100 to MI355X are"),
        ("Ryzen AI Max 395", "AMD's APUs and Radeon cards are not modelled"),
    ],
)
def test_a_card_without_a_profile_is_not_answered_with_another_one(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as error:
        find_gpu(name)
    assert "did you mean" not in str(error.value)
