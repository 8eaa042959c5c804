"""Virtual tokens: what a job says of them, what they do not go with, and how many numbers are trained."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.cli.running import TINY
from tests.job.tiny import KEYS
from tests.traces.drawn import IMAGES_AND_TEXT, model_of
from tests.traces.models import CONFIGS
from vramplan.catalog.config_classes import FAMILY_OF
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.planner import setups
from vramplan.planner.choose import strategies_of
from vramplan.replay.evaluation import generation_bytes
from vramplan.replay.models.capable import takes_virtual_tokens
from vramplan.replay.step import replay
from vramplan.replay.techniques.evidence import adaptable

pytestmark = pytest.mark.closed_form

WIDTH, LAYERS = TINY["hidden_size"], TINY["layers"]
SEQ2SEQ = {
    "name": "t5",
    "transformers_model_type": "t5",
    "task": "seq2seq",
    "layers": 2,
    "decoder_layers": 2,
    "hidden_size": 64,
    "attention_heads": 2,
    "intermediate_size": 160,
    "vocabulary_size": 1000,
}


def trained(adapter: dict[str, Any], **more: Any) -> int:
    job = build_job({**KEYS, **more, "adapter": adapter})
    return replay(setups.setup_of(job, "none", False), batch=2).trainable_parameters


@pytest.mark.parametrize(
    ("adapter", "parameters"),
    [
        ({"kind": "prompt-tuning", "virtual_tokens": 7}, 7 * WIDTH),
        ({"kind": "p-tuning", "virtual_tokens": 7}, 7 * WIDTH + 3 * (WIDTH + 1) * WIDTH),
        (
            {"kind": "p-tuning", "virtual_tokens": 7, "encoder_hidden_size": 10},
            7 * WIDTH + (WIDTH + 1) * 10 + 11 * 10 + 11 * WIDTH,
        ),
        ({"kind": "prefix-tuning", "virtual_tokens": 7}, 7 * 2 * LAYERS * WIDTH),
        (
            {"kind": "prefix-tuning", "virtual_tokens": 7, "prefix_projection": True, "encoder_hidden_size": 10},
            7 * WIDTH + (WIDTH + 1) * 10 + 11 * 2 * LAYERS * WIDTH,
        ),
    ],
)
def test_what_is_trained_are_the_tokens_and_what_makes_them(adapter: dict[str, Any], parameters: int) -> None:
    assert trained(adapter) == parameters


def test_a_prefix_has_as_many_heads_as_there_are_of_keys() -> None:
    grouped = {**TINY, "key_value_heads": 1}
    adapter = {"kind": "prefix-tuning", "virtual_tokens": 7}
    assert trained(adapter, model=grouped, attention="eager") == 7 * LAYERS * WIDTH


def test_a_pair_of_stacks_has_a_prompt_for_each() -> None:
    assert trained({"kind": "prompt-tuning", "virtual_tokens": 7}, model=SEQ2SEQ, attention="eager") == 14 * 64


def test_the_head_of_a_classification_is_trained_too() -> None:
    model = {**TINY, "task": "cls", "classes": 3}
    assert trained({"kind": "prompt-tuning", "virtual_tokens": 7}, model=model) == 7 * WIDTH + 3 * WIDTH


@pytest.mark.parametrize("kind", ["prompt-tuning", "p-tuning"])
def test_no_gradient_reaches_the_copy_of_a_table_that_is_saved(kind: str) -> None:
    """The tokens are looked up in the original, which was found before the modules to save were copied."""
    adapter = {"kind": kind, "virtual_tokens": 7}
    saved = build_job({**KEYS, "adapter": {**adapter, "modules_to_save": ["embed_tokens"]}})
    record = replay(setups.setup_of(saved, "none", False), batch=2)
    assert record.reached_parameters == trained(adapter)
    assert record.trainable_parameters == trained(adapter) + TINY["vocabulary_size"] * WIDTH


def peak(adapter: dict[str, Any], tokens: int) -> int:
    job = build_job({**KEYS, "sequence_length": tokens, "precision": "pure-bf16", "adapter": adapter})
    return replay(setups.setup_of(job, "none", False), batch=2).peak_bytes(2)


def test_virtual_tokens_come_on_top_of_the_sequence() -> None:
    """But for what is trained and what the text has of its own: ids and labels, which no virtual token has."""
    few, many = (peak({"kind": "prompt-tuning", "virtual_tokens": number}, 128 - number) for number in (8, 64))
    assert abs(few - many) < few / 50
    assert peak({"kind": "prompt-tuning", "virtual_tokens": 64}, 128) > 1.3 * many


@pytest.mark.parametrize("kind", ["prompt-tuning", "p-tuning", "prefix-tuning"])
def test_there_are_twenty_where_nobody_says_how_many(kind: str) -> None:
    job = build_job({**KEYS, "adapter": kind})
    assert job.adapter is not None
    assert job.adapter.virtual_tokens == 20
    assert any(one.key == "adapter.virtual_tokens" for one in job.assumptions)
    echoed = job_to_dict(job)
    assert not {"rank", "targets", "alpha", "dropout", "kernels"} & {*echoed["adapter"]}
    assert build_job(echoed).adapter == job.adapter


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"adapter": {"kind": "prompt-tuning", "rank": 8}}, "rank: has no meaning for prompt-tuning"),
        (
            {"adapter": {"kind": "prompt-tuning", "encoder_hidden_size": 8}},
            "encoder_hidden_size: has no meaning for prompt-tuning",
        ),
        (
            {"adapter": {"kind": "prefix-tuning", "encoder_hidden_size": 8}},
            "encoder_hidden_size: has no meaning without prefix_projection",
        ),
        ({"adapter": {"kind": "lora", "virtual_tokens": 8}}, "virtual_tokens: has no meaning for lora"),
        ({"adapter": "prompt-tuning", "packing": True}, "packing: true means nothing beside virtual tokens"),
        ({"adapter": "prompt-tuning", "loss": "orpo"}, "loss: orpo is not modelled with prompt-tuning"),
        ({"adapter": "prompt-tuning", "label_smoothing": 0.1}, "label_smoothing: the Trainer's smoothed labels"),
        (
            {"adapter": "prefix-tuning", "activation_checkpointing": "full"},
            "activation_checkpointing: full does not go with prefix-tuning",
        ),
        ({"adapter": "prefix-tuning", "model": SEQ2SEQ}, "prefix-tuning is not modelled for t5"),
        ({"adapter": "prompt-tuning", "model": "vit-base-patch16-224"}, "PEFT has no class"),
        ({"adapter": "prompt-tuning", "frozen": ["lora_A"]}, "frozen: lora_A belongs to LoRA: prompt-tuning has none"),
    ],
)
def test_what_does_not_go_together(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        build_job({**KEYS, **change})


def test_virtual_tokens_are_in_the_cache_of_a_generation() -> None:
    job = build_job({**KEYS, "adapter": {"kind": "prefix-tuning", "virtual_tokens": 64}})
    setup = setups.setup_of(job, "none", False)
    assert setup.adapter is not None
    record = replay(setup, batch=2)
    without = setup._replace(adapter=setup.adapter._replace(virtual_tokens=0))
    more = generation_bytes(setup, record, 4, 32) - generation_bytes(without, record, 4, 32)
    assert more >= 2 * LAYERS * 4 * 64 * WIDTH * 2


def test_flash_attention_needs_no_mask_behind_a_prefix_and_was_never_traced() -> None:
    job = build_job({**KEYS, "precision": "pure-bf16", "attention": "flash", "adapter": "prefix-tuning"})
    assert "adapter prefix-tuning was never traced together with attention flash, which has no mask" in job.composed


def test_no_checkpoints_are_tried_beside_a_prefix() -> None:
    job = build_job({**KEYS, "adapter": "prefix-tuning"})
    assert strategies_of(job) == ("none",)
    assert len(strategies_of(build_job({**KEYS, "adapter": "prompt-tuning"}))) > 1


def test_a_prefix_has_no_checkpoints_where_a_job_leaves_them_open() -> None:
    job = build_job(
        {**{key: one for key, one in KEYS.items() if "checkpointing" not in key}, "adapter": "prefix-tuning"}
    )
    assert job.activation_checkpointing == "none"
    assert job.attention == "efficient"


TYPES = tuple(
    name
    for name in CONFIGS
    if name not in IMAGES_AND_TEXT and takes_virtual_tokens(FAMILY_OF.get(name, "vit")) and name in adaptable()
)


@pytest.mark.parametrize("name", TYPES)
def test_every_family_that_says_so_asks_for_the_tokens(name: str, tmp_path: Path) -> None:
    """Else the loss would not depend on anything that is trained."""
    path = model_of(Random(1), name, tmp_path)
    head = f"{name.title()}ForSequenceClassification"
    if name in ("bert", "ernie"):  # whose masked tokens PEFT has no class for
        task = json.loads(Path(path).read_text("utf-8")) | {"architectures": [head]}
        Path(path).write_text(json.dumps(task), "utf-8")
    keys = {**KEYS, "model": path, "attention": "eager", "sequence_length": 16, "adapter": "prompt-tuning"}
    job = build_job(keys)
    record = replay(setups.setup_of(job, "none", False), batch=2)
    assert record.reached_parameters == record.trainable_parameters > 0
