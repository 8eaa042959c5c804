"""Optimizers that are given parts of weights: what each way to share gives them, and what they cannot step."""

from __future__ import annotations

import pytest

from tests.job.tiny import KEYS
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner import setups
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form


@pytest.mark.contract
def test_prodigy_flattens_shards_of_as_many_rows_alone() -> None:
    """A matrix of TINY has 64, 128 or 160 rows: 2 devices have as many each, and 3 have not."""
    keys = {**KEYS, "optimizer": "prodigy", "precision": "amp-bf16"}
    build_job({**keys, "parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 2}})
    with pytest.raises(InputError, match=r"prodigy flattens weights: .* on each of 3 devices"):
        build_job({**keys, "parallel": {"data": 3, "sharding": "fsdp", "fsdp_version": 2}})
    tokens = {"kind": "prompt-tuning", "virtual_tokens": 7}
    with pytest.raises(InputError, match=r"whose rows \(7\) are not as many on each of 2 devices"):
        build_job({**keys, "adapter": tokens, "parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 2}})


@pytest.mark.contract
@pytest.mark.parametrize(
    ("optimizer", "implementation"),
    [("schedule-free-sgd", "foreach"), ("came", "for-loop"), ("prodigy", "for-loop"), ("adamw-optimi", "fused")],
)
def test_zero_gives_its_flat_part_to_an_optimizer_as_its_library_steps(optimizer: str, implementation: str) -> None:
    keys = {**KEYS, "optimizer": optimizer, "precision": "mixed-bf16"}
    job = build_job({**keys, "parallel": {"data": 2, "sharding": "zero2"}})
    assert job.optimizer_implementation == implementation
    with pytest.raises(InputError, match=rf"optimizer: {optimizer} over a master copy \(mixed-bf16\) is not modelled"):
        build_job({**keys, "parallel": {"data": 2, "sharding": "ddp"}})


def test_adagrad_leaves_the_sums_of_whole_weights_under_zero() -> None:
    """Beside those of its part, in fp32: the sums of the whole model in the 16 bits of its weights."""

    def states(optimizer: str, devices: int) -> int:
        keys = {**KEYS, "optimizer": optimizer, "precision": "mixed-bf16"}
        job = build_job({**keys, "parallel": {"data": devices, "sharding": "zero2"}})
        record = replay(setups.setup_of(job, "none", accumulates=False), batch=2)
        return sum(one.at(2) for one in record.states if one.category == "optimizer")

    beside = {devices: states("adagrad", devices) - states("rmsprop", devices) for devices in (2, 4)}
    assert beside[2] == beside[4] > states("rmsprop", 2) / 2
