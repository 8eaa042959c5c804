"""What a runtime's profile decides where a job says nothing, what wins over it, and what it refuses."""

import json
from typing import Any

import pytest

from vramplan import engines
from vramplan.catalog import runtimes
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.options import table, words
from vramplan.options.option import WORD
from vramplan.replay.models import family
from vramplan.values.job import ResolvedJob

LLAMA = {"model": "llama-3.2-1b", "gpu": "a100"}
GPT2 = {"model": "gpt2", "gpu": "a100"}
MODELS = {"nanogpt": "gpt2", "llm.c": "gpt2", "modded-nanogpt": "modded-nanogpt-2024-12-17"}
SEVERAL = ("deepspeed", "modded-nanogpt")  # modelled for ZeRO alone, and for DDP alone
PROFILES = runtimes.list_runtimes()
WORDS = {
    field: (*option.words, *option.profile_words)
    for field, option in table.profile_fields().items()
    if option.words and option.kind == WORD
}
HAS = {
    "adapter": (*words.ADAPTERS, "none"),
    "quantization": (*table.find("quantization").words, "none"),
    "offload": (*words.OFFLOADS, "none"),
    "activation_checkpointing": words.CHECKPOINTINGS,
    "loss": words.LOSSES,
    **WORDS,
}


def job(raw: dict[str, Any], **keys: Any) -> ResolvedJob:
    built = build_job({**raw, **keys})
    assert isinstance(built, ResolvedJob)
    return built


def assumed(one: ResolvedJob) -> dict[str, str]:
    return {assumption.key: assumption.why for assumption in one.assumptions}


def refused(raw: dict[str, Any], **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        build_job({**raw, **keys})
    return "; ".join(f"{one.key}: {one.message} ({one.hint})" for one in caught.value.problems)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda one: one.name)
def test_the_words_of_a_profile_are_those_of_the_job_format(profile: Any) -> None:
    for key, field in profile.fields.items():
        if field.value is None:
            assert field.reason
        elif key.startswith(runtimes.ONLY) and key != "only_one_device" and key != "only_family":
            assert set(field.value) <= set(HAS[key.removeprefix(runtimes.ONLY)]), key
        elif key in WORDS:
            assert words.pattern_word(field.value) in WORDS[key], key
        elif key == "head_loss":
            assert words.pattern_word(field.value) in words.LOSSES


def test_every_engine_has_a_profile_and_every_profile_is_taken() -> None:
    assert {profile.name for profile in PROFILES} == set(words.RUNTIMES) - {words.TEXTBOOK}


def test_the_modules_of_own_code_are_there() -> None:
    for name in engines.FOLDERS:
        engine = engines.engine_of(name)
        assert engine.name == name
        assert all(family(module) for module in engine.families.values())


@pytest.mark.parametrize("name", tuple(engines.FOLDERS)[3:])
@pytest.mark.parametrize("devices", [1, 4])
def test_a_resolved_job_fed_back_is_the_same(name: str, devices: int) -> None:
    raw = {"model": MODELS.get(name, "llama-2-7b"), "gpu": "a100", "runtime": name, "parallel": {"data": devices}}
    raw["activation_checkpointing"] = "none"
    try:
        one = job(raw)
    except InputError:
        assert devices > 1 or name in SEVERAL
        return
    again = build_job(json.loads(json.dumps(job_to_dict(one))))
    assert job_to_dict(again) == job_to_dict(one)
    assert again.runtime == one.runtime
    assert "default of the" not in str(again.assumptions)


def test_defaults_are_taken_and_told() -> None:
    one = job(GPT2, runtime="nanogpt")
    assert (one.max_gradient_norm, one.dropout, one.hold_outputs) == (1.0, 0.0, True)
    told = assumed(one)
    assert told["max_gradient_norm"] == "the default of the nanogpt runtime: grad_clip"
    assert {"precision", "hold_outputs", "dropout"} <= told.keys()


def test_what_a_job_says_wins_and_null_stays_null() -> None:
    one = job(GPT2, runtime="nanogpt", max_gradient_norm=None, dropout=0.2, hold_outputs=False, precision="fp32")
    assert (one.max_gradient_norm, one.dropout, one.hold_outputs, one.precision) == (None, 0.2, False, "fp32")
    assert not {"max_gradient_norm", "dropout", "hold_outputs", "precision"} & assumed(one).keys()
    assert job(GPT2, runtime="nanogpt", dropout=None).dropout is None


def test_a_precision_that_the_gpu_lacks_is_not_taken() -> None:
    assert job({**GPT2, "gpu": "v100"}, runtime="nanogpt").precision == "amp-fp16"


