"""Closed form: what was never traced together is answered, says so, and is no answer of another run."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan import api
from vramplan.errors import InputError

pytestmark = pytest.mark.plain

ONE: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100", "sequence_length": 512, "micro_batch_size": 1}


def answered(**keys: Any) -> Any:
    given = {**ONE, "activation_checkpointing": "none", **keys}
    return api.fit(**{key: value for key, value in given.items() if value is not None})


def component(answer: Any, name: str) -> int:
    return sum(one.bytes for one in answer.components if one.name == name)


COMPILED: list[tuple[dict[str, Any], str]] = [
    ({"model": "falcon-rw-1b"}, "compile true was never traced with falcon"),
    ({"model": "vit-base-patch16-224", "sequence_length": None}, "compile true was never traced with vit"),
    ({"loss": "fused"}, "compile true was never traced together with loss fused"),
    ({"attention": "eager"}, "compile true was never traced with attention eager"),
    ({"model": "bert-base-uncased", "loss": "classification"}, "compile true was never traced with a classifier"),
    ({"runtime": "litgpt"}, "compile true was never traced with llama under litgpt"),
    (
        {"adapter": {"kind": "lora"}, "activation_checkpointing": "sqrt"},
        "compile true was traced up to 8 % too low with an adapter together with activation_checkpointing sqrt",
    ),
    (
        {"adapter": {"kind": "lora"}, "quantization": "int8"},
        "compile true was never traced with quantization int8 in one graph",
    ),
]


@pytest.mark.sweep(8)
@pytest.mark.parametrize(("keys", "sentence"), COMPILED, ids=str)
def test_a_compiled_step_is_composed_and_says_so(keys: dict[str, Any], sentence: str) -> None:
    eager, compiled = (answered(**keys, compile=one) for one in (False, True))
    assert any(sentence in one for one in compiled.warnings)
    assert component(compiled, "weights") == component(eager, "weights")
    assert component(compiled, "optimizer") == component(eager, "optimizer")
    # fused chains keep less of a forward pass
    assert compiled.peak.saved_bytes <= eager.peak.saved_bytes


BART = {"model": "bart-base", "activation_checkpointing": "full"}
RESNET = {"model": "resnet-18", "sequence_length": None}
LLAVA = {"model": "llava-1.5-7b", "gpu": "h200", "sequence_length": 640}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("keys", [BART, RESNET, LLAVA], ids=lambda keys: str(keys["model"]))
def test_activations_on_the_host_of_other_code_leave_the_device_and_say_so(keys: dict[str, Any]) -> None:
    there, away = answered(**keys), answered(**keys, offload=["activations"])
    assert any("offload activations was never traced with" in one for one in away.warnings)
    assert away.peak.saved_bytes < there.peak.saved_bytes
    assert away.host.saved_bytes > 0


@pytest.mark.parametrize("keys", [RESNET, LLAVA], ids=lambda keys: str(keys["model"]))
def test_losses_and_evaluations_of_other_code_say_so(keys: dict[str, Any]) -> None:
    answer = answered(**keys, label_smoothing=0.1, eval_batch_size=2)
    for key in ("label_smoothing 0.1", "eval_batch_size 2"):
        assert any(f"{key} was never traced with" in one for one in answer.warnings)


LORA = {"kind": "lora", "rank": 4}
UNTRACED: list[tuple[dict[str, Any], str]] = [
    (
        {"model": "falcon-mamba-7b", "adapter": {**LORA, "targets": ["in_proj", "x_proj"]}},
        "adapter lora was never traced with falcon_mamba",
    ),
    ({"model": "mamba-130m", "frozen": ["embeddings"]}, "frozen embeddings was never traced with mamba"),
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("keys", "sentence"), UNTRACED, ids=lambda one: one if isinstance(one, str) else "")
def test_what_is_trained_in_code_that_has_no_row_of_it_is_answered_and_said(
    keys: dict[str, Any], sentence: str
) -> None:
    part, whole = answered(**keys), answered(model=keys["model"])
    assert any(sentence in one for one in part.warnings)
    assert component(part, "optimizer") < component(whole, "optimizer")
    assert not any("was never traced with" in one for one in whole.warnings)


def test_code_of_a_program_that_does_not_say_so_moves_no_activations() -> None:
    with pytest.raises(InputError, match="activations are not modelled for gpt2 under nanogpt"):
        answered(model="gpt2", runtime="nanogpt", offload=["activations"])


STAGE_0: dict[str, Any] = {"model": "bert-large-uncased", "gpu": "a100-80gb", "runtime": "deepspeed"}


@pytest.mark.parametrize("devices", [1, 8])
def test_stage_0_of_deepspeed_makes_all_gradients_anew_in_fp32_twice(devices: int) -> None:
    keys = {**STAGE_0, "precision": "mixed-fp16", "parallel": {"data": devices, "sharding": "ddp"}}
    answer = answered(**keys, activation_checkpointing="full")
    count = answer.trainable_parameters
    held = {name: component(answer, name) / count for name in ("weights", "master", "optimizer", "gradients")}
    # 16 bits; an fp32 copy; two moments; gradients in 16 bits, cast one by one, and in one flat tensor
    assert held == pytest.approx({"weights": 2, "master": 4, "optimizer": 8, "gradients": 2 + 4 + 4}, rel=0.01)
    assert any("stage 0" in one and "never traced" in one for one in answer.warnings)


def test_without_a_master_copy_stage_0_is_the_programs_own_optimizer() -> None:
    answer = answered(**STAGE_0, precision="fp32", parallel={"data": 8, "sharding": "ddp"})
    count = answer.trainable_parameters
    held = {name: component(answer, name) / count for name in ("weights", "optimizer", "gradients", "communication")}
    assert held == pytest.approx({"weights": 4, "optimizer": 8, "gradients": 4, "communication": 4}, rel=0.01)


GROUP: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100", "sequence_length": 4096, "micro_batch_size": 1}


@pytest.mark.sweep
@pytest.mark.parametrize("runtime", ["transformers", "torchtune"])
def test_tensor_parallelism_by_a_plan_divides_the_blocks_alone(runtime: str) -> None:
    keys = {**GROUP, "runtime": runtime, "precision": "pure-bf16", "max_gradient_norm": 0}
    whole, half, quarter = (answered(**keys, parallel={"tensor": one} if one > 1 else {}) for one in (1, 2, 4))
    weights = [component(one, "weights") for one in (whole, half, quarter)]
    # what is divided by 2, and by 4; embedding, head and norms are whole
    assert weights[0] - weights[1] == pytest.approx(2 * (weights[1] - weights[2]), rel=0.01)
    assert whole.peak.saved_bytes > half.peak.saved_bytes > quarter.peak.saved_bytes
    assert any("parallel.tensor 4 was never traced" in one for one in quarter.warnings)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "zero1", "zero3"])
def test_devices_that_share_a_sequence_share_its_states_too(sharding: str) -> None:
    keys = {**GROUP, "runtime": "transformers", "activation_checkpointing": "full"}
    alone, along = (answered(**keys, parallel={"sharding": sharding, way: 4}) for way in ("data", "context"))
    assert component(along, "optimizer") == component(alone, "optimizer")
    assert component(along, "weights") == component(alone, "weights")
    assert along.peak.saved_bytes < alone.peak.saved_bytes
    assert any("parallel.context 4 was never traced" in one for one in along.warnings)


FLOAT8: list[tuple[dict[str, Any], str, str]] = [
    ({"parallel": {"data": 4, "sharding": "fsdp"}, "precision": "fsdp-fp8"}, "fsdp-bf16", "parallel.sharding fsdp"),
    ({"parallel": {"data": 4, "sharding": "zero3"}, "precision": "fp8"}, "mixed-bf16", "parallel.sharding zero3"),
    ({"compile": True, "precision": "fp8"}, "mixed-bf16", "compile true"),
    ({"loss": "fused", "precision": "fp8"}, "mixed-bf16", "loss fused"),
]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("keys", "half", "beside"), FLOAT8, ids=str)
def test_products_in_fp8_have_the_states_of_bf16_and_say_what_was_never_traced(
    keys: dict[str, Any], half: str, beside: str
) -> None:
    narrow, wide = answered(**keys), answered(**{**keys, "precision": half})
    for name in ("weights", "master", "optimizer"):
        assert component(narrow, name) == component(wide, name)
    sentence = f"precision {keys['precision']} was never traced together with {beside}"
    assert any(sentence in one for one in narrow.warnings)
    assert not any("precision" in one and "never traced" in one for one in wide.warnings)


TUNE: dict[str, Any] = {
    "model": "llama-2-7b",
    "gpu": "h200",
    "runtime": "torchtune",
    "adapter": {"kind": "lora", "rank": 8},
    "activation_checkpointing": "full",
}


def test_4_bit_weights_of_torchao_are_looked_up_by_indices_of_8_bytes() -> None:
    compiled, eager = (
        answered(**TUNE, loss="standard", quantization="nf4-double", compile=one) for one in (True, False)
    )
    assert component(compiled, "weights") == component(eager, "weights")
    # of the largest matrix: 2 x 8 bytes of indices for two weights, 3 x 2 bytes beside them, and the copy
    largest = 11008 * 4096
    short = answered(**TUNE, sequence_length=16, loss="standard", quantization="nf4-double")
    temporaries = component(short, "temporaries") + component(short, "weight_casts")
    assert temporaries == pytest.approx(largest * (8 + 2 + 2 + 2), rel=0.02)
    assert any("quantization nf4-double was never traced with llama under torchtune" in one for one in eager.warnings)
    assert not any("never traced" in one and "nf4" in one for one in compiled.warnings)


def test_dora_under_torchtune_has_one_more_vector_for_each_layer() -> None:
    lora, dora = (answered(**{**TUNE, "adapter": {"kind": one, "rank": 8}}) for one in ("lora", "dora"))
    query = value = 4096
    assert dora.trainable_parameters - lora.trainable_parameters == 32 * (query + value)
    assert dora.peak.allocated_bytes > lora.peak.allocated_bytes
    assert any("adapter dora was never traced with llama under torchtune" in one for one in dora.warnings)


@pytest.mark.parametrize("devices", [1, 4])
def test_preference_training_under_torchtune_keeps_log_probabilities_of_all_words(devices: int) -> None:
    keys = {**TUNE, "parallel": {"data": devices}}
    one, two = (answered(**keys, loss="dpo", micro_batch_size=micro) for micro in (1, 2))
    words = 2 * 512 * 32000 * 4  # of a pair, in fp32
    assert two.peak.saved_bytes - one.peak.saved_bytes >= words
    assert any("loss dpo was never traced with llama under torchtune" in each for each in one.warnings)


def test_a_padding_mask_that_was_never_traced_is_counted_beside() -> None:
    bare, padded = (answered(model="chatglm2-6b", gpu="h200", padding=one) for one in ("none", "right"))
    beside = component(padded, "buffers") - component(bare, "buffers")
    assert beside == pytest.approx(512 * 512, rel=0.01)  # a truth value for each pair of tokens
    assert any("padding right was never traced with" in one for one in padded.warnings)


@pytest.mark.sweep
def test_parameters_alone_on_the_host_leave_the_rest_of_stage_3_on_the_device() -> None:
    keys = {"parallel": {"data": 8, "sharding": "zero3"}, "precision": "mixed-bf16"}
    bare, hosted = (answered(**keys, offload=one) for one in ([], ["parameters"]))
    for name in ("master", "optimizer"):
        assert component(hosted, name) == component(bare, name) > 0
    # small parameters are whole on each device
    assert component(hosted, "weights") < component(bare, "weights") / 100
    assert 8 * hosted.host.states_bytes == pytest.approx(
        2 * bare.trainable_parameters, rel=0.01
    )  # of all eight devices
    assert any("offload parameters was never traced" in one for one in hosted.warnings)


def test_packed_sequences_of_a_family_without_rows_have_their_mask_beside() -> None:
    bare, packed = (answered(model="qwen2-vl-2b", packing=one, attention="eager") for one in (False, True))
    assert packed.peak.allocated_bytes > bare.peak.allocated_bytes
    assert packed.peak.high_bytes - bare.peak.high_bytes > packed.peak.device_bytes - bare.peak.device_bytes
    assert any("packing true was never traced with qwen2_vl" in one for one in packed.warnings)


def test_the_mask_of_eager_attention_is_as_large_without_padding() -> None:
    bare, padded = (answered(model="mpt-7b", gpu="h200", padding=one) for one in ("none", "right"))
    assert component(padded, "buffers") == component(bare, "buffers")
    assert padded.peak.allocated_bytes - bare.peak.allocated_bytes == pytest.approx(512 * 8, abs=512)


def test_flash_with_bounded_scores_stores_none_of_them() -> None:
    eager, flash = (answered(model="gemma-2-2b", sequence_length=2048, attention=one) for one in ("eager", "flash"))
    shape = {"heads": 8, "blocks": 26, "length": 2048}
    scores = shape["heads"] * shape["blocks"] * shape["length"] ** 2 * 2  # one tensor of them in bf16 for each block
    assert eager.peak.saved_bytes - flash.peak.saved_bytes > scores
    assert any("attention flash was never traced with gemma2" in one for one in flash.warnings)


def test_experts_keep_their_element_type_beside_quantized_layers() -> None:
    keys = {"model": "mixtral-8x7b", "gpu": "h200", "precision": "pure-bf16"}
    every = {"kind": "lora", "rank": 8, "targets": "all-linear"}
    some = {**every, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    over, beside = (answered(**keys, adapter=one, quantization="nf4") for one in (every, some))
    assert over.trainable_parameters > 8 * beside.trainable_parameters
    assert any("nf4 was never traced together with an adapter over experts" in one for one in over.warnings)
    assert not any("adapter over experts" in one for one in beside.warnings)


@pytest.mark.sweep
def test_muon_under_fsdp_shares_its_momenta_and_gathers_one_matrix() -> None:
    keys = {"optimizer": "muon", "precision": "amp-bf16", "weight_dtype": "fp32"}
    alone, shared = (answered(**keys, parallel=one) for one in ({}, {"data": 4, "sharding": "fsdp"}))
    assert component(shared, "optimizer") == pytest.approx(component(alone, "optimizer") / 4, rel=0.01)
    assert any("optimizer muon was never traced together with parallel.sharding fsdp" in one for one in shared.warnings)


SAID = [
    ({"model": "glm-4-9b", "activation_checkpointing": "full", "checkpoint_reentrant": True}, "with glm"),
    ({"activation_checkpointing": "full", "checkpoint_reentrant": True}, None),
    ({"model": "chatglm3-6b", "parallel": {"data": 8, "sharding": "zero2"}, "precision": "mixed-fp16"}, "zero2"),
    ({"parallel": {"data": 8, "sharding": "zero2"}, "precision": "mixed-fp16"}, None),
    ({"loss": "fused", "parallel": {"data": 8, "sharding": "fsdp", "fsdp_version": 1}}, "fsdp_version 1"),
    ({"loss": "fused", "parallel": {"data": 8, "sharding": "fsdp"}}, None),
]


@pytest.mark.sweep(6)
@pytest.mark.parametrize(("keys", "said"), SAID, ids=str)
def test_the_rows_decide_what_was_never_traced(keys: dict[str, Any], said: str | None) -> None:
    found = [one for one in answered(**keys).warnings if "never traced" in one]
    assert (not found) if said is None else any(said in one for one in found)
