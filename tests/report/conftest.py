"""Answers made by hand: the renderers never decide, so no planner is needed to test them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramplan.errors import Problem
from vramplan.options.flags import flags_of
from vramplan.results import Alternative, Component, FitResult, Peak, Recommendation, Remedy
from vramplan.results.listings import CheckRow, FieldRow, GpuRow, ModelRow, ProfileView, SourceRow, ValidateRow
from vramplan.values.job import Assumption

GIB = 1 << 30


def gib(size: float) -> int:
    return int(size * GIB)


def answer(
    *,
    model: str = "gpt2-xl",
    gpu: str = "v100",
    parts: list[tuple[str, int, str]],
    overheads: list[tuple[str, int, str]],
    capacity: int = gib(31.74),
    reserve: int = 0,
    low: int | None = None,
    high: int | None = None,
    job: dict[str, Any] | None = None,
    phase: str = "backward",
    operator: str = "lm_head: matrix product",
    **rest: Any,
) -> FitResult:
    allocated = sum(size for _, size, _ in parts)
    device = allocated + sum(size for _, size, _ in overheads)
    reserved = allocated + (overheads[0][1] if overheads else 0)
    low = allocated + (device - reserved) // 2 if low is None else low
    high = allocated * 11 // 10 + device - reserved if high is None else high
    usable = capacity - reserve
    values: dict[str, Any] = {
        "name": f"{model} on {gpu}",
        "verdict": "fits" if high <= usable else "tight" if low <= usable else "does-not-fit",
        "job": {
            "model": {"name": model, "family": "gpt2"},
            "gpu": {"name": gpu, "memory": f"{capacity} B"},
            "sequence_length": 1024,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 256,
            "global_batch_size": 512,
            "precision": "amp-fp16",
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
            "activation_checkpointing": "sqrt",
            "attention": "efficient",
            "parallel": {"data": 1},
            "runtime": "transformers",
            **(job or {}),
        },
        "capacity_bytes": capacity,
        "usable_bytes": usable,
        "headroom_bytes": usable - device,
        "utilization": device / usable,
        "total_parameters": 1_557_611_200,
        "trainable_parameters": 1_557_611_200,
        "peak": Peak(
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=device,
            low_bytes=low,
            high_bytes=high,
            phase=phase,
            operator=operator,
            forward_bytes=allocated * 9 // 10,
            backward_bytes=allocated,
            step_bytes=allocated * 8 // 10,
            saved_bytes=allocated // 20,
        ),
        "components": tuple(Component(*part) for part in parts),
        "overheads": tuple(Component(*part) for part in overheads),
        "recommended": Recommendation(
            micro_batch_size=2,
            gradient_accumulation_steps=256,
            global_batch_size=512,
            largest_micro_batch_size=2,
            activation_checkpointing="sqrt",
            flags="--micro-batch 2 --gradient-accumulation-steps 256 --checkpointing sqrt",
        ),
        "checkpoints": tuple((first, min(first + 6, 47)) for first in range(0, 48, 7)),
        "alternatives": (),
        "remedies": (),
        "assumptions": (),
        "warnings": (),
    }
    result = FitResult(**{**values, **rest})
    return result._replace(remedies=tuple(typed(remedy, result) for remedy in result.remedies or ()))


def typed(remedy: Remedy, result: FitResult) -> Remedy:
    """A remedy with what follows from its change: the options, and the peak on the same card."""
    return remedy._replace(
        option=flags_of(remedy.change),
        device_bytes=result.peak.device_bytes - remedy.saves_bytes,
        usable_bytes=result.usable_bytes,
    )


STATES = [
    ("weights", 6_230_444_800, "1,557,611,200 parameters, fp32"),
    ("optimizer", 12_460_889_600, "AdamW's m and v, fp32"),
    ("gradients", 6_230_444_800, "fp32, kept between the micro-steps of the accumulation"),
]
ASSUMED = (
    Assumption("precision", "amp-fp16", "auto: v100 has no bf16"),
    Assumption("attention", "efficient", "sdpa: v100 cannot run the flash kernel, which needs Ampere or later"),
    Assumption("optimizer_implementation", "fused", "what the Trainer of Transformers takes"),
    Assumption("global_batch_size", 512, "the default"),
    Assumption("dropout", 0.1, "the model's own"),
)


def fits() -> FitResult:
    allocated = gib(27.186)
    rest = allocated - sum(size for _, size, _ in STATES)
    parts = [
        *STATES,
        ("activations", int(rest * 0.42), "saved by the segment being recomputed, and the segment inputs"),
        ("weight_casts", int(rest * 0.24), "half copies of the segment's weights"),
        ("temporaries", rest - int(rest * 0.42) - int(rest * 0.24) - 73728, "cross entropy in fp32"),
        ("inputs", 73728, "token ids and labels"),
    ]
    return answer(
        parts=parts,
        overheads=[
            ("allocator", int(allocated * 0.04), "1.04 of allocated: blocks that cannot be reused"),
            ("context", gib(1.3), "CUDA context and kernels, from the runtime profile"),
        ],
        alternatives=(
            alternative("none", "does-not-fit", 1, 512, 42.71, 0, 0.0),
            alternative("sqrt", "fits", 2, 256, (allocated * 1.04 + gib(1.3)) / GIB, 2, 0.3296),
            alternative("full", "fits", 1, 512, 28.31, 3, 0.3296),
        ),
        assumptions=ASSUMED,
        warnings=("v100 is the 32 GiB part; the 16 GiB part is v100-16gb",),
    )


def alternative(
    name: str, verdict: str, micro: int, steps: int | None, device: float, largest: int, extra: float
) -> Alternative:
    return Alternative(
        activation_checkpointing=name,
        verdict=verdict,
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
        allocated_bytes=int((device - 1.3) * GIB / 1.04),
        device_bytes=int(device * GIB),
        largest_micro_batch_size=largest,
        recomputed_fraction=extra,
    )


def tight() -> FitResult:
    result = fits()
    return answer(
        parts=[(part.name, part.bytes, part.basis) for part in result.components],
        overheads=[(part.name, part.bytes, part.basis) for part in result.overheads],
        reserve=gib(1.5),
        job={"reserve": "1.5 GiB"},
        alternatives=result.alternatives,
    )._replace(
        verdict="tight",
    )


def unlikely() -> FitResult:
    result = fits()
    parts = [(part.name, part.bytes, part.basis) for part in result.components]
    overheads = [(part.name, part.bytes, part.basis) for part in result.overheads]
    return answer(
        parts=parts,
        overheads=overheads,
        capacity=gib(29.0),
        job={"parallel": {"data": 4}, "gradient_accumulation_steps": 64},
        recommended=Recommendation(
            micro_batch_size=2,
            gradient_accumulation_steps=64,
            global_batch_size=512,
            largest_micro_batch_size=1,
            activation_checkpointing="sqrt",
            flags="--micro-batch 2 --gradient-accumulation-steps 64 --checkpointing sqrt --gpus 4",
        ),
        alternatives=result.alternatives[1:],
        remedies=(
            Remedy(change={"micro_batch_size": 1}, saves_bytes=gib(2.61), cost="twice the steps", verdict="fits"),
        ),
        warnings=("the headroom is negative: more likely not",),
    )


def no() -> FitResult:
    return answer(
        model="llama-3.1-8b",
        gpu="rtx-4090",
        capacity=gib(23.65),
        parts=[
            ("weights", 8_030_261_248 * 4, "8,030,261,248 parameters, fp32"),
            ("optimizer", 8_030_261_248 * 8, "AdamW's m and v, fp32"),
            ("gradients", 8_030_261_248 * 4, "fp32"),
            ("activations", gib(1.02), "the segment inputs"),
            ("temporaries", gib(0.4), "fused AdamW"),
            ("buffers", 512, "rotary frequencies"),
        ],
        overheads=[
            ("allocator", gib(4.9), "1.04 of allocated"),
            ("context", gib(0.6), "CUDA context and kernels, from the runtime profile"),
        ],
        phase="step",
        operator="adamw",
        job={
            "precision": "amp-bf16",
            "attention": "flash",
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 512,
            "activation_checkpointing": "full",
            "sequence_length": 2048,
        },
        total_parameters=8_030_261_248,
        trainable_parameters=8_030_261_248,
        recommended=Recommendation(
            micro_batch_size=None,
            gradient_accumulation_steps=None,
            global_batch_size=None,
            largest_micro_batch_size=0,
            activation_checkpointing=None,
            flags=None,
        ),
        checkpoints=tuple((block, block) for block in range(32)),
        alternatives=(
            alternative("none", "does-not-fit", 1, 512, 148.2, 0, 0.0),
            alternative("sqrt", "does-not-fit", 1, 512, 133.9, 0, 0.3301),
            alternative("full", "does-not-fit", 1, 512, 131.5, 0, 0.3301),
        ),
        remedies=(
            Remedy(
                change={"precision": "pure-bf16", "optimizer": "adafactor"},
                saves_bytes=gib(109.2),
                cost="weights are rounded to bf16 at every step; other optimizer, other learning rate",
                verdict="fits",
            ),
            Remedy(change={"gpu": "h200"}, saves_bytes=0, cost="another GPU", verdict="fits"),
            Remedy(
                change={"optimizer_implementation": "for-loop", "hold_outputs": False, "sequence_length": 512},
                saves_bytes=gib(108.0),
                cost="slower step",
                verdict="tight",
            ),
        ),
        assumptions=ASSUMED[2:],
    )


def huge() -> FitResult:
    return answer(
        model="a-very-long-model-name-" * 5 + "end",
        gpu="/data/clusters/europe-west4/profiles/gpus/" + "x" * 70 + ".yaml",
        parts=[
            ("weights", 10**16, "2,500,000,000,000,000 parameters"),
            ("activations", 10**15 + 7, "stored"),
            ("some_new_component_of_a_later_version", 12345, "unheard of"),
        ],
        overheads=[("allocator", 10**13, ""), ("nccl", 10**12, "channels"), ("context", 10**9, "")],
        capacity=gib(80),
        operator="model.decoder.layers.117.encoder_attention.query_key_value_projection.linear: matrix product",
        job={"activation_checkpointing": "layers:" + "[[0,6],[7,13]]" * 30},
        recommended=Recommendation(
            micro_batch_size=1,
            gradient_accumulation_steps=512,
            global_batch_size=512,
            largest_micro_batch_size=0,
            activation_checkpointing="layers:[" + ",".join(f"[{k},{k + 1}]" for k in range(0, 400, 2)) + "]",
            flags="--checkpointing '"
            + "layers:["
            + ",".join(f"[{k},{k + 1}]" for k in range(0, 400, 2))
            + "]' --reserve '2 GiB' --micro-batch 1",
        ),
        checkpoints=tuple((block, block + 1) for block in range(0, 400, 2)),
        alternatives=(alternative("layers:[" + "[0,6]," * 40 + "]", "does-not-fit", 12345, None, 1e7, 10**9, 1.5),),
        warnings=("evil \x1b[31mname\x07 and\na second line",),
    )


def tiny() -> FitResult:
    return answer(
        model="größe-模型 4×4",
        gpu="tiny",
        parts=[("weights", 1, ""), ("activations", 3, "")],
        overheads=[],
        capacity=gib(1),
        low=4,
        high=4,
        total_parameters=1,
        trainable_parameters=1,
        checkpoints=(),
        recommended=Recommendation(
            micro_batch_size=512,
            gradient_accumulation_steps=1,
            global_batch_size=512,
            largest_micro_batch_size=123_456_789,
            activation_checkpointing="none",
            flags="--micro-batch 512 --checkpointing none",
        ),
    )


def rows_of_check() -> tuple[CheckRow, ...]:
    return (
        CheckRow(name="gpt2-xl on one V100", result=fits(), passed=True, exit_code=0),
        CheckRow(
            name="with another tenant",
            result=tight(),
            passed=True,
            exit_code=0,
            reasons=("the range reaches above 100%",),
        ),
        CheckRow(
            name="llama on a gaming card",
            result=no(),
            passed=False,
            exit_code=3,
            reasons=("does-not-fit, expected fits", "102.94 GiB too much"),
        ),
        CheckRow(
            name="a typing error",
            result=None,
            passed=False,
            exit_code=2,
            problems=(
                Problem("unknown model 'gtp2'", "model", "did you mean gpt2?", "jobs.yaml", 12, 5),
                Problem("must be a positive integer", "sequence_length", None, "jobs.yaml", 13, 5),
            ),
        ),
    )


def rows_of_validate() -> tuple[ValidateRow, ...]:
    def row(name: str, metric: str, runtime: str, error: float) -> ValidateRow:
        return ValidateRow(
            name=name,
            result=fits(),
            metric=metric,
            runtime=runtime,
            predicted_bytes=int(gib(20) * (1 + error)),
            measured_bytes=gib(20),
            relative_error=error,
            outcome="fits",
            measured_outcome="fits",
        )

    return (
        row("litgpt-pythia-1b", "allocated", "litgpt", -0.012),
        row("litgpt-pythia-2.8b", "allocated", "litgpt", 0.03),
        row("titan-8b-8g-fsdp", "reserved", "torchtitan", 0.081),
        ValidateRow(
            name="deepspeed-oom", result=no(), runtime="deepspeed", outcome="oom", measured_outcome="fits", exit_code=0
        ),
        ValidateRow(name="mixtral", result=None, problems=(Problem("mixtral is not modelled yet", key="family"),)),
    )


GPUS = (
    GpuRow(
        name="v100",
        title="NVIDIA Tesla V100 SXM2 32 GB",
        capacity_bytes=gib(31.74),
        capacity_basis="visible",
        architecture="volta",
        compute_capability="7.0",
        bf16=False,
        flash_attention=False,
        aliases=("v100-32gb", "tesla-v100"),
    ),
    GpuRow(name="mystery", capacity_bytes=gib(80), capacity_basis="nominal"),
)
MODELS = (
    ModelRow(
        name="gpt2-xl",
        family="gpt2",
        parameters=1_557_611_200,
        layers=48,
        hidden_size=1600,
        attention_heads=25,
        key_value_heads=25,
        vocabulary_size=50257,
        max_positions=1024,
        aliases=("openai-community/gpt2-xl",),
    ),
    ModelRow(name="unknown", family="llama", parameters=None, layers=None, hidden_size=None),
)
PROFILE = ProfileView(
    kind="gpu",
    name="v100",
    title="NVIDIA Tesla V100 SXM2 32 GB",
    aliases=("v100-32gb", "tesla-v100"),
    file="profiles/gpus/v100.yaml",
    fields=(
        FieldRow(
            key="memory",
            value=31.74,
            unit="GiB",
            source=SourceRow(
                title="an out-of-memory message", url="https://example.org/issues/1?a=b", date="2026-11-20"
            ),
        ),
        FieldRow(key="bf16", value=False, source=SourceRow(title="CUDA programming guide", date="2026-11-20")),
        FieldRow(key="price", value=None, unit="USD", reason="no vendor prints one"),
        FieldRow(key="kernels", value=["eager", "efficient"], note="flash needs Ampere"),
    ),
)


EXAMPLES = {
    "fits": fits(),
    "tight": tight(),
    "tight, more likely not": unlikely(),
    "does not fit": no(),
    "huge": huge(),
    "tiny": tiny(),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "example" in metafunc.fixturenames:
        metafunc.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


@pytest.fixture
def examples() -> dict[str, FitResult]:
    return EXAMPLES


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Set VRAMPLAN_UPDATE_GOLDEN=1 to write what is printed now; read the difference before you commit it.

    A name without a suffix is that of a text.
    """
    folder = Path(__file__).parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / (name if "." in name else f"{name}.txt")
        if os.environ.get("VRAMPLAN_UPDATE_GOLDEN"):
            folder.mkdir(exist_ok=True)
            path.write_bytes(text.encode("ascii"))
        assert text == path.read_bytes().decode("ascii")

    return compare


@pytest.fixture
def check_rows() -> tuple[CheckRow, ...]:
    return rows_of_check()


@pytest.fixture
def validate_rows() -> tuple[ValidateRow, ...]:
    return rows_of_validate()


@pytest.fixture
def gpu_rows() -> tuple[GpuRow, ...]:
    return GPUS


@pytest.fixture
def model_rows() -> tuple[ModelRow, ...]:
    return MODELS


@pytest.fixture
def profile() -> ProfileView:
    return PROFILE
