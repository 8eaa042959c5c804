"""torchtitan's own Llama: split over devices, compiled, in stages of a pipeline, and what the allocator makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job.file import build_job
from vramplan.planner import judge
from vramplan.planner.groups import process_groups
from vramplan.replay.caching.run import reserve
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.allocator import Settings
from vramplan.values.job import ResolvedJob

LLAMA = {
    "family": "llama",
    "layers": 5,
    "hidden_size": 256,
    "attention_heads": 8,
    "key_value_heads": 4,
    "intermediate_size": 768,
    "vocabulary_size": 1024,
    "max_positions": 512,
    "tied_embeddings": False,
}


def job_of(**keys: object) -> ResolvedJob:
    job = build_job(
        {
            "model": LLAMA,
            "gpu": "h100",
            "sequence_length": 128,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "precision": "fsdp-bf16",
            "activation_checkpointing": "full",
            "parallel": {"data": 4},
            "runtime": "torchtitan",
            **keys,
        }
    )
    assert isinstance(job, ResolvedJob)
    return job


def setup_of(job: ResolvedJob) -> Setup:
    assert job.activation_checkpointing is not None
    return judge.Judge(job).setup(job.activation_checkpointing, job.gradient_accumulation_steps != 1)


STRATEGIES = ("none", "full", "selective-op", "selective-layer:2", "selective-layer:3")


@pytest.mark.sweep(4)
@settings(max_examples=40, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    tensor=st.sampled_from((1, 2, 4)),
    batch=st.integers(1, 3),
    attention=st.sampled_from(("flash", "efficient")),
    compiled=st.booleans(),
    whole_logits=st.booleans(),
)
def test_one_block_stands_for_all(
    strategy: str, tensor: int, batch: int, attention: str, compiled: bool, whole_logits: bool
) -> None:
    keys: dict[str, object] = {"loss": "fp32-logits"} if whole_logits else {}
    parallel = {"data": 4, "tensor": tensor}
    job = job_of(activation_checkpointing=strategy, attention=attention, compile=compiled, parallel=parallel, **keys)
    setup = setup_of(job)
    quick, direct = replay(setup, batch=1 if batch == 1 else 2), replay(setup, batch=batch, direct=True)
    assert quick.peaks(batch) == direct.peaks(batch)
    assert quick.saved_bytes(batch) == direct.saved_bytes(batch)


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_every_device_counts_the_parameters_of_the_whole_model(tensor: int) -> None:
    record = replay(setup_of(job_of(parallel={"data": 4, "tensor": tensor})))
    assert record.parameters == replay(setup_of(job_of())).parameters


@pytest.mark.closed_form
def test_weights_are_shared_by_all_devices_but_for_norms() -> None:
    """Four bytes of each matrix's part, in shards; a norm is whole on each of the devices of a tensor group."""
    hidden, inner, vocabulary, layers = 256, 768, 1024, 5
    matrices = 2 * vocabulary * hidden + layers * (hidden * (2 * hidden + 2 * hidden // 2) + 3 * hidden * inner)
    norms = (2 * layers + 1) * hidden
    record = replay(setup_of(job_of(parallel={"data": 4, "tensor": 2})))
    weights = sum(state.at(2) for state in record.states if state.category == "weights")
    blocks_of_512 = (2 * layers + 1) * (512 - hidden * 4 // 4)
    assert weights == 4 * matrices // 8 + 4 * norms // 4 + blocks_of_512


def test_compiled_blocks_keep_no_more_than_others() -> None:
    for strategy in STRATEGIES[1:]:
        plain = replay(setup_of(job_of(activation_checkpointing=strategy, loss="fp32-logits")))
        compiled = replay(setup_of(job_of(activation_checkpointing=strategy, loss="fp32-logits", compile=True)))
        assert compiled.saved_bytes(2) <= plain.saved_bytes(2)


PIPELINE = {"data": 2, "tensor": 2, "pipeline": 2}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved:2"])
def test_stages_of_a_pipeline_share_the_blocks(schedule: str) -> None:
    job = job_of(model=LLAMA | {"layers": 6}, parallel=PIPELINE | {"schedule": schedule}, gradient_accumulation_steps=4)
    judged = judge.Judge(job)
    records = [judged.record("full", True, False, stage) for stage in (0, 1)]
    whole = replay(setup_of(job_of(model=LLAMA | {"layers": 6})))
    assert sum(record.parameters for record in records) == whole.parameters


def test_more_micro_batches_in_flight_hold_more() -> None:
    model = LLAMA | {"layers": 8}
    parallel = {"data": 2, "pipeline": 4}
    judged = judge.Judge(job_of(model=model, parallel=parallel, gradient_accumulation_steps=8))
    in_flight = [
        sum(state.at(2) for state in judged.record("full", True, False, stage).states if state.category == "in_flight")
        for stage in (0, 1, 2)
    ]
    assert in_flight[0] > in_flight[1] > in_flight[2] > 0


def test_fp8_of_a_model_that_torchtitan_has_no_code_of_is_not_answered_with_torchtitan() -> None:
    keys = {"gpu": "h100", "runtime": "torchtitan", "precision": "fp8", "parallel": {"data": 2}}
    with pytest.raises(InputError) as error:
        build_job({"model": "llama-3.2-1b", **keys})
    assert "none of llama-3.2-1b, as it has tied embeddings" in str(error.value)
    assert "--runtime torchtitan" not in str(error.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"activation_checkpointing": "sqrt"}, "sqrt is not modelled under torchtitan"),
        ({"parallel": {"data": 4, "tensor": 2, "sharding": "ddp"}, "precision": "fp32"}, "with FSDP alone"),
        ({"parallel": {"data": 4, "tensor": 8}}, "8 does not divide the 4 key and value heads"),
        ({"parallel": {"data": 4, "tensor": 2, "sequence_parallel": False}}, "shares the sequence"),
        ({"parallel": {"data": 4, "expert": 2}}, "2 is not modelled for llama under torchtitan"),
        ({"parallel": {"data": 4, "pipeline": 2, "sharding": "fsdp"}}, "use fsdp-grad-op"),
        ({"loss": "vocab-parallel"}, "needs the vocabulary in parts"),
        ({"precision": "fp8"}, "fsdp-fp8 is modelled compiled"),
        ({"dropout": 0.1}, "dropout: 0.1 is not in torchtitan"),
        ({"attention": "eager"}, "eager cannot run"),
    ],
)
def test_what_torchtitan_has_not_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        job_of(**keys)
    assert message in str(error.value)


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pools_hold_at_least_what_is_allocated(strategy: str, implementation: str) -> None:
    model = LLAMA | {"hidden_size": 4096, "attention_heads": 32, "key_value_heads": 8, "intermediate_size": 14336}
    job = job_of(
        model=model,
        sequence_length=512,
        activation_checkpointing=strategy,
        optimizer_implementation=implementation,
    )
    record = replay(setup_of(job), batch=2, direct=True)
    for one in (Settings(), Settings(expandable_segments=True)):
        assert record.peak_bytes(2) <= reserve(record, 2, one).reserved_bytes < 2 * record.peak_bytes(2)


