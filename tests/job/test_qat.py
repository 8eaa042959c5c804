"""Quantization-aware training: what is asked for, what is refused, and what a layer keeps."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.api import fit
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.options.flags import flags_of
from vramplan.planner import setups
from vramplan.replay.record import Record
from vramplan.replay.step import replay
from vramplan.values.job import FakeQuantization

LLAMA = {"model": "llama-3.2-1b", "gpu": "h100"}
EIGHTS = {"weights": "int4", "activations": "int8"}
LORA = {"kind": "lora", "targets": ["q_proj", "v_proj"]}


def record_of(keys: dict[str, Any], strategy: str = "none") -> Record:
    """One iteration of two samples."""
    job = build_job({**LLAMA, "precision": "pure-bf16", "sequence_length": 512, **keys})
    return replay(setups.setup_of(job, strategy, False))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("int4", FakeQuantization("int4", None, 32)),
        ({"weights": "torch.int4", "activations": "torch.int8"}, FakeQuantization("int4", "int8", 32)),
        ({"weights": "fp8", "activations": "float8_e4m3fn"}, FakeQuantization("fp8", "fp8", None)),
        ({"weights": "int4-mslk", "group_size": 128}, FakeQuantization("int4-mslk", None, 128)),
        ({"weights": "int8", "embedding": True}, FakeQuantization("int8", None, 32, True)),
        ("mxfp4", FakeQuantization("mxfp4", "mxfp4", 32)),
        (None, None),
    ],
    ids=str,
)
def test_what_is_asked_for(given: Any, meant: FakeQuantization | None) -> None:
    job = build_job({**LLAMA, "qat": given})
    assert job.qat == meant
    again = build_job(job_to_dict(job))
    assert again.qat == meant


def test_nvfp4_is_of_gpus_that_multiply_in_it() -> None:
    job = build_job({**LLAMA, "gpu": "b200", "precision": "pure-bf16", "qat": {"weights": "nvfp4", "group_size": 16}})
    assert job.qat == FakeQuantization("nvfp4", "nvfp4", 16)


def test_it_is_typed_as_options() -> None:
    assert flags_of({"qat": EIGHTS}) == "--qat int4 --qat-activations int8"


def test_torchtune_rounds_as_its_recipes_do() -> None:
    keys = {"model": "llama-3.1-8b", "runtime": "torchtune", "qat": EIGHTS}
    whole, beside = build_job({**LLAMA, **keys}), build_job({**LLAMA, **keys, "adapter": LORA})
    assert whole.qat == FakeQuantization("int4", "int8", 32, zero_points="fp32", skips=True)
    assert beside.qat == FakeQuantization("int4", "int8", 32, zero_points="fp32", adapted_only=True)


ODD = {
    "name": "odd",
    "family": "llama",
    "layers": 2,
    "attention_heads": 2,
    "intermediate_size": 512,
    "vocabulary_size": 1024,
    "max_positions": 4096,
}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"qat": {"weights": "int4", "group_size": 48}}, "groups of 48 do not divide the 2048 numbers of a row"),
        ({"qat": {"weights": "fp8", "group_size": 32}}, "fp8 has a scale for each row"),
        ({"qat": {"activations": "int8"}}, "qat.weights: required key is missing"),
        ({"qat": "int3"}, "'int3' is not a known value"),
        ({"qat": "int4", "precision": "fp8"}, "fp8 and qat each replace the linear layers"),
        ({"qat": "int4", "adapter": LORA, "quantization": "nf4"}, "which nf4 has stored in few bits already"),
        (
            {"qat": "int4", "weight_dtype": "bf16", "adapter": {**LORA, "targets": ["all-linear"], "kernels": ["qkv"]}},
            "multiply weights that are not rounded",
        ),
        ({"qat": "int4", "model": "llama-4-scout-17b-16e"}, "whose router is a linear layer that returns two tensors"),
        ({"qat": "int4", "runtime": "litgpt", "model": "llama-2-7b"}, "is known that rounds the weights of its layers"),
        ({"qat": "fp8", "runtime": "torchtune"}, "torchtune has no quantizer of fp8 weights, no inputs"),
        ({"qat": EIGHTS, "runtime": "torchtune", "compile": True}, "do not compile"),
        ({"qat": {"weights": "mxfp4", "activations": "int8"}}, "no layer of mxfp4 weights with int8 inputs"),
        ({"qat": {"weights": "int4", "activations": "mxfp4"}}, "no layer of int4 weights with mxfp4 inputs"),
        ({"qat": {"weights": "nvfp4", "group_size": 32}}, "nvfp4 has a scale for 16 numbers"),
        ({"qat": {"weights": "mxfp4", "embedding": True}, "precision": "pure-bf16"}, "no table of embeddings"),
        ({"qat": "mxfp4", "precision": "pure-fp16"}, "rounds fp32 and bf16 to mxfp4, and no fp16"),
        ({"qat": "mxfp4", "precision": "amp-bf16", "weight_dtype": "fp32"}, "the product of an input in fp32"),
        ({"qat": "nvfp4", "precision": "pure-bf16"}, "multiplies no nvfp4, which needs compute capability 10.0"),
        (
            {"qat": "nvfp4", "gpu": "b200", "model": "gpt2", "precision": "pure-bf16"},
            "has 50257 outputs, and products in nvfp4 need",
        ),
        (
            {"qat": "nvfp4", "gpu": "b200", "model": {**ODD, "hidden_size": 272}, "precision": "pure-bf16"},
            "the 272 numbers of a row of odd are no multiple of 32, which products in nvfp4 need",
        ),
    ],
    ids=str,
)
def test_what_does_not_go_with_it_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**LLAMA, **keys})
    assert any(message in str(problem) for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("weights", "each"), [("int4", 4), ("int8", 4), ("fp8", 14), ("int4-mslk", 16), ("int4-mslk-fp8", 22)]
)
def test_what_a_layer_keeps_of_each_weight(weights: str, each: int) -> None:
    """The table of docs/qat.md: beside the rounded weight, 2 bytes, and what is a small part of it."""
    plain, rounded = record_of({}), record_of({"qat": weights})
    shape = build_job(LLAMA).model
    of_a_block = 2 * shape.hidden_size * (shape.attention_heads + shape.key_value_heads) * shape.head_size
    linear = shape.layers * (of_a_block + 3 * shape.hidden_size * shape.intermediate_size)
    linear += shape.vocabulary_size * shape.hidden_size
    kept = (rounded.saved_bytes(2) - plain.saved_bytes(2)) / linear
    assert kept == pytest.approx(each + 2, rel=0.06), kept


def test_scales_of_integers_stay_between_steps() -> None:
    """8 bytes for each group of weights, and for each token of each layer."""

    def standing(keys: dict[str, Any]) -> int:
        record = record_of(keys)
        return sum(one.at(2) for one in record.states if one.category == "buffers")

    shape = build_job(LLAMA).model
    of_a_block = 2 * shape.hidden_size * (shape.attention_heads + shape.key_value_heads) * shape.head_size
    linear = shape.layers * (of_a_block + 3 * shape.hidden_size * shape.intermediate_size)
    linear += shape.vocabulary_size * shape.hidden_size
    tokens = 2 * 512 * (7 * shape.layers + 1)
    plain = standing({})
    assert standing({"qat": "int4"}) - plain == linear // 32 * 8
    assert standing({"qat": EIGHTS}) - plain == linear // 32 * 8 + tokens * 8
    assert standing({"qat": "fp8"}) == plain


def test_a_step_takes_longer() -> None:
    seconds = []
    for qat in (None, EIGHTS):
        result = fit(
            **LLAMA, micro_batch_size=1, activation_checkpointing="full", **({} if qat is None else {"qat": qat})
        )
        assert result.time is not None
        seconds.append(result.time.step_seconds)
    assert seconds[1] > 1.2 * seconds[0]


@pytest.mark.parametrize(("word", "each"), [("mxfp4", 17 / 32), ("nvfp4", 9 / 16)])
def test_what_multiplies_in_4_bits_is_kept_in_them(word: str, each: float) -> None:
    """Of each weight and each input, in the place of 2 bytes of an input in bf16."""
    shape = build_job(LLAMA).model
    of_a_block = 2 * shape.hidden_size * (shape.attention_heads + shape.key_value_heads) * shape.head_size
    linear = shape.layers * (of_a_block + 3 * shape.hidden_size * shape.intermediate_size)
    linear += shape.vocabulary_size * shape.hidden_size
    plain, rounded = (record_of({"gpu": "b200", "qat": one}) for one in (None, word))
    tokens = 2 * 512
    heads = shape.attention_heads * shape.head_size
    inputs = shape.layers * (5 * shape.hidden_size + heads + shape.intermediate_size) + shape.hidden_size
    saved = rounded.saved_bytes(2) - plain.saved_bytes(2)
    alone = shape.layers * (heads + shape.intermediate_size + 2 * shape.hidden_size) + shape.hidden_size
    assert each * linear < saved + 2 * tokens * alone, saved
    assert saved < each * (linear + tokens * inputs)


def test_rounding_in_4_bits_takes_more_than_it_keeps() -> None:
    """A whole weight is rounded at once, in steps of 4 bytes a number: the head's is the largest."""
    shape = build_job(LLAMA).model
    head = shape.vocabulary_size * shape.hidden_size
    peaks = [record_of(keys, "full").peaks(2)["forward"] for keys in ({}, {"qat": "mxfp4"})]
    assert peaks[1] - peaks[0] > 20 * head
