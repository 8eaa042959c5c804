"""Kinds of adapters: what a job says of each, what is refused, and how many numbers are trained and stored."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from tests.cli.running import TINY
from tests.job.tiny import KEYS
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.options import spellings, words
from vramplan.planner import setups
from vramplan.replay.record import Record
from vramplan.replay.step import replay
from vramplan.replay.techniques.adapter_layers import LAYERS
from vramplan.replay.techniques.whole_changes import factorization
from vramplan.values.adapter_kinds import KINDS, OF_SOME, lacks

pytestmark = pytest.mark.closed_form

WIDE, NARROW = 160, 64  # down_proj of TINY
LAYER = ["down_proj"]
HALF = {"precision": "pure-bf16"}


def record_of(adapter: dict[str, Any], **more: Any) -> Record:
    """One step with it."""
    job = build_job({**KEYS, **more, "adapter": adapter})
    return replay(setups.setup_of(job, "none", False), batch=2)


def test_every_kind_has_a_word_a_class_and_a_row() -> None:
    assert {*words.ADAPTERS} == {*KINDS}
    assert {*LAYERS} == {word for word, kind in KINDS.items() if not (kind.of_tokens or kind.of_table or kind.of_norms)}


@pytest.mark.parametrize(
    ("kind", "rank", "trained"),
    [
        ("adalora", 6, 6 * (WIDE + NARROW + 1)),
        ("vera", 6, 6 + NARROW),
        ("loha", 6, 2 * 6 * (WIDE + NARROW)),
        ("lokr", 3, 8 * 10 + 3 * (8 + 16)),
        ("lokr", 8, 8 * 10 + 8 * 16),
        ("miss", 6, 6 * NARROW),
        ("boft", 8, WIDE * 8 + NARROW),
        ("hra", 6, 6 * WIDE),
        ("randlora", 6, ceil(NARROW / 6) * (6 + NARROW)),
    ],
)
def test_how_many_numbers_are_trained(kind: str, rank: int, trained: int) -> None:
    assert record_of({"kind": kind, "rank": rank, "targets": LAYER}).trainable_parameters == TINY["layers"] * trained


def test_a_spectrum_has_as_many_numbers_as_are_asked_for() -> None:
    adapter = {"kind": "fourierft", "frequencies": 30, "targets": LAYER}
    assert record_of(adapter).trainable_parameters == TINY["layers"] * 30
    assert (
        job_to_dict(build_job({**KEYS, "adapter": {**adapter, "frequencies": None}}))["adapter"]["frequencies"] == 1000
    )


def buffers(record: Record) -> int:
    """Bytes of all buffers."""
    return sum(one.fixed_bytes for one in record.states if one.category == "buffers")


def test_the_matrices_of_vera_are_there_once_and_fit_the_widest_layer() -> None:
    plain = buffers(record_of({"kind": "lora", "rank": 8, "targets": LAYER}))
    beside = buffers(record_of({"kind": "vera", "rank": 8, "targets": ["down_proj", "up_proj"]}))
    assert beside - plain == 2 * 8 * WIDE * 4


def test_each_layer_of_boft_has_a_permutation_of_its_own() -> None:
    plain = buffers(record_of({"kind": "lora", "rank": 8, "targets": LAYER}))
    beside = buffers(record_of({"kind": "boft", "rank": 8, "targets": LAYER}))
    assert beside - plain == TINY["layers"] * WIDE**2 * 4


@pytest.mark.parametrize(
    ("width", "factor", "found"), [(160, None, (10, 16)), (64, None, (8, 8)), (64, 4, (4, 16)), (62, 4, (2, 31))]
)
def test_the_factors_of_a_width(width: int, factor: int | None, found: tuple[int, int]) -> None:
    assert factorization(width, factor) == found


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_lacks_is_refused_and_not_echoed(kind: str) -> None:
    values: dict[str, Any] = {
        **dict.fromkeys(("rank", "frequencies", "decompose_factor"), 4),
        "alpha": 2,
        "dropout": 0.1,
        "kernels": ["mlp"],
        "feedforward_targets": LAYER,
        "virtual_tokens": 4,
        "encoder_hidden_size": 8,
        "prefix_projection": True,
        "bias": "all",
        "trainable_tokens": 4,
    }
    assert {*OF_SOME} == {*values}
    values |= {"targets": LAYER, "modules_to_save": ["lm_head"], "dtype": "fp32"}
    named = ["input_layernorm"] if KINDS[kind].of_norms else LAYER
    known: dict[str, Any] = {} if "targets" in lacks(kind) else {"targets": named}
    known |= {"trainable_tokens": 4} if KINDS[kind].of_table else {}
    for key in lacks(kind):
        with pytest.raises(InputError, match=f"{key}: has no meaning for {kind}"):
            build_job({**KEYS, "adapter": {"kind": kind, **known, key: values[key]}})
    known |= {"rank": 4} if "rank" in KINDS[kind].keys else {}
    echoed = job_to_dict(build_job({**KEYS, "adapter": {"kind": kind, **known}}))["adapter"]
    assert not {*lacks(kind)} & {*echoed}


@pytest.mark.parametrize(
    ("adapter", "more", "message"),
    [
        ({"kind": "boft", "rank": 48}, {}, "adapter.rank: 48 does not divide the 160 inputs of down_proj"),
        ({"kind": "miss", "rank": 161}, {}, "adapter.rank: 161 is more than the 160 inputs of down_proj"),
        ({"kind": "fourierft", "frequencies": 10241}, {}, "adapter.frequencies: 10241 are more than the weights"),
        (
            {"kind": "loha"},
            {"quantization": "nf4"},
            "PEFT has no layer of loha over nf4 weights, and has one over",
        ),
        ({"kind": "hra"}, {"quantization": "int8"}, "adapter.kind: PEFT has no layer of hra over int8 weights"),
        ({"kind": "adalora"}, {**HALF, "quantization": "int8"}, "adalora over int8 weights gives fp32"),
        ({"kind": "randlora"}, {**HALF, "quantization": "int8"}, "randlora over int8 weights gives fp32"),
        ({"kind": "vera"}, {**HALF, "quantization": "int8"}, "adapter.dtype: bf16: vera over int8 weights has random"),
        ({"kind": "lokr", "targets": ["c_attn"]}, {"model": "gpt2"}, "PEFT has no lokr over the layers of gpt2"),
        (
            {"kind": "hra"},
            {"precision": "bf16", "parallel": {"data": 2, "sharding": "zero3"}},
            "hra multiplies by the weight of a layer that it does not call",
        ),
        ({"kind": "hra"}, {"frozen": ["lora_A"]}, "lora_A belongs to LoRA: hra has none"),
    ],
)
def test_what_peft_refuses(adapter: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**KEYS, **more, "adapter": {"targets": LAYER, **adapter}})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "word", ["rslora", "pissa", "OLoRA", "eva", "corda", "loftq", "lora-plus", "loraplus", "lora+"]
)
def test_beginnings_and_scales_of_lora_are_lora(word: str) -> None:
    job = build_job({**KEYS, "adapter": {"kind": word, "rank": 4, "targets": LAYER}})
    assert job.adapter is not None
    assert job.adapter.kind == "lora"
    assert any(one.key == "adapter.kind" and one.why.startswith(word) for one in job.assumptions)


@pytest.mark.parametrize("word", ["lora-fa", "lorafa"])
def test_lora_fa_freezes_the_first_matrix(word: str) -> None:
    job = build_job({**KEYS, "adapter": {"kind": word, "rank": 4, "targets": LAYER}})
    assert job.frozen == ("lora_A",)
    record = replay(setups.setup_of(job, "none", False), batch=2)
    assert record.trainable_parameters == TINY["layers"] * 4 * NARROW


@pytest.mark.parametrize(
    ("kind", "model", "targets"),
    [
        ("adalora", "t5-base", ("q", "k", "v", "o", "wi", "wo")),
        ("adalora", "gpt2", ("c_attn",)),
        ("adalora", "mistral-7b", ("all-linear",)),  # of which PEFT has none
        ("fourierft", "gpt2", ("mlp.c_proj",)),
        ("vera", "phi-2", ("q_proj", "v_proj")),
        ("hra", "llama-3.2-1b", ("q_proj", "v_proj")),
    ],
)
def test_the_targets_of_a_kind_are_peft_s_where_nobody_names_any(
    kind: str, model: str, targets: tuple[str, ...]
) -> None:
    job = build_job({**KEYS, "model": model, "adapter": {"kind": kind}})
    assert job.adapter is not None
    assert job.adapter.targets == targets


def test_kinds_that_no_row_has_on_several_devices_say_so() -> None:
    for kind, said in (("miss", True), ("lora", False)):
        job = build_job(
            {**KEYS, "adapter": {"kind": kind, "targets": LAYER}, "parallel": {"data": 2, "sharding": "ddp"}}
        )
        assert any(one == f"adapter {kind} was never traced with parallel.sharding ddp" for one in job.composed) is said


def test_bone_is_miss() -> None:
    job = build_job({**KEYS, "adapter": {"kind": "bone", "targets": LAYER}})
    assert job.adapter is not None
    assert (job.adapter.kind, job.adapter.rank) == ("miss", 64)
    assert spellings.ADAPTERS["bone"].word == "miss"


def test_adalora_says_what_a_task_adds() -> None:
    job = build_job({**KEYS, "adapter": {"kind": "adalora", "rank": 4, "targets": LAYER}})
    assert any("task_type" in one for one in job.composed)


@pytest.mark.contract
def test_a_layer_that_never_runs_has_no_flat_unit() -> None:
    """Mamba multiplies by the weight of dt_proj, so that no gradient comes to an adapter over it."""
    keys = {"model": "mamba-130m", "gpu": "8xh100", "sequence_length": 64, "precision": "pure-bf16"}
    shared = {"parallel": {"sharding": "fsdp", "fsdp_version": 1}}
    for kind in ("lora", "oft"):
        with pytest.raises(InputError, match="over dt_proj, which never runs"):
            build_job({**keys, **shared, "adapter": {"kind": kind, "targets": ["in_proj", "dt_proj"]}})
        build_job({**keys, **shared, "adapter": {"kind": kind, "targets": ["in_proj"]}})


@pytest.mark.contract
@pytest.mark.parametrize("kind", ["prompt-tuning", "p-tuning", "prefix-tuning"])
@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_what_makes_virtual_tokens_is_cut_by_zero(kind: str, stage: str) -> None:
    """Of 20 devices each has the states of a twentieth: of more tokens more, and of two devices more than of 20."""

    def states(tokens: int, devices: int) -> int:
        keys = {**KEYS, "adapter": {"kind": kind, "virtual_tokens": tokens}, "precision": "mixed-bf16"}
        job = build_job({**keys, "max_gradient_norm": 1.0, "parallel": {"data": devices, "sharding": stage}})
        record = replay(setups.setup_of(job, "none", accumulates=False), batch=2)
        return sum(one.at(2) for one in record.states if one.category in ("master", "optimizer"))

    few, many, cut = states(20, 2), states(400, 2), states(400, 20)
    assert few < many
    assert cut < many / 4


@pytest.mark.contract
def test_fsdp1_wraps_what_makes_virtual_tokens_by_itself() -> None:
    keys = {**KEYS, "precision": "amp-bf16", "parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 1}}
    build_job({**keys, "adapter": {"kind": "p-tuning"}})
    build_job({**keys, "adapter": {"kind": "prefix-tuning"}})
    policy = {**keys, "runtime": "pytorch", "precision": "fsdp-bf16", "adapter": {"kind": "prefix-tuning"}}
    with pytest.raises(InputError, match=r"fsdp-bf16 with prefix-tuning cannot run with .* fsdp_version 1"):
        build_job(policy)
    build_job({**policy, "runtime": "transformers"})
    with pytest.raises(InputError, match=r"loha cannot run with .* fsdp_version 1"):
        build_job({**keys, "adapter": {"kind": "loha"}})


@pytest.mark.parametrize("which", ["none", "targets", "lora_only", "all"])
def test_biases_are_trained_beside_an_adapter(which: str) -> None:
    """Of GPT-2 `c_proj` of attention has a bias as wide as the model; all of them are many more."""
    adapter = {"kind": "lora", "rank": 2, "targets": ["attn.c_proj"]}
    keys = {**KEYS, "model": "gpt2", "precision": "fp32"}
    jobs = [build_job({**keys, "adapter": {**adapter, **more}}) for more in ({}, {"bias": which})]
    plain, beside = (replay(setups.setup_of(job, "none", False), batch=2).trainable_parameters for job in jobs)
    width, layers = jobs[0].model.hidden_size, jobs[0].model.layers
    assert beside - plain == {"none": 0, "all": layers * (3 + 1 + 4 + 1 + 2) * width + width}.get(which, layers * width)


@pytest.mark.parametrize(
    ("adapter", "trained"),
    [
        ({"kind": "lora", "rank": 6, "targets": ["embed_tokens"]}, 6 * (TINY["vocabulary_size"] + NARROW)),
        ({"kind": "lora", "rank": 6, "targets": ["lm_head"]}, 6 * (TINY["vocabulary_size"] + NARROW)),
        ({"kind": "trainable-tokens", "trainable_tokens": 5}, 5 * NARROW),
        ({"kind": "ln-tuning", "targets": ["norm"]}, NARROW),
        ({"kind": "ln-tuning"}, (2 * TINY["layers"] + 1) * NARROW),
    ],
)
def test_ends_and_norms_may_be_trained(adapter: dict[str, Any], trained: int) -> None:
    assert record_of(adapter).trainable_parameters == trained


def test_a_loss_that_takes_the_weight_of_the_head_passes_by_its_adapter() -> None:
    adapter = {"kind": "lora", "targets": ["lm_head", "q_proj"]}
    told = {one.key: one.why for one in build_job({**KEYS, "loss": "fused", "adapter": adapter}).assumptions}
    assert "without its adapter" in told["adapter.targets"]
    called = build_job({**KEYS, "loss": "cpo", "runtime": "transformers", "adapter": adapter})
    assert "adapter.targets" not in {one.key for one in called.assumptions}


@pytest.mark.parametrize(
    ("adapter", "more", "message"),
    [
        ({"kind": "vera", "targets": ["lm_head"]}, {}, "vera is not modelled over embeddings and heads"),
        ({"kind": "dora", "targets": ["embed_tokens"]}, {}, "dora is not modelled over embed_tokens"),
        ({"kind": "lora", "targets": ["lm_head"]}, {"loss": "fused"}, "stays as it is: nothing would be trained"),
        (
            {"kind": "trainable-tokens", "trainable_tokens": 3},
            {"loss": "dpo", "runtime": "transformers", "model": {**TINY, "tied_embeddings": True}},
            "dpo cannot run: TRL asks the head for its bias",
        ),
        ({"kind": "lora", "targets": ["embed_tokens"], "trainable_tokens": 3}, {}, "has an adapter already"),
        ({"kind": "trainable-tokens"}, {}, "trainable_tokens: is missing"),
        ({"kind": "ln-tuning", "targets": ["q_proj"]}, {}, "'q_proj' names no norm"),
        (
            {"kind": "lora", "bias": "all", "targets": ["attn.c_proj"]},
            {
                "model": "gpt2",
                "parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 1},
                "precision": "amp-bf16",
            },
            "lora with bias all cannot run",
        ),
        (
            {"kind": "lora", "bias": "all", "targets": LAYER},
            {"trained_blocks": "badam"},
            "badam steps only what has lora",
        ),
    ],
)
def test_what_is_refused_at_the_ends(adapter: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**KEYS, **more, "adapter": adapter})
    assert message in str(caught.value)


def test_biases_that_a_model_lacks_are_no_obstacle_to_fsdp1() -> None:
    keys = {**KEYS, "parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 1}, "precision": "amp-bf16"}
    assert build_job({**keys, "adapter": {"kind": "lora", "bias": "all", "targets": LAYER}}).adapter is not None


def test_badam_trains_an_adapter_block_by_block() -> None:
    job = build_job({**KEYS, "adapter": {"kind": "lora", "targets": LAYER}, "trained_blocks": "badam"})
    assert job.trained_blocks == "badam"


@pytest.mark.contract
@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_deepspeed_casts_an_adapter_that_is_said_to_be_in_fp32(stage: str) -> None:
    keys = {**KEYS, "adapter": {"kind": "lora", "dtype": "fp32"}, "precision": "mixed-bf16"}
    job = build_job({**keys, "parallel": {"data": 2, "sharding": stage}})
    assert job.adapter is not None
    assert job.adapter.dtype == "bf16"
    with pytest.raises(InputError, match=r"fp32 is not modelled with mixed-bf16"):
        build_job(keys)