def test_litgpt_chunks_its_head_beside_an_adapter_alone() -> None:
    adapted = job(LLAMA, runtime="litgpt", adapter={"kind": "lora"}, sequence_length=1044)
    assert adapted.loss == "chunked:9"
    assert adapted.adapter is not None
    assert adapted.adapter.dropout == 0.05
    assert job(LLAMA, runtime="litgpt").loss == "standard"
    none = job(LLAMA, runtime="litgpt", adapter={"kind": "lora", "dropout": 0})
    assert none.adapter is not None
    assert none.adapter.dropout == 0


def test_quantized_weights_have_defaults_of_their_own() -> None:
    one = job(LLAMA, runtime="litgpt", adapter={"kind": "lora"}, quantization="nf4")
    assert (one.precision, one.optimizer) == ("pure-bf16", "adamw-paged")


@pytest.mark.parametrize(
    ("raw", "keys", "told"),
    [
        (GPT2, {"runtime": "nanogpt", "adapter": {"kind": "lora"}}, "adapter: lora is not in nanogpt: it trains every"),
        (
            GPT2,
            {"runtime": "nanogpt", "activation_checkpointing": "full"},
            "full is not in nanogpt: it checkpoints nothing",
        ),
        (LLAMA, {"runtime": "nanogpt"}, "model: llama is not in nanogpt: its only model is GPT"),
        (GPT2, {"runtime": "fms-fsdp"}, "model: gpt2 is not in fms-fsdp"),
        (GPT2, {"runtime": "unsloth"}, "model: gpt2 is not modelled under unsloth (modelled there are llama"),
        (LLAMA, {"runtime": "unsloth", "parallel": {"data": 2}}, "parallel.data: unsloth trains on one device, not"),
        (LLAMA, {"runtime": "litgpt", "dropout": 0.1}, "dropout: 0.1 means nothing to litgpt"),
        (LLAMA, {"runtime": "litgpt", "frozen": ["embeddings"]}, "frozen: frozen parts are not modelled"),
        (LLAMA, {"runtime": "litgpt", "attention": "eager"}, "attention: eager cannot run for llama under litgpt"),
        (
            LLAMA,
            {"runtime": "litgpt", "adapter": {"kind": "lora"}, "quantization": "nf4", "precision": "amp-bf16"},
            "precision: amp-bf16 is not in litgpt: it refuses quantized weights with mixed precision",
        ),
        (LLAMA, {"runtime": "torchtune", "precision": "amp-bf16"}, "precision: amp-bf16 is not in torchtune"),
        (LLAMA, {"runtime": "litgpt", "adapter": {"kind": "fourierft"}}, "adapter: fourierft is not in litgpt"),
        (LLAMA, {"runtime": "litgpt", "adapter": {"kind": "ia3"}}, "adapter: ia3 is not in litgpt"),
        (LLAMA, {"runtime": "torchtun"}, "did you mean torchtune"),
    ],
)
def test_what_a_runtime_has_not_got_is_refused_with_the_reason(
    raw: dict[str, Any], keys: dict[str, Any], told: str
) -> None:
    assert told in refused(raw, **keys)


def test_code_that_is_not_written_down_is_told() -> None:
    assert "unsloth's own code of llama is not modelled" in assumed(job(LLAMA, runtime="unsloth"))["model.code"]
    assert "model.code" not in assumed(job(LLAMA, runtime="litgpt"))


def test_lora_of_a_runtime_with_its_own_names_sits_on_queries_and_values() -> None:
    """Whatever the model type's own code calls its layers."""
    keys = {"model": "pythia-1.4b", "gpu": "a100", "runtime": "litgpt"}
    found = build_job({**keys, "adapter": {"kind": "lora", "rank": 8}})
    assert found.adapter is not None
    assert found.adapter.targets == ("q_proj", "v_proj")
    fused = build_job({**keys, "adapter": {"kind": "lora", "rank": 8, "targets": ["qkv_proj"]}})
    assert fused.adapter is not None
    assert fused.adapter.targets == ("q_proj", "k_proj", "v_proj")
    with pytest.raises(InputError, match="qkv"):
        build_job({**keys, "adapter": {"kind": "lora", "rank": 8, "targets": ["qkv"]}})


def test_code_without_windows_attends_to_the_whole_sequence() -> None:
    """torchtune hands its attention no mask of Mistral's window, so the model is one that has none."""
    keys: dict[str, Any] = {"model": "mistral-7b", "gpu": "a100", "runtime": "torchtune", "micro_batch_size": 1}
    reached, short = job(keys, sequence_length=8192), job(keys, sequence_length=2048)
    assert (reached.model.sliding_window, reached.attention) == (None, "flash")
    assert any("no windows" in one.why for one in reached.assumptions)
    assert short.model.sliding_window == 4096
    assert job({**keys, "runtime": "transformers"}, sequence_length=8192).model.sliding_window == 4096
