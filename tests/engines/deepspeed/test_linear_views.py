"""Linear layers of ZeRO-3 that are `F.linear`: autograd keeps views of what was gathered for them.

DeepSpeed keeps weights that come again within a number of elements, 1e9 unless a configuration says so; the distance is
made smaller than the model, as in test_reuse_distance.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.deepspeed.test_reuse_distance import FULL, JOB, LORA, PARALLEL, STORED
from tests.oracle.compare import phases_of
from vramplan.engines.deepspeed import zero3_gathered
from vramplan.job import build_job

QWEN2 = {"transformers_model_type": "qwen2", "qkv_bias": True, "tied_embeddings": True}
GPT2 = {
    "model": {
        "name": "six-blocks",
        "family": "gpt2",
        "layers": 6,
        "hidden_size": 96,
        "attention_heads": 6,
        "intermediate_size": 384,
        "vocabulary_size": 1003,
        "max_positions": 128,
    }
}
DISTANCE = 100_000


def _job(keys: dict[str, Any], model: dict[str, Any] | None = None) -> dict[str, Any]:
    parallel = {**PARALLEL, "stage3_max_live_parameters": 200_000, "memory_efficient_linear": False}
    return {**JOB, "model": {**JOB["model"], **(model or {})}, **keys, "parallel": parallel}


@pytest.mark.truth
@pytest.mark.parametrize(
    ("job", "traced"),
    [
        (_job(STORED), (13_790_208, 13_918_208, 11_495_936)),
        (_job({**STORED, "sequence_length": 128}), (24_200_704, 24_710_656, 11_499_008)),
        (_job(STORED, QWEN2), (13_053_440, 13_181_440, 10_457_600)),
        (_job({**STORED, "adapter": LORA}), (7_575_552, 7_691_264, 2_564_608)),
        (_job({**STORED, **GPT2}), (9_550_848, 9_678_848, 8_603_648)),
        (_job(FULL), (9_637_376, 9_765_376, 11_495_936)),
        (_job({**FULL, "checkpoint_reentrant": True}), (9_637_376, 9_765_376, 11_495_936)),
        (_job(FULL, QWEN2), (8_900_608, 9_028_608, 10_457_600)),
        (_job({**FULL, "adapter": LORA}), (3_605_504, 3_721_216, 2_564_608)),
    ],
)
def test_gathered_weights_stay_until_backward_as_in_the_trace(
    job: dict[str, Any], traced: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rig `zero`, DeepSpeed 0.19.8, `memory_efficient_linear: false`, with stage3_max_reuse_distance at 100000."""
    monkeypatch.setattr(zero3_gathered, "MAX_REUSE_DISTANCE", DISTANCE)
    assert tuple(phases_of(build_job(job)).values()) == traced
