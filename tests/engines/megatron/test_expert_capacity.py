"""Experts with a capacity: rows of Megatron's own router and dispatcher, and what must always hold.

The rows of `capacity_rows.json` were made like those of `expert_rows.json`, by the same code of megatron-core 0.16.1:
it repeats these to the byte. `factor` and `pad` are moe_expert_capacity_factor and moe_pad_expert_input_to_capacity;
of one expert for each token moe_router_pre_softmax is set. Without `pad` data decides how many tokens a device sends
and receives: `sent` and `received` were given to the code where they are not the mean, and `load` to the job.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.answers import answer
from tests.cli.running import run
from tests.engines.megatron.test_megatron_experts import MODEL, ROW, figures, job_of, spread
from vramplan.job import build_job
from vramplan.replay.step import replay
from vramplan.values.parallel import DISTRIBUTED_OPTIMIZER

ROWS = json.loads((Path(__file__).parent / "capacity_rows.json").read_text())["rows"]
COUNT, RECOMPUTED, ROUNDED = 38, 2, 1
PARTS_OF_A_TOKEN = 1.3  # the factor with which a micro-batch of 2 has rooms of 332.8 tokens


def rows_where(*, recomputed: bool, rounded: bool) -> list[dict[str, Any]]:
    """The rows of one kind."""
    return [
        one
        for one in ROWS
        if (one["row"].get("recompute") == "full") is recomputed
        and (one["row"].get("factor") == PARTS_OF_A_TOKEN) is rounded
    ]


@pytest.mark.truth
def test_what_the_library_allocates() -> None:
    """Forward and backward of one micro-batch, to the byte."""
    wrong = []
    rows = rows_where(recomputed=False, rounded=False)
    assert len(rows) == COUNT - RECOMPUTED - ROUNDED
    for traced in rows:
        found = figures(traced["row"], traced)
        wrong += [(traced["row"], key, size, traced[key]) for key, size in found.items() if traced[key] != size]
    assert not wrong


@pytest.mark.truth
def test_full_recomputation_is_not_below_what_the_library_allocates() -> None:
    """As without a capacity: what routers' graphs keep of checkpoints counts throughout, 2 tensors of 256 KiB."""
    rows = rows_where(recomputed=True, rounded=False)
    assert len(rows) == RECOMPUTED
    for traced in rows:
        found = figures(traced["row"], traced)
        real = max(traced["forward_bytes"], traced["backward_bytes"])
        assert real <= max(found["forward_bytes"], found["backward_bytes"]) <= real + 2 * 2**18


@pytest.mark.truth
def test_parts_of_a_token_are_rounded_up_for_each_sample() -> None:
    """Megatron has rooms of 333 tokens for two samples, and here each sample has 167: one more of each expert."""
    (traced,) = rows_where(recomputed=False, rounded=True)
    found = figures(traced["row"], traced)
    blocks, experts, hidden, inner = 2, 4, 256, 1024
    row = 2 * (hidden + 2 * inner + inner)  # what an expert keeps of a token: its input, both products, the activation
    assert found["saved_bytes"] - traced["saved_bytes"] == blocks * experts * row
    for key in ("forward_bytes", "backward_bytes"):
        assert 0 < found[key] - traced[key] < blocks * experts * row * 1.2


@pytest.mark.closed_form
def test_a_capacity_bounds_the_imbalance() -> None:
    def peak(load: float, factor: float | None, *, pad: bool = False) -> int:
        setup = spread({**ROW, "expert": 4, "factor": factor, "pad": pad, "load": load})
        return replay(setup._replace(expert_imbalance=load)).peak_bytes(2)

    assert peak(4.0, 1.25) == peak(1.25, 1.25) < peak(4.0, 1.5) < peak(4.0, None)
    assert peak(1.0, 1.25) < peak(1.25, 1.25)  # nothing is padded
    assert peak(1.0, 1.25, pad=True) == peak(4.0, 1.25, pad=True) > peak(1.0, 1.25)
    assert peak(1.0, 0.5) < peak(1.0, 0.75) < peak(1.0, 1.0)  # even where tokens are spread evenly


def test_a_job_with_a_capacity_is_echoed() -> None:
    parallel = {"tensor": 2, "sequence_parallel": True, "pipeline": 2, "expert": 4, "data": 4}
    keys = {"expert_capacity_factor": 1.25, "expert_pad_to_capacity": True, "expert_imbalance": 2.0}
    shared = {**parallel, "sharding": DISTRIBUTED_OPTIMIZER}
    result = answer(job_of(parallel=shared, gradient_accumulation_steps=4, **keys))
    echoed = result.to_dict()["job"]
    assert {key: echoed[key] for key in keys} == keys
    again = answer(build_job(echoed))
    assert (again.peak, again.components) == (result.peak, result.components)
    assert any("expert_imbalance 2 changes no figure: each expert gets" in one for one in result.warnings)
    alone = answer(job_of(expert_imbalance=2.0))
    assert any(
        one.endswith("changes no figure: one device has all experts, and so all tokens") for one in alone.warnings
    )
    dropped = answer(job_of(parallel=shared, gradient_accumulation_steps=4, **{**keys, "expert_pad_to_capacity": None}))
    assert any(one.startswith("expert_imbalance 2 counts as 1.25:") for one in dropped.warnings)


def test_one_expert_for_each_token_holds_less_than_two() -> None:
    def saved(active: int) -> int:
        mixture = {**MODEL, "experts": {"count": 8, "active": active}}
        return answer(job_of(model=mixture, expert_capacity_factor=1.0)).peak.saved_bytes

    assert saved(1) < saved(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--expert-pad-to-capacity", "expert_pad_to_capacity: belongs to expert_capacity_factor"),
        ("--expert-capacity-factor 0", "expert_capacity_factor: 0 leaves no tokens"),
        ("--expert-capacity-factor -1", "expert_capacity_factor: -1 is too small"),
        (
            "--expert-capacity-factor 4.5 --expert-pad-to-capacity",
            "expert_capacity_factor: 4.5 is more than 4, which is all tokens",
        ),
    ],
)
def test_what_no_expert_takes_is_refused(options: str, message: str) -> None:
    ran = run("fit", "--model", "mixtral-8x7b", "--gpu", "h100", "--runtime", "megatron", *options.split())
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt2", "belongs to models with experts, and gpt2 has none (leave it out)"),
        ("mixtral-8x7b", "is not modelled for mixtral under transformers (--runtime megatron, or leave it out)"),
        ("granite-4.0-h-tiny", "is not modelled for granitemoehybrid under transformers (leave it out)"),
    ],
)
@pytest.mark.parametrize("options", ["--expert-capacity-factor 1.25", "--expert-pad-to-capacity"])
def test_where_no_token_is_dropped_a_capacity_is_refused(model: str, options: str, message: str) -> None:
    ran = run("fit", "--model", model, "--gpu", "h100", *options.split())
    assert ran.code == 2
    assert message in ran.err
