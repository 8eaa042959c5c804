"""Coverage of the traced steps over a master copy."""

from __future__ import annotations

from collections import Counter

from tests.oracle.compare import rows


def test_the_rows_over_a_master_copy_cover_what_is_modelled() -> None:
    """Clipped half gradients, clipped fp32 ones, and fp32 ones as they are, with every optimizer that has a copy."""
    jobs = [row.job for row in rows("master")]
    kinds = Counter((job.max_gradient_norm is not None, job.fp32_gradients) for job in jobs)
    assert kinds.keys() == {(True, False), (True, True), (False, True)}
    assert min(kinds.values()) >= 10
    assert {job.optimizer for job in jobs} == {"adamw", "adam", "sgd", "sgd-momentum", "rmsprop"}
    assert {job.precision for job in jobs} == {"mixed-fp16", "mixed-bf16"}
    assert any(job.gradient_accumulation_steps != 1 for job in jobs)
    assert any(job.ema for job in jobs)
