"""Families that nobody traced under Megatron, and its products in fp8: sizes by equations, and what always holds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import run
from vramplan.answers.fit import answer
from vramplan.engines.megatron.fp8 import COPIES
from vramplan.engines.megatron.layers import padded_vocabulary
from vramplan.job import build_job

pytestmark = pytest.mark.plain

FAMILIES = ("bert-base-uncased", "t5-base", "gemma-2-2b", "gemma-3-1b", "falcon-7b", "gpt-oss-20b")


def components(model: str, **keys: Any) -> dict[str, int]:
    job = {"model": model, "gpu": "b200", "runtime": "megatron", "sequence_length": 256, "micro_batch_size": 2}
    return {one.name: one.bytes for one in answer(build_job({**job, **keys})).components}


def weights_of_bert(width: int, layers: int, words: int, positions: int) -> int:
    """BertModel: embeddings, blocks, the last norm, and the heads for words (tied, with a bias) and for the order."""
    rows = padded_vocabulary(words, 1)
    embeddings = (rows + positions + 2) * width
    blocks = layers * (12 * width**2 + 13 * width) + 2 * width
    heads = width**2 + width + 2 * width + rows + width**2 + width + 2 * width + 2
    return embeddings + blocks + heads


def weights_of_t5(width: int, layers: int, words: int, positions: int) -> int:
    """T5Model: the blocks of the decoder have a second attention with its norm, and the tied head has a bias."""
    rows = padded_vocabulary(words, 1)
    encoder = layers * (12 * width**2 + 13 * width) + 2 * width
    decoder = layers * (16 * width**2 + 19 * width) + 2 * width
    return (rows + positions) * width + encoder + decoder + rows


@pytest.mark.closed_form
def test_bert_and_t5_have_the_weights_of_megatrons_modules() -> None:
    found = {name: components(name, precision="mixed-bf16")["weights"] for name in FAMILIES[:2]}
    expected = {
        "bert-base-uncased": 2 * weights_of_bert(768, 12, 30522, 512),
        "t5-base": 2 * weights_of_t5(768, 12, 32128, 512),
    }
    assert found == {name: pytest.approx(size, rel=2e-4) for name, size in expected.items()}  # rounded by tensor


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-3-1b", 999_885_952),
        ("falcon-7b", 6_921_720_704),
        ("gpt-oss-20b", 20_914_757_184),
        ("ministral-3-8b", 8_489_553_920),
    ],
)
def test_decoders_have_as_many_weights_as_published(model: str, parameters: int) -> None:
    assert components(model, precision="mixed-bf16")["weights"] == pytest.approx(2 * parameters, rel=1e-3)


@pytest.mark.closed_form
@pytest.mark.parametrize("model", FAMILIES)
def test_one_replay_stands_for_every_micro_batch(model: str) -> None:
    keys = {"activation_checkpointing": "none", "precision": "mixed-bf16"}
    held = [components(model, micro_batch_size=count, **keys)["activations"] for count in (16, 24, 32)]
    assert held[2] - held[1] == pytest.approx(held[1] - held[0], rel=0.001)


@pytest.mark.closed_form
@pytest.mark.parametrize("model", ["bert-base-uncased", "t5-base", "gemma-2-2b", "falcon-40b"])
def test_two_devices_that_split_layers_hold_half_of_the_weights_each(model: str) -> None:
    whole, half = (components(model, parallel={"tensor": count})["weights"] for count in (1, 2))
    assert half == pytest.approx(whole / 2, rel=0.05)


@pytest.mark.closed_form
def test_weights_stay_in_fp8_too_and_less_is_saved() -> None:
    """Two copies of a byte for each weight of a block's linear layers.

    Of their inputs a byte of two is saved, and of what attention gives, and saves itself, a byte more.
    """
    keys = {"attention": "flash", "activation_checkpointing": "none", "gpu": "b300"}
    half, eight = (components("llama-3-8b", precision=word, **keys) for word in ("mixed-bf16", "fp8"))
    width, inner, keys = 4096, 14336, 1024
    linear = 32 * (2 * width**2 + 2 * width * keys + 3 * width * inner)
    assert eight["buffers"] - half.get("buffers", 0) == pytest.approx(COPIES * linear + (32 << 20), rel=1e-4)
    assert eight["weights"] == half["weights"]
    saved = 2 * 256 * 32 * (width + width + inner - width)  # tokens x blocks x what four linear layers are given
    assert half["activations"] - eight["activations"] == pytest.approx(saved, rel=0.01)


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("model", "parameters", "experts"),
    [
        ("deepseek-v2-lite", 15_706_484_224, 64),
        ("glm-4.5-air", 106_852_245_504, 128),
        ("olmoe-1b-7b", 6_919_161_856, 64),
        ("llama-4-scout-17b-16e", 107_769_861_120, 16),
    ],
)
def test_mixtures_have_as_many_weights_as_published(model: str, parameters: int, experts: int) -> None:
    """Each of so many devices has its part of the experts, and all else: from two numbers of them both follow."""
    few, many = (
        components(model, parallel={"data": count, "expert": count, "sharding": "ddp"}, precision="mixed-bf16")[
            "weights"
        ]
        for count in (experts // 2, experts)
    )
    each = few - many  # one expert of each block
    assert many + (experts - 1) * each == pytest.approx(2 * parameters, rel=2e-3)


@pytest.mark.closed_form
def test_blocks_without_experts_are_on_the_first_stage() -> None:
    """Of DeepSeek-V2 Lite's 27 blocks the first has a plain MLP: its stage holds fewer experts and an embedding."""
    keys = {"sequence_length": 16, "micro_batch_size": 1, "gradient_accumulation_steps": 9, "precision": "mixed-bf16"}
    parallel = {"data": 64, "expert": 64, "pipeline": 9, "pipeline_split": "blocks", "sharding": "ddp"}
    job = {"model": "deepseek-v2-lite", "gpu": "b200", "runtime": "megatron", **keys, "parallel": parallel}
    stages = answer(build_job(job)).stages
    assert stages is not None
    plain, one = 3 * 2048 * 10944, 3 * 3 * 2048 * 1408 + 64 * 2048  # an MLP; one expert, two shared ones and a router
    embedding = 2048 * padded_vocabulary(102400, 1)
    # weights, gradients, a copy and two moments; of the table its gradient in 16 bits too; few tokens beside them
    more = 18 * (plain - one) + (18 + 2) * embedding
    assert stages[0].allocated_bytes - stages[1].allocated_bytes == pytest.approx(more, rel=0.02)


