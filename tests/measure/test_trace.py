"""Real code of PyTorch and Transformers, without data and on the CPU; skipped where they are not installed."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import Any

import pytest

from tests.cli.running import ABLE
from vramplan.answer import decide, describe
from vramplan.job import build_job, job_to_dict
from vramplan.measure.apart import Request, run_apart

INSTALLED = find_spec("torch") is not None and find_spec("transformers") is not None
pytestmark = pytest.mark.skipif(not INSTALLED, reason="needs the extra measure")

GPT2 = {"family": "gpt2", "layers": 2, "hidden_size": 128, "attention_heads": 2, "vocabulary_size": 1000}
SMALL = {"sequence_length": 32, "attention": "eager"}
LLAMA = {**GPT2, "family": "llama", "key_value_heads": 1, "intermediate_size": 352}


def job(model: dict[str, Any], **keys: Any) -> Any:
    plain = {"sequence_length": 256, "micro_batch_size": 4, "global_batch_size": 4, "activation_checkpointing": "none"}
    gpu = {"name": "a card", "memory": "40 GiB", **ABLE}
    return decide(build_job({"model": model, "gpu": gpu, **plain, **keys}))


@pytest.mark.truth
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")
@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=lambda model: str(model["family"]))
@pytest.mark.parametrize(
    "keys",
    [
        {"precision": "fp32", "attention": "efficient"},
        {"precision": "pure-bf16", "optimizer_implementation": "foreach"},
        {"precision": "amp-bf16", "global_batch_size": 8},
        {"precision": "amp-fp16", "attention": "eager", "activation_checkpointing": "every:2"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_a_trace_and_the_replay_agree_to_the_byte(model: dict[str, Any], keys: dict[str, Any]) -> None:
    decision = job(model, **keys)
    peak = describe(decision).peak
    figures = run_apart(Request(job_to_dict(decision.judged), "trace", 1)).figures
    assert figures.allocated_bytes == peak.allocated_bytes
    phases = (figures.forward_bytes, figures.backward_bytes, figures.step_bytes)
    assert phases == (peak.forward_bytes, peak.backward_bytes, peak.step_bytes)


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=lambda model: str(model["family"]))
def test_the_loop_trains_on_the_cpu(model: dict[str, Any]) -> None:
    from vramplan.measure.steps import on_cpu

    plain = on_cpu(job(model, **SMALL, precision="fp32").judged, 2)
    checkpointed = on_cpu(job(model, **SMALL, precision="fp32", activation_checkpointing="full").judged, 2)
    assert plain["step_seconds"] > 0
    assert checkpointed["allocated_bytes"] < plain["allocated_bytes"]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The GPU's loop on the CPU: the counters of torch.cuda are figures of this test."""
    import torch

    from vramplan.measure import steps

    on_a_gpu = steps.prepare
    stats = {f"{name}_bytes.all.peak": 7 for name in ("allocated", "requested", "reserved")}
    monkeypatch.setattr(steps, "prepare", lambda job, _: on_a_gpu(job, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: stats)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (30, 100))
    return steps


def test_the_loop_of_a_gpu_reads_every_counter(stub: Any) -> None:
    figures = stub.on_gpu(job(GPT2, **SMALL, precision="amp-bf16", global_batch_size=48).judged, 2)
    assert figures.pop("step_seconds") > 0
    assert figures == {
        "outcome": "fits",
        "micro_steps": stub.MICRO_STEPS,
        "allocated_bytes": 7,
        "requested_bytes": 7,
        "reserved_bytes": 7,
        "used_bytes": 70,
        "total_bytes": 100,
    }


def test_out_of_memory_says_in_which_phase(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "backward", full)
    figures = stub.on_gpu(job(GPT2, **SMALL, precision="fp32").judged, 2)
    assert (figures["outcome"], figures["oom_phase"], figures["step_seconds"]) == ("oom", "backward", None)
