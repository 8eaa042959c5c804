"""Liger's kernels in the place of a model's modules: what a job may ask for, and what is saved."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.options import words
from vramplan.replay.models.liger import EVERY

LLAMA: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100", "precision": "pure-bf16", "sequence_length": 512}
STORED: dict[str, Any] = {"micro_batch_size": 2, "activation_checkpointing": "none", "gradient_accumulation_steps": 1}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "runs", "said"),
    [
        ({"model": "gpt2"}, (), "liger_kernels changes nothing: Liger replaces no modules of gpt2"),
        ({"model": "mixtral-8x7b"}, ("rms-norm",), "glu of mixtral: the model's own code is counted, as the kernel"),
        ({"model": "deepseek-v2-lite"}, ("rms-norm",), "liger_kernels glu of deepseek_v2"),
        (
            {"model": "qwen2.5-vl-7b"},
            ("rms-norm", "glu"),
            "stops at a qwen2_5_vl of Transformers 5.23",
        ),
        ({"model": "qwen3-vl-8b", "liger_kernels": ["rope"]}, ("rope",), "stops at a qwen3_vl of Transformers 5.23"),
        ({"model": "gemma-3-4b"}, ("rms-norm", "glu"), None),
        ({"compile": True}, (), "liger_kernels is not modelled in a compiled model"),
        ({"loss": "dpo"}, (), "liger_kernels is not modelled beside a reference model"),
        ({"loss": "dpo", "dpo_reference": "precomputed"}, ("rms-norm", "glu"), None),
    ],
)
def test_what_does_not_run_is_told(keys: dict[str, Any], runs: tuple[str, ...], said: str | None) -> None:
    one = build_job({**LLAMA, "liger_kernels": ["rms-norm", "glu"], **keys})
    assert one.liger_kernels == runs
    assert [said in text for text in one.warnings if "liger" in text] == ([True] if said else [])


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"runtime": "litgpt"}, "Liger replaces no modules of llama under litgpt"),
        ({"runtime": "megatron"}, "liger_kernels: Liger replaces no modules"),
        ({"liger_kernels": ["cross-entropy"]}, "'cross-entropy' is not a known value"),
    ],
)
def test_what_no_program_runs_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**LLAMA, "liger_kernels": ["rms-norm", "glu"], **keys})
    assert said in str(caught.value)


@pytest.mark.contract
def test_the_words_are_those_that_the_replay_knows_and_are_echoed() -> None:
    assert words.LIGER_KERNELS == EVERY
    one = build_job({**LLAMA, "liger_kernels": ["glu", "rope"]})
    assert job_to_dict(one)["liger_kernels"] == ["glu", "rope"]


@pytest.mark.closed_form
def test_each_kernel_saves_what_its_page_says() -> None:
    """Of norms H wide and feed-forward layers F wide, over N rows in 16 bits."""
    rows, hidden, inner, blocks = 2 * 512, 2048, 8192, 16

    def saved(*kernels: str) -> int:
        found = answer(build_job({**LLAMA, **STORED, "liger_kernels": list(kernels)})).peak.saved_bytes
        assert found is not None
        return found

    plain = saved()
    # the cast of the input in fp32 and what is normalised, 4 + 2 bytes, against the input, 2
    norms = (2 * blocks + 1) * rows * hidden * 4
    gates = blocks * rows * inner * 2  # what the activation gave
    assert plain - saved("rms-norm") == norms
    assert plain - saved("glu") == gates
    assert plain == saved("rope")  # the model's own saves cosines and sines too
    assert plain - saved(*EVERY) == norms + gates