@pytest.mark.closed_form
def test_latents_are_kept_whole_and_heads_are_split() -> None:
    """Two devices have every narrow matrix and half of the wide ones, as `duplicated` has it."""
    keys = {"precision": "mixed-bf16", "activation_checkpointing": "none"}
    whole, half = (
        components("deepseek-v2-lite", parallel={"tensor": count, "sequence_parallel": count > 1}, **keys)
        for count in (1, 2)
    )
    twice = 27 * (2048 * (512 + 64) + 2 * 2048 + 512 + 64 * 2048) + 2048  # narrow matrices, norms and routers
    assert 2 * half["weights"] - whole["weights"] == pytest.approx(2 * twice, rel=0.01)


def test_what_was_never_traced_is_said() -> None:
    words = ("-g", "h100", "--runtime", "megatron", "--seq", "512", "--micro-batch", "1", "--details")
    assert "model t5-base was never traced as t5 under megatron" in " ".join(
        run("fit", "-m", "t5-base", *words).out.split()
    )
    ran = run("fit", "-m", "llama-2-7b", *words, "--precision", "fp8")
    assert "precision fp8 was never traced with llama under megatron" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("-m t5-base --pipeline 2 --seq 512 --gpu h100", "pipeline"),
        ("-m llama-2-7b --precision fp8 --seq 500 --gpu h100", "multiple of 16"),
        ("-m llama-2-7b --precision fp8 --seq 512 --gpu a100", "no fp8"),
        ("-m falcon-rw-1b --seq 512 --gpu h100", "of this kind"),
    ],
)
def test_what_it_cannot_run_is_refused(options: str, word: str) -> None:
    ran = run("fit", "--runtime", "megatron", *options.split())
    assert ran.code == 2
    assert word in ran.err


@pytest.mark.closed_form
def test_whole_experts_on_tensor_parallel_devices_are_as_many_bytes() -> None:
    """`--expert-tensor-parallel-size 1`: two of eight experts on each device, or a fourth of all."""
    split = {"tensor": 4, "sequence_parallel": True}
    keys = {"model": "mixtral-8x7b", "gpu": "b200", "runtime": "megatron", "sequence_length": 256}
    whole, parts = (build_job({**keys, "parallel": {**split, **more}}) for more in ({"expert": 4}, {}))
    assert [one.why for one in whole.assumptions if one.value == 1 and one.key == "parallel.expert"]
    found = [{one.name: one.bytes for one in answer(job).components} for job in (whole, parts)]
    assert found[0]["weights"] == found[1]["weights"]


@pytest.mark.closed_form
def test_megatron_fsdp_shares_weights_gradients_and_states() -> None:
    """Of each parameter 2 bytes, 4 of its gradient, 4 of the copy and 8 of moments, by 8; and what is gathered."""
    keys = {"precision": "mixed-bf16", "activation_checkpointing": "full", "gpu": "b200"}
    shared = {"data": 8, "sharding": "fsdp"}
    found = components("llama-3-8b", parallel=shared, **keys)
    parameters, block, ends = 8_030_261_248, 218_112_000, 2 * 128_256 * 4096 + 4096
    for name, size in (("weights", 2), ("gradients", 4), ("master", 4), ("optimizer", 8)):
        assert found[name] == pytest.approx(size * parameters / 8, rel=1e-3), name
    assert found["communication"] == pytest.approx(2 * (2 + 4) * block + 2 * ends, rel=1e-3)
    whole = components("llama-3-8b", parallel={**shared, "sharding": "fsdp-grad-op"}, **keys)
    assert whole["weights"] == pytest.approx(2 * parameters, rel=1e-3)
    job = build_job({"model": "llama-3-8b", "gpu": "h100", "runtime": "megatron", "parallel": shared})
    assert any(sentence.startswith("parallel.sharding fsdp was never traced") for sentence in job.composed)