GROUPED = {"data": 8, "tensor": 2, "sharding": "hsdp:4"}


@pytest.mark.sweep(4)
@settings(max_examples=30, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    tensor=st.sampled_from((1, 2, 4)),
    batch=st.integers(1, 3),
    reduce_dtype=st.sampled_from(("fp32", "bf16")),
    steps=st.sampled_from((1, 2)),
)
def test_groups_of_replicas_hold_what_one_group_does(
    strategy: str, tensor: int, batch: int, reduce_dtype: str, steps: int
) -> None:
    """But for sums that wait for the other groups: where they are cast, or added to others, they stay until the end."""
    keys: dict[str, object] = {"activation_checkpointing": strategy, "gradient_accumulation_steps": steps}
    alone = {"data": 4, "tensor": tensor, "reduce_dtype": reduce_dtype}
    group, all_of_them = (
        replay(setup_of(job_of(parallel=alone | more, **keys)), batch=min(batch, 2))
        for more in ({}, {"data": 12, "shards": 4})
    )
    assert group.static_bytes(batch) == all_of_them.static_bytes(batch)
    pairs = [(size, all_of_them.peaks(batch)[phase]) for phase, size in group.peaks(batch).items()]
    assert all(small <= large for small, large in pairs)
    if reduce_dtype == "fp32" and steps == 1:
        assert all(small == large for small, large in pairs)


@pytest.mark.parametrize(
    ("parallel", "count"),
    [({"data": 8}, 1), ({"data": 8, "sharding": "hsdp:4"}, 2), (GROUPED, 3), (GROUPED | {"context": 2}, 4)],
)
def test_sums_over_groups_are_a_communicator_more(parallel: dict[str, object], count: int) -> None:
    assert len(process_groups(job_of(parallel=parallel))) == count


def test_groups_of_replicas_are_echoed() -> None:
    first = answer(job_of(parallel=GROUPED))
    again = answer(build_job(first.to_dict()["job"]))
    assert (again.peak, again.components) == (first.peak, first.components)
    assert first.to_dict()["job"]["parallel"]["sharding"] == "hsdp:4"


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (GROUPED | {"pipeline": 2}, "use fsdp-grad-op with shards: 4"),
        ({"data": 8, "context": 4, "sharding": "hsdp:2"}, "no multiple of the 4 of a sequence"),
        ({"data": 8, "context": 4, "shards": 2}, "no multiple of the 4 of a sequence"),
    ],
)
def test_groups_that_torchtitan_has_not_are_refused(parallel: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        job_of(parallel=parallel)
    assert message in str(error.value)
