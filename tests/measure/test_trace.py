"""Real code of PyTorch and Transformers, without data and on the CPU; skipped where they are not installed."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import Any

import pytest

from tests.cli.running import ABLE
from vramplan.answers.fit import describe
from vramplan.job import build_job, job_to_dict
from vramplan.measure.apart import Request, run_apart
from vramplan.planner.decision import decide
from vramplan.values.job import ResolvedJob

INSTALLED = find_spec("torch") is not None and find_spec("transformers") is not None
pytestmark = pytest.mark.skipif(not INSTALLED, reason="needs the extra measure")

GPT2 = {"family": "gpt2", "layers": 2, "hidden_size": 128, "attention_heads": 2, "vocabulary_size": 1000}
SMALL = {"sequence_length": 32, "attention": "eager"}
LLAMA = {**GPT2, "family": "llama", "key_value_heads": 1, "intermediate_size": 352}
VIT = {"family": "vit", "layers": 2, "hidden_size": 128, "attention_heads": 2, "intermediate_size": 256}
VIT = {**VIT, "image_size": 64, "patch_size": 16}
RESNET = {"family": "resnet", "depths": [2, 1], "widths": [64, 96], "embedding_size": 16, "classes": 10}
LORA = {"kind": "lora", "rank": 4}
adapts = pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra measure")
compiles = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")


def allocated_on_cpu(judged: ResolvedJob) -> int:
    """The peak of the storages of one iteration of the GPU's loop on the CPU, after one before it."""
    from vramplan.measure.steps import one_step, prepare
    from vramplan.measure.storages import Storages

    counted = Storages("cpu", {})
    with counted:
        loop = prepare(judged, "cpu")
        one_step(loop)
        counted.restart()
        one_step(loop, counted.enter)
    return counted.peak_bytes


def job(model: dict[str, Any], **keys: Any) -> Any:
    plain: dict[str, Any] = {"micro_batch_size": 4, "global_batch_size": 4, "activation_checkpointing": "none"}
    gpu = {"name": "a card", "memory": "40 GiB", **ABLE}
    plain |= {} if model["family"] in ("vit", "resnet") else {"sequence_length": 256}
    return decide(build_job({"model": model, "gpu": gpu, **plain, **keys}))


def agree(decision: Any) -> None:
    peak = describe(decision).peak
    figures = run_apart(Request(job_to_dict(decision.judged), "trace", 1)).figures
    assert figures.allocated_bytes == peak.allocated_bytes
    phases = (figures.forward_bytes, figures.backward_bytes, figures.step_bytes)
    assert phases == (peak.forward_bytes, peak.backward_bytes, peak.step_bytes)


@pytest.mark.truth
@compiles
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
    agree(job(model, **keys))


@pytest.mark.truth
@compiles
@pytest.mark.parametrize(
    ("model", "keys"),
    [
        (VIT, {"precision": "fp32", "attention": "eager"}),
        (VIT, {"precision": "amp-fp16", "activation_checkpointing": "full"}),
        (VIT, {"precision": "pure-bf16", "optimizer": "sgd-momentum", "optimizer_implementation": "foreach"}),
        (RESNET, {"precision": "fp32", "image_size": 65}),
        (RESNET, {"precision": "amp-bf16", "image_size": 65, "global_batch_size": 8}),
        (RESNET, {"precision": "pure-fp16", "image_size": 64}),
        (LLAMA, {"precision": "amp-bf16", "weight_dtype": "bf16"}),
    ],
    ids=lambda value: value["family"] if "family" in value else "-".join(map(str, value.values())),
)
def test_images_and_halved_weights_agree_to_the_byte(model: dict[str, Any], keys: dict[str, Any]) -> None:
    agree(job(model, **keys))


@pytest.mark.truth
@compiles
@adapts
@pytest.mark.parametrize(
    ("model", "adapter", "keys"),
    [
        (LLAMA, {**LORA, "dropout": 0.1}, {"precision": "amp-bf16", "activation_checkpointing": "full"}),
        (LLAMA, {**LORA, "targets": ["all-linear"]}, {"precision": "amp-bf16", "weight_dtype": "bf16"}),
        (LLAMA, LORA, {"precision": "pure-bf16", "activation_checkpointing": "every:2"}),
        (LLAMA, {**LORA, "dtype": "fp32", "modules_to_save": ["lm_head"]}, {"precision": "pure-bf16"}),
        (LLAMA, {"kind": "dora", "rank": 4}, {"precision": "fp32"}),
        (LLAMA, {"kind": "ia3"}, {"precision": "amp-bf16"}),
        (GPT2, {**LORA, "alpha": 16}, {"precision": "amp-fp16", "global_batch_size": 8}),
        ({**GPT2, "family": "bert", "task": "cls"}, LORA, {"precision": "amp-bf16"}),
        (VIT, {**LORA, "targets": ["q_proj", "v_proj"], "modules_to_save": ["classifier"]}, {"precision": "amp-bf16"}),
        (RESNET, {**LORA, "targets": ["convolution"]}, {"precision": "pure-bf16", "image_size": 65}),
    ],
    ids=range(10),
)
def test_adapters_of_peft_agree_to_the_byte(
    model: dict[str, Any], adapter: dict[str, Any], keys: dict[str, Any]
) -> None:
    agree(job(model, adapter=adapter, **keys))


@pytest.mark.contract
@adapts
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT 0.21 asks by the old name
@pytest.mark.parametrize(
    ("model", "keys"),
    [
        (VIT, {"adapter": {**LORA, "targets": ["all-linear"]}}),
        (RESNET, {"image_size": 64, "adapter": {**LORA, "targets": ["convolution"]}}),
        (LLAMA, {**SMALL, "adapter": LORA}),
    ],
    ids=["vit", "resnet", "llama"],
)
def test_adapted_models_train_on_the_cpu(model: dict[str, Any], keys: dict[str, Any]) -> None:
    from vramplan.measure.steps import one_step, prepare

    judged = job(model, **keys, precision="fp32").judged
    assert allocated_on_cpu(judged) > 0
    loop = prepare(judged, "cpu")
    named = dict(loop.model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in named.items()}
    one_step(loop)
    moved = {name for name, weight in named.items() if not weight.equal(before[name])}
    assert moved
    assert all(".lora_" in name for name in moved)


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=lambda model: str(model["family"]))
def test_the_loop_trains_on_the_cpu(model: dict[str, Any]) -> None:
    plain = allocated_on_cpu(job(model, **SMALL, precision="fp32").judged)
    checkpointed = allocated_on_cpu(job(model, **SMALL, precision="fp32", activation_checkpointing="full").judged)
    assert 0 < checkpointed < plain


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
