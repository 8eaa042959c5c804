"""Blocks that are trained in turns, by LISA and BAdam: what a job may ask for, and whose states are there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.replay.techniques.trained import all_but_one

JOB: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100", "precision": "pure-bf16", "sequence_length": 256}
PINNED: dict[str, Any] = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "activation_checkpointing": "full"}
BLOCK = 2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 2048 * 8192 + 2 * 2048  # weights of one of 16
REST = 128256 * 2048 + 2048  # a tied table, and the last norm


def component(name: str, **keys: Any) -> int:
    found = answer(build_job({**JOB, **PINNED, **keys})).components
    return sum(one.bytes for one in found if one.name == name)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"adapter": {"kind": "lora"}}, "lisa:2 trains every weight of its blocks, and an adapter none of them"),
        ({"frozen": ["norms"]}, "lisa:2 trains every weight of its blocks, so that parts inside of them cannot stay"),
        ({"parallel": {"data": 2}}, "lisa:2 is modelled on one device and under FSDP"),
        ({"precision": "mixed-bf16"}, "lisa:2 is not modelled with mixed-bf16"),
        ({"trained_blocks": "lisa:17"}, "lisa:17 trains more blocks than the 16"),
        ({"trained_blocks": "badam", "optimizer": "muon"}, "badam is not modelled with muon"),
        (
            {"trained_blocks": "badam", "optimizer": "adam-mini"},
            "badam cannot run with adam-mini: it looks up the names",
        ),
        ({"trained_blocks": "badam", "optimizer": "adamw-optimi"}, "badam cannot run with adamw-optimi: it groups no"),
        (
            {"trained_blocks": "badam", "model": "gpt2"},
            "finds blocks by the name layers, and those of gpt2 are called h",
        ),
        ({"trained_blocks": "badam", "adapter": {"kind": "ia3"}}, "badam trains all of its block and nothing else"),
        ({"model": "t5-base"}, "blocks of one list"),
        (
            {"trained_blocks": "badam", "model": "clip-vit-base-patch32", "sequence_length": None},
            "badam is modelled for one stack of blocks, or a second one that reads what the first gives",
        ),
        ({"trained_blocks": "lisa"}, "lisa:N"),
    ],
)
def test_what_is_not_modelled_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**JOB, "trained_blocks": "lisa:2", **keys})
    assert said in str(caught.value)


@pytest.mark.contract
def test_the_key_is_echoed_and_not_the_blocks_that_it_stands_for() -> None:
    one = build_job({**JOB, "trained_blocks": "lisa:2"})
    echoed = job_to_dict(one)
    assert (echoed["trained_blocks"], echoed["frozen"], one.frozen) == ("lisa:2", [], ("layers.0-13",))
    assert build_job(echoed).frozen == one.frozen


@pytest.mark.contract
def test_badam_turns_the_blocks_of_an_encoder_and_a_decoder() -> None:
    """Most is needed where the first of all is trained, as nothing before it saves anything; else by the last."""
    one = build_job({**JOB, "model": "bart-base", "trained_blocks": "badam", "target_length": 64})
    assert one.frozen == ("encoder.layers.0-5", "decoder.layers.0-4")
    assert all_but_one(one.model, first=True) == ("encoder.layers.1-5", "decoder.layers.0-5")


@pytest.mark.closed_form
def test_lisa_keeps_all_states_and_badam_those_of_one_block() -> None:
    counters = 9 * 512  # of a block's weights, where the step is fused
    whole = component("optimizer", optimizer_implementation="fused")
    assert component("optimizer", trained_blocks="lisa:2", optimizer_implementation="fused") == whole
    assert component("gradients", trained_blocks="lisa:2") <= 2 * (2 * BLOCK + REST) < component("gradients")
    badam = {"trained_blocks": "badam", "optimizer_implementation": "fused"}
    assert component("optimizer", **badam) == 2 * 4 * BLOCK + counters
    assert component("master", **badam) == 4 * BLOCK
