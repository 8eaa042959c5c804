"""A resolved job fed back in gives the same job."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.options import table, words
from vramplan.values.job import ResolvedJob

HISTORY = {
    "assumptions",
    "global_batch_given",
    "case",
    "allocator_offered",
    "rent",
}  # how the job came about, not what it is


def same(job: ResolvedJob) -> None:
    echoed = json.loads(json.dumps(job_to_dict(job), allow_nan=False))
    again = build_job(echoed)
    for field in ResolvedJob._fields:
        if field not in {*HISTORY, "warnings"}:
            assert getattr(again, field) == getattr(job, field), field
    # what was overruled is said of what was typed, and the echo has what it was answered as
    assert again.warnings == tuple(one for one in job.warnings if " is answered as " not in one)
    assert job_to_dict(again) == job_to_dict(job)


@pytest.mark.parametrize(
    "gpu", ["v100", "h100", {"name": "label", "memory": "24 GB"}, {"name": "v100", "memory": "8 GiB"}]
)
@pytest.mark.parametrize(
    "model", ["gpt2-xl", "mistral-7b", "qwen2-7b", {"family": "bert", "task": "cls", "classes": 5}]
)
def test_round_trip(model: Any, gpu: Any) -> None:
    same(build_job({"model": model, "gpu": gpu}))


def test_round_trip_of_a_gpu_that_no_profile_has(tmp_path: Path) -> None:
    path = tmp_path / "v100.yaml"  # the name of a shipped one, with other values
    path.write_text(
        "kind: gpu\nname: v100\ntitle: T\nnote: N\nsources: {s: {title: t, url: u, accessed: d}}\nfields:\n"
        "  memory: {value: 7 GB, source: s}\n  bf16: {value: true, source: s}\n"
        "  memory_bandwidth: {value: 123.456 GB/s, source: s}\n  architecture: {value: x, source: s}\n"
    )
    job = build_job({"model": "gpt2", "gpu": str(path)})
    assert (job.gpu.bf16, job.gpu.flash_attention, job.gpu.capacity_bytes) == (True, None, 7 * 10**9)
    same(job)


def test_every_key_is_known_and_every_default_explicit() -> None:
    echoed = job_to_dict(build_job({"model": "gpt2", "gpu": "v100"}))
    # those that can differ from what the resolved precision has
    cells = set(words.CELLS) - {"weight_dtype", "gradient_dtype", "optimizer_state_dtype"}
    left_out = {*cells, *(one.key for one in table.TABLE if one.only)}
    assert set(echoed) == set(table.inside()) - left_out
    assert echoed["global_batch_size"] == 512
    assert echoed["gpu"]["memory"] == "34080565493 B"


def test_a_global_batch_that_follows_from_the_steps_is_null() -> None:
    job = build_job({"model": "gpt2", "gpu": "v100", "gradient_accumulation_steps": 4})
    assert job_to_dict(job)["global_batch_size"] is None
    same(job)


def pinned(values: list[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@pytest.mark.sweep(4)
@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "model": pinned(
                [
                    *("gpt2", "llama-2-7b", "bert-base-uncased", "qwen3-30b-a3b"),
                    {"family": "mistral", "sliding_window": None},
                ]
            ),
            "gpu": pinned(["v100", "a100", "h100", "mi300x", {"name": "x", "memory": "123456789 B"}]),
        },
        optional={
            "name": pinned(["a job", "no", "017"]),
            "sequence_length": st.integers(1, 1024),
            "micro_batch_size": st.integers(1, 64),
            "global_batch_size": st.integers(1, 4096),
            "gradient_accumulation_steps": st.integers(1, 64),
            "precision": pinned(list(table.find("precision").words)),
            "optimizer": pinned([word.replace("RANK", "8") for word in words.OPTIMIZERS]),
            "optimizer_implementation": pinned(list(words.IMPLEMENTATIONS)),
            "activation_checkpointing": pinned(
                ["none", "full", "sqrt", "every:3", "layers:[[0,1],[3,5]]", "selective-op", "selective-layer:2"]
            ),
            "every_second_matmul": st.booleans(),
            "expert_imbalance": st.none() | st.floats(1, 100),
            "expert_capacity_factor": st.none() | st.floats(0.1, 100),
            "expert_pad_to_capacity": st.booleans(),
            "loss": pinned(["standard", "fp32-logits", "chunked:4", "fused", "classification", "dpo"]),
            "label_smoothing": pinned([None, 0.1]),
            "dpo_reference": pinned([None, "model", "precomputed", "adapter-off"]),
            "eval_batch_size": pinned([None, 8]),
            "padding": pinned(["none", "right"]),
            "packing": st.booleans(),
            "generation_batch_size": pinned([None, 2]),
            "generation_length": pinned([None, 64]),
            "checkpoint_reentrant": st.booleans(),
            "offload": pinned([None, [], ["activations"]]),
            "attention": pinned(list(table.find("attention").words)),
            "dropout": st.none() | st.floats(0, 0.99),
            "hold_outputs": st.booleans(),
            "compile": st.booleans(),
            "optimizer_in_backward": st.booleans(),
            "max_gradient_norm": st.none() | st.floats(0.001, 10),
            "grad_scaler": st.booleans(),
            "ema": st.booleans(),
            "weight_dtype": pinned([None, None, "bf16", "fp16"]),
            "gradient_dtype": pinned([None, None, "fp32"]),
            "master_dtype": pinned([None, None, "none"]),
            "optimizer_state_dtype": pinned([None, None, "fp32"]),
            "compute_dtype": pinned([None, None, "bf16"]),
            "parallel": st.fixed_dictionaries({"data": st.integers(1, 8)}),
            "runtime": pinned(list(words.RUNTIMES)),
            "reserve": pinned(["0 GiB", "1 MB", "0.3 KiB"]),
            "gpu_free": pinned([None, "15.5 GiB", "100 MB"]),
            "pytorch_version": pinned([None, "1.10", "1.13.1", "2.10"]),
            "cuda_module_loading": pinned([None, "lazy", "eager"]),
            "expect": pinned(list(table.find("expect").words)),
            "max_utilization": st.floats(0.01, 1),
        },
    )
)
@example({"model": "gpt2", "gpu": "a100", "precision": "fp32", "compute_dtype": "bf16"})
@example({"model": "gpt2", "gpu": "a100", "precision": "tf32", "compute_dtype": "bf16"})
def test_round_trip_of_anything(raw: dict[str, Any]) -> None:
    try:
        job = build_job(raw)
    except InputError:
        return
    same(job)
