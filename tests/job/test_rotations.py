"""OFT: what a job says of it, and how many numbers are trained."""

from __future__ import annotations

import pytest

from tests.cli.running import TINY
from tests.job.tiny import KEYS
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.planner import setups
from vramplan.replay.step import replay
from vramplan.replay.techniques.rotations import nearest_divisor

pytestmark = pytest.mark.closed_form


@pytest.mark.parametrize(
    ("width", "size", "block"), [(64, 32, 32), (160, 32, 32), (100, 32, 25), (96, 7, 6), (8, 32, 8), (30, 4, 3)]
)
def test_a_block_divides_the_width_of_its_layer(width: int, size: int, block: int) -> None:
    assert nearest_divisor(width, size) == block


def test_what_is_trained_are_the_halves_of_skew_matrices() -> None:
    job = build_job({**KEYS, "adapter": {"kind": "oft", "rank": 16, "targets": ["q_proj", "down_proj"]}})
    record = replay(setups.setup_of(job, "none", False), batch=2)
    each = 16 * 15 // 2
    assert record.trainable_parameters == TINY["layers"] * (64 // 16 + 160 // 16) * each


def test_the_size_of_a_block_is_peft_s_where_nobody_says_it() -> None:
    job = build_job({**KEYS, "adapter": {"kind": "oft", "targets": ["q_proj"]}})
    assert job.adapter is not None
    assert job.adapter.rank == 32
    echoed = job_to_dict(job)["adapter"]
    assert echoed["rank"] == 32
    assert not {"alpha", "dropout", "feedforward_targets"} & {*echoed}


@pytest.mark.parametrize("key", ["alpha", "dropout"])
def test_what_means_nothing_to_a_rotation(key: str) -> None:
    with pytest.raises(InputError, match=f"{key}: has no meaning for oft"):
        build_job({**KEYS, "adapter": {"kind": "oft", "targets": ["q_proj"], key: 0.5}})


def test_layers_of_gpt2_have_no_rotation() -> None:
    with pytest.raises(InputError, match="PEFT has no oft over the layers of gpt2"):
        build_job({**KEYS, "model": "gpt2", "adapter": {"kind": "oft", "targets": ["c_attn"]}})


@pytest.mark.parametrize("target", ["all-linear", "kv_b_proj"])
def test_what_reads_four_dimensions_has_no_rotation(target: str) -> None:
    adapter = {"kind": "oft", "targets": [target]}
    with pytest.raises(InputError, match="PEFT takes what kv_b_proj reads, of four dimensions, for an image"):
        build_job({**KEYS, "model": "deepseek-v3", "adapter": adapter})
    build_job({**KEYS, "model": "deepseek-v3", "adapter": {**adapter, "targets": ["q_b_proj"]}})
