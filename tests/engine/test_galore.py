"""GaLore: the step without a decomposition, closed forms of its states, and what a rank may change."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.draws import setups
from tests.engine.test_optimizers import BATCHES, EMBEDDINGS, VECTORS, WIDE, in_blocks, quick, states_of
from tests.oracle.compare import rows, setup_of
from vramplan.replay.optimizers import adam_mini, apollo, torchao
from vramplan.replay.optimizers.galore import WITHOUT_UPDATE, WORD
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.techniques.evidence import projectable
from vramplan.replay.tensors import BF16, FP32
from vramplan.values.job import ResolvedJob

DRAWS = settings(max_examples=15, deadline=None)
RANKS = st.integers(1, 200)

MATRICES = 4 * [(128, 384), (128, 128), (128, 512), (512, 128)]  # of GPT-2's blocks, as its Conv1D has them


def without_update(setup: Setup) -> Setup:
    return setup._replace(optimizer=setup.optimizer.replace(WORD, WITHOUT_UPDATE))


@pytest.mark.truth
def test_a_step_that_keeps_its_projections_is_traced_too() -> None:
    """Of rows whose step is after backward and scales no loss."""
    found = 0
    for row in rows("galore"):
        traced = row.job.case["trace"].get("step_without_svd")
        if traced is None:
            continue
        batch = row.job.micro_batch_size
        assert batch is not None
        assert quick(without_update(setup_of(row.job)), batch).peaks(batch)["step"] == traced, row.job.name
        found += 1
    assert found >= 30


@pytest.mark.sweep
def test_the_rows_cover_what_is_modelled() -> None:
    jobs: list[ResolvedJob] = [row.job for row in rows("galore")]
    types = Counter(job.model.transformers_model_type for job in jobs)
    others = (row.job for file in ("linear", "block_kinds", "decoders", "stepped_shared") for row in rows(file))
    beside = {job.model.transformers_model_type for job in others if job.optimizer.startswith(WORD)}
    assert {*types, *beside} == {*projectable()}
    assert sum(count >= 2 for count in types.values()) >= 30  # of the others one each
    assert {job.precision for job in jobs} == {"fp32", "amp-fp16", "amp-bf16", "pure-fp16", "pure-bf16"}
    assert any(job.half_weights for job in jobs)
    assert any(job.grad_scaler for job in jobs)
    assert any(job.ema for job in jobs)
    assert sum(job.max_gradient_norm is not None for job in jobs) >= 5
    assert sum(job.optimizer_in_backward for job in jobs) >= 5
    ranks = {int(job.optimizer.partition(":")[2]) >= job.model.hidden_size for job in jobs if job.model.hidden_size}
    assert ranks == {True, False}  # larger than a side, and smaller


@pytest.mark.closed_form
@pytest.mark.parametrize("rank", [1, 16, 128, 1000])
def test_the_states_of_fp32_gradients_keep_the_whole_factor(rank: int) -> None:
    """Two moments m x r, and n x n; a slice of a tensor keeps all of it."""
    expected = 2 * in_blocks([4 * size for size in (*EMBEDDINGS, *VECTORS)])
    for one, other in MATRICES:
        expected += 2 * in_blocks([4 * max(one, other) * min(rank, one, other)]) + 4 * min(one, other) ** 2
    assert states_of(WIDE._replace(optimizer=f"{WORD}:{rank}", optimizer_implementation="for-loop")) == expected


@pytest.mark.closed_form
@pytest.mark.parametrize("rank", [1, 16, 128, 1000])
def test_the_states_of_half_gradients_are_those_of_the_paper(rank: int) -> None:
    """arXiv:2403.03507, table 1: m r for the projection and 2 n r for the moments, of weights m x n, m <= n."""
    half = WIDE._replace(optimizer=f"{WORD}:{rank}", optimizer_implementation="for-loop", precision="pure-bf16")
    expected = 2 * in_blocks([2 * size for size in (*EMBEDDINGS, *VECTORS)])
    for one, other in MATRICES:
        m, n, r = min(one, other), max(one, other), min(rank, one, other)
        expected += in_blocks([2 * m * r]) + 2 * in_blocks([2 * n * r])
    assert states_of(half) == expected


@pytest.mark.sweep(4)
@pytest.mark.closed_form
@DRAWS
@given(setups(), BATCHES, RANKS, RANKS)
def test_a_smaller_rank_never_needs_more(setup: Setup, batch: int, one: int, other: int) -> None:
    """Neither in the step that keeps its projections nor in the one that makes them, which is never the smaller."""
    if setup.precision.startswith("mixed-"):
        return
    plain = setup._replace(optimizer_implementation="for-loop", grad_scaler=False)
    keeping, making = [], []
    for rank in sorted((one, other)):
        with_rank = plain._replace(optimizer=f"{WORD}:{rank}")
        keeping.append(quick(without_update(with_rank), batch).peaks(batch))
        making.append(quick(with_rank, batch).peaks(batch))
    for phase in ("forward", "backward", "step"):
        assert keeping[0][phase] <= keeping[1][phase]
        assert making[0][phase] <= making[1][phase]
        assert all(kept[phase] <= made[phase] for kept, made in zip(keeping, making, strict=True))


@pytest.mark.closed_form
@pytest.mark.parametrize("precision", ["fp32", "pure-bf16"])
def test_the_states_over_adafactor_are_factors_in_fp32_and_whole_projections(precision: str) -> None:
    """Rows and columns of m x r, n x n of the projection, and a number of each weight, whatever its type."""
    rank = 16
    expected = in_blocks([4 * size for size in VECTORS]) + 512 * (len(VECTORS) + len(EMBEDDINGS) + len(MATRICES))
    expected += in_blocks([4 * side for size in EMBEDDINGS for side in (size // 128, 128)])
    for one, other in MATRICES:
        expected += in_blocks([4 * max(one, other), 4 * rank, 4 * min(one, other) ** 2])
    plain = WIDE._replace(optimizer_implementation="for-loop", precision=precision)
    assert states_of(plain._replace(optimizer=f"galore-adafactor:{rank}")) == expected


@pytest.mark.closed_form
def test_experts_and_tables_are_not_projected() -> None:
    """Their states are those of plain AdamW: nothing of them changes with the rank."""
    tied = replay(WIDE._replace(optimizer=f"{WORD}:1", optimizer_implementation="for-loop"))
    assert states_of(WIDE._replace(optimizer=f"{WORD}:1")) < states_of(WIDE._replace(optimizer="adamw"))
    assert tied.managed_bytes == 0


@pytest.mark.closed_form
def test_states_of_apollo_and_adam_mini_are_those_of_their_papers() -> None:
    """arXiv:2412.05270, table 1: 2 n r + m r of m x n, m the shorter side; arXiv:2406.16793: a number for each row."""
    rank, short, long = 16, 128, 512
    tape = Tape(1, direct=True)
    matrix = tape.parameter("weight", (long, short), FP32)
    matrix.in_linear, matrix.path = True, (object(),)
    assert apollo.states(matrix, f"apollo-adamw:{rank}", "for-loop", False) == 4 * rank * (2 * long + short) + 512
    assert adam_mini.states(matrix, "adam-mini", "for-loop", False) == 4 * (long * short + long)
    bias = tape.parameter("bias", (long,), FP32)
    assert adam_mini.states(bias, "adam-mini", "for-loop", False) == 2 * 4 * long


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("word", "codes", "scales", "table"),
    [
        ("adamw-8bit-torchao", 524288, 2048, 256),
        ("adamw-4bit-torchao", 262144, 4096, 16),
        ("adamw-fp8-torchao", 524288, 2048, 0),
    ],
)
def test_states_of_torchao_are_codes_scales_and_a_table(word: str, codes: int, scales: int, table: int) -> None:
    """Each has two moments, as torchao 0.18's `AdamW8bit`, `AdamW4bit` and `AdamWFp8` make them of 512 x 1024."""
    tape = Tape(1, direct=True)
    matrix = tape.parameter("weight", (512, 1024), BF16)
    assert torchao.states(matrix, word, "fused", False) == 2 * (codes + 4 * scales + rounded(4 * table))
    small = tape.parameter("norm", (1024,), BF16)
    assert torchao.states(small, word, "fused", False) == 2 * 2 * 1024
