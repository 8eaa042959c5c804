"""The traced rows of quantization-aware training: each format, beside what it meets."""

from __future__ import annotations

from tests.oracle.compare import rows
from vramplan.options.words import QAT_ACTIVATIONS, QAT_WEIGHTS
from vramplan.values.parallel import DDP, FSDP, FSDP_GRAD_OP

FILES = ("rounded", "rounded_shared", "torchtune_rounded")


def test_the_rows_of_rounded_layers_cover_what_is_modelled() -> None:
    jobs = [row.job for file in FILES for row in rows(file)]
    found = [job.qat for job in jobs if job.qat is not None]
    assert len(found) == len(jobs)
    assert {qat.weights for qat in found} == {*QAT_WEIGHTS}
    assert {qat.activations for qat in found} == {*QAT_ACTIVATIONS, None}
    assert {qat.embedding for qat in found} == {True, False}
    assert {qat.zero_points for qat in found} == {"int32", "fp32"}
    assert {qat.adapted_only for qat in found} == {True, False}
    assert {job.runtime.engine for job in jobs} == {"transformers", "torchtune"}
    assert {None if job.sharding is None else job.sharding.kind for job in jobs} == {None, DDP, FSDP, FSDP_GRAD_OP}
    assert {job.activation_checkpointing == "none" for job in jobs} == {True, False}
    assert {job.precision for job in jobs} >= {"fp32", "pure-bf16", "amp-bf16", "fsdp-bf16"}
    assert {None if job.adapter is None else job.adapter.kind for job in jobs} >= {None, "lora"}
    assert {job.micro_batch_size == 1 for job in jobs} == {True, False}
    assert len({job.model.transformers_model_type for job in jobs}) > 25
