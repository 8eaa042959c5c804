"""`gpus` and `models`: the list, the filters, every field with its source; and every shipped profile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import fit, refused, run, valid
from vramplan.answers.fit import answer
from vramplan.catalog.counting import in_code
from vramplan.catalog.gpus import list_gpus
from vramplan.catalog.models import list_models
from vramplan.catalog.profile import Profile
from vramplan.job import build_job
from vramplan.options.words import RUNTIMES
from vramplan.planner.checkpoints import segments_in
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

ROOT = Path(__file__).resolve().parents[2]
GPUS = {profile.name: profile for profile in list_gpus()}
MODELS = {profile.name: profile for profile in list_models()}
UNITLESS = {
    "vendor",
    "architecture",
    "compute_capability",
    "bf16",
    "flash_attention",
    "fp8",
    "dtype",
    "multiprocessors",
    "link_peers",
    "link_domain",
}
WORDS = {
    *("family", "transformers_model_type", "task", "tied_embeddings", "positions", "activation", "gated_mlp"),
    *("qkv_bias", "output_bias", "mlp_bias", "qk_norm", "parallel_residual", "pre_norm"),
    *(
        "keys_as_values",
        "wide_sharing_layers",
        "clipped_qkv",
        "scaled_embeddings",
        "vision_rotary",
        "scaled_queries",
        "text_type",
        "vision_qkv_bias",
        "vision_newline",
        "linear_attention.layers",
    ),
    *(
        "attention_softcap",
        "rope_scaling",
        "new_decoder_architecture",
        "logit_softcap",
        "unrotated_layers",
        "vision_activation",
    ),
    *("sliding_window_pattern", "vision_full_layers", "vision_deepstack_layers"),
    *("vision_tapped_layers", "cross_attention_layers"),
    *("experts.normalized", "experts.dense_layers", "latent_attention.interleaved"),
    *("state_space.layers", "state_space.feedforward_layers", "state_space.norm"),
    *("state_space.conv_bias", "state_space.input_bias", "state_space.output_bias"),
    *("short_convolution.bias", "short_convolution.layers"),
    *("waveform.widths", "waveform.kernels", "waveform.strides", "waveform.bias", "waveform.norm"),
    *("waveform.projection_norm", "waveform.masks"),
    *("unet.mirrored", "unet.fp32_rotary", "unet.attention_free"),
    *("bottleneck", "downsample_in_first_stage", "downsample_in_bottleneck", "drops_paths", "unknown_type"),
}


def gpus(*words: str) -> dict[str, Any]:
    rows = valid("gpus", run("gpus", *words, "--format", "json").document)["gpus"]
    return {row["name"]: row for row in rows}


def models(*words: str) -> dict[str, Any]:
    rows = valid("models", run("models", *words, "--format", "json").document)["models"]
    return {row["name"]: row for row in rows}


def test_at_least_forty_five_gpus_and_sixty_models_are_shipped() -> None:
    assert len(gpus()) >= 45
    assert len(models()) >= 60
    for kind, names in (("gpus", gpus()), ("models", models())):
        assert set(names) == {path.stem for path in (ROOT / "profiles" / kind).iterdir()}
    for name in ("v100", "v100-16gb", "t4", "p100", "a10", "a100-40gb", "a100-80gb", "h200", "l4", "l40s", "rtx-3090"):
        assert name in gpus()


def test_the_filters_of_gpus() -> None:
    everything = gpus()
    named = {name for name, profile in GPUS.items() if any("v100" in word for word in (name, *profile.aliases))}
    assert set(gpus("--name", "V100")) == named > {"v100", "v100-16gb", "v100s"}
    assert set(gpus("--name", "1080ti")) == {"gtx-1080-ti"}  # an alias
    large = gpus("--min-memory", "40 GiB")
    assert set(large) == {name for name, row in everything.items() if row["capacity_bytes"] >= 40 * 2**30}
    assert set(gpus("--bf16")) == {name for name, row in everything.items() if row["bf16"]}
    assert set(gpus("--flash")) == {name for name, row in everything.items() if row["flash_attention"]}
    volta = gpus("--architecture", "Volta")
    assert set(volta) == {name for name, row in everything.items() if row["architecture"] == "volta"}
    both = gpus("--architecture", "ampere", "--min-memory", "40 GiB", "--bf16", "--name", "a100")
    assert {"a100-80gb", "a100-pcie-80gb"} <= set(both)
    for name, row in everything.items():
        wanted = row["architecture"] == "ampere" and row["capacity_bytes"] >= 40 * 2**30 and row["bf16"]
        assert (name in both) == (wanted and any("a100" in word for word in (name, *row["aliases"]))), name


def test_the_filters_of_models() -> None:
    everything = models()
    for family in ("gpt2", "llama", "bert"):
        found = models("--family", family)
        assert found
        assert set(found) == {name for name, row in everything.items() if row["family"] == family}
    assert set(models("--name", "gpt2-x")) == {"gpt2-xl"}


def test_the_lists_show_every_row() -> None:
    for command, names in (("gpus", GPUS), ("models", MODELS)):
        lines = run(command).out.splitlines()
        assert [line.split()[0] for line in lines[1:]] == list(names)


@pytest.mark.sweep(20)
@pytest.mark.parametrize(("kind", "name"), [*(("gpus", name) for name in GPUS), *(("models", name) for name in MODELS)])
def test_every_field_has_a_value_with_unit_and_source_or_a_reason(kind: str, name: str) -> None:
    document = valid(
        "gpu-profile" if kind == "gpus" else "model-profile", run(kind, "show", name, "--format", "json").document
    )
    assert document["name"] == name
    assert document["title"]
    for key, field in document["fields"].items():
        if field["value"] is None:
            assert field["reason"], key
            continue
        assert (
            field["unit"]
            or key in UNITLESS | WORDS
            or isinstance(field["value"], bool)
            or "TFLOP" in str(field["value"])
            or re.search(r"\d ?[A-Za-z]", str(field["value"]))
        ), key
        source = field["source"]
        assert source["title"], key
        assert re.match(r"https?://", source["url"]), key
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", source["date"]), key


@pytest.mark.parametrize(("kind", "name"), [("gpus", "v100"), ("models", "gpt2-xl")])
def test_show_prints_unit_title_and_date_of_every_field(kind: str, name: str) -> None:
    document = run(kind, "show", name, "--format", "json").document
    text = run(kind, "show", name).out
    for key, field in document["fields"].items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {key} ")]
        if field["unit"] and field["value"] is not None:
            assert line.endswith(f" {field['unit']}")
        if field["source"]:
            assert f"{field['source']['title']}, {field['source']['date']}" in text
            assert field["source"]["url"] in text
        else:
            assert field["reason"] in text


@pytest.mark.parametrize("profiles", [GPUS, MODELS], ids=["gpus", "models"])
def test_names_and_aliases_are_unique(profiles: dict[str, Profile]) -> None:
    names = [name for profile in profiles.values() for name in (profile.name, *profile.aliases)]
    assert len(names) == len({name.lower() for name in names})


@pytest.mark.sweep(12)
@pytest.mark.parametrize(
    ("word", "name"),
    [
        *(("4090", "rtx-4090"), ("rtx4090", "rtx-4090"), ("RTX 4090", "rtx-4090"), ("3090ti", "rtx-3090-ti")),
        *(("a100", "a100-80gb"), ("h100", "h100-80gb"), ("a6000", "rtx-a6000"), ("A100_SXM4_40GB", "a100-40gb")),
        *(("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("Tesla T4", "t4")),
        *(("NVIDIA H100 80GB HBM3", "h100-80gb"), ("AMD Instinct MI300X", "mi300x"), ("nvidia-l40s", "l40s")),
        *(("dgx-spark", "gb10"), ("gh200", "gh200-96gb"), ("v100", "v100"), ("NVIDIA RTX A6000", "rtx-a6000")),
    ],
)
def test_what_people_type_and_drivers_print_finds_the_card(word: str, name: str) -> None:
    assert fit("-m", "bert-tiny", "-g", word)["job"]["gpu"]["name"] == name


def test_a_name_that_several_sizes_share_is_asked_back() -> None:
    err = refused("fit", "-m", "bert-tiny", "-g", "rtx-4060-ti").err
    assert "rtx-4060-ti-16gb" in err
    assert "rtx-4060-ti-8gb" in err


def test_every_amd_card_says_what_rocm_changes() -> None:
    cards = [profile for profile in GPUS.values() if profile.value("vendor") == "amd"]
    assert {profile.name for profile in cards} >= {"mi210", "mi250", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x"}
    for profile in cards:
        for word in ("ROCm", "flash attention", "context"):
            assert word in (profile.note or ""), profile.name
    warnings = fit("-m", "bert-tiny", "-g", "mi300x")["warnings"]
    assert any("ROCm" in warning for warning in warnings)


@pytest.mark.sweep(20)
@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_can_be_planned_for_by_its_name_and_by_its_aliases(name: str) -> None:
    profile = GPUS[name]
    for word in (name, *profile.aliases):
        assert build_job({"model": "bert-tiny", "gpu": word}).gpu == profile.gpu()
    assert answer(build_job({"model": "bert-tiny", "gpu": name})).verdict == "fits"


@pytest.mark.sweep(8)
@pytest.mark.closed_form
@pytest.mark.parametrize("name", MODELS)
def test_the_counted_parameters_of_every_model_are_the_declared_ones(name: str) -> None:
    shape = in_code(MODELS[name].shape())
    setup = Setup(
        model=shape,
        precision="amp-bf16",
        sequence_length=128 * shape.takes_text,
        image_size=shape.image_size,
        attention="efficient",
        segments=segments_in("none", shape.stacks),
        optimizer="adamw",
        optimizer_implementation="fused",
        accumulating=False,
        hold_outputs=False,
    )
    record = replay(setup)
    assert shape.declared_parameters is not None
    assert record.parameters == shape.declared_parameters
    experts = shape.experts
    biases = experts.routed * (shape.layers - len(experts.dense_layers)) if experts is not None else 0
    untrained = {
        **dict.fromkeys(("afmoe", "ernie4_5_moe"), biases),  # of routers
        "whisper": (shape.audio_positions or 0) * shape.hidden_size,  # sines
        **dict.fromkeys(("pegasus", "marian"), 2 * shape.max_positions * shape.hidden_size),  # sines of both stacks
    }
    assert record.parameters - record.trainable_parameters == untrained.get(shape.family, 0)


@pytest.mark.truth
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("llama-3-8b", 8_030_261_248),
        ("llama-2-7b", 6_738_415_616),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_published_parameter_counts(name: str, count: int) -> None:
    found = fit("-m", name, "-g", "h200")
    assert found["parameters"] == {"total": count, "trainable": count, "active": None}
    assert not [warning for warning in found["warnings"] if "parameters" in warning]
    assert models("--name", name)[name]["parameters"] == count


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for kind in ("gpus", "models"):
        (tmp_path / kind).mkdir()
    source = "sources: {s: {title: T, url: 'https://example.org', accessed: '2026-01-01'}}\n"
    (tmp_path / "gpus" / "mine.yaml").write_text(
        "kind: gpu\nname: mine\ntitle: My card\naliases: [my-card]\n"
        + source
        + "fields:\n  memory: {value: 10, unit: GiB, source: s}\n".replace("value: 10, unit: GiB", "value: 10 GiB")
        + "  bf16: {value: null, reason: nobody says}\n"
    )
    (tmp_path / "gpus" / "v100.yaml").write_text(
        "kind: gpu\nname: v100\ntitle: A larger one\n" + source + "fields: {memory: {value: 99 GiB, source: s}}\n"
    )
    (tmp_path / "models" / "small.yaml").write_text(
        "kind: model\nname: small\ntitle: Small\n" + source + "fields:\n"
        "  family: {value: gpt2, source: s}\n  layers: {value: 2, unit: blocks, source: s}\n"
    )
    return tmp_path


def test_a_folder_of_profiles_adds_to_the_shipped_ones_and_shadows_them(folder: Path) -> None:
    assert set(gpus("--profiles", str(folder))) == {*GPUS, "mine"}
    assert gpus("--profiles", str(folder))["v100"]["capacity_bytes"] == 99 * 2**30
    assert set(models("--profiles", str(folder))) == {*MODELS, "small"}
    assert "My card" in run("gpus", "show", "my-card", "--profiles", folder).out
    found = fit("-m", "small", "-g", "my-card", "--profiles", folder)
    assert (found["capacity_bytes"], found["job"]["model"]["layers"]) == (10 * 2**30, 2)
    assert fit("-m", "small", "-g", "v100", "--profiles", folder)["capacity_bytes"] == 99 * 2**30
    for words in (("fit", "-m", "small", "-g", "t4"), ("gpus", "show", "mine")):
        refused(*words)


def test_a_profile_is_found_by_its_path(folder: Path) -> None:
    found = fit("-m", folder / "models" / "small.yaml", "-g", folder / "gpus" / "mine.yaml")
    assert found["job"]["gpu"]["name"] == "mine"
    assert run("gpus", "show", folder / "gpus" / "mine.yaml").code == 0


def test_a_broken_profile_is_named_by_who_needs_it_and_only_by_them(folder: Path) -> None:
    broken = folder / "gpus" / "broken.yaml"
    broken.write_text("kind: gpu\nname: broken\n")
    for words in (("gpus",), ("gpus", "show", "broken"), ("fit", "-m", "gpt2", "-g", "broken")):
        assert str(broken) in refused(*words, "--profiles", folder).err
    assert run("fit", "-m", "small", "-g", "mine", "--profiles", folder).code == 0
    assert run("fit", "-m", "gpt2-xl", "-g", "mine", "--profiles", folder).code == 3  # remedies look at all cards


def test_a_folder_that_is_none_is_refused_everywhere(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "nowhere", tmp_path / "file", tmp_path):
        for words in (("gpus",), ("models",), ("gpus", "show", "v100"), ("fit", "-m", "gpt2", "-g", "t4")):
            assert str(folder) in refused(*words, "--profiles", folder).err


def test_a_hugging_face_config_is_a_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25}')
    for path in (config, tmp_path):
        found = fit("-m", path, "-g", "v100", "--global-batch", 512)
        assert found["parameters"]["total"] == 1_557_611_200
        assert found["peak"] == fit("-m", "gpt2-xl", "-g", "v100")["peak"]
    config.write_text('{"model_type": "rwkv"}')
    err = refused("fit", "-m", config, "-g", "v100").err
    assert "'rwkv' is not modelled (`vramplan models` lists what is; give a model of the same sizes" in err


def test_runtimes_are_listed_with_what_they_decide() -> None:
    rows = json.loads(run("runtimes", "--format", "json").out)["runtimes"]
    found = {row["name"]: row for row in rows}
    assert set(found) == set(RUNTIMES) - {"textbook"}
    assert (found["torchtune"]["precision"], found["torchtune"]["loss"]) == ("pure-bf16", "chunked:8")
    assert found["unsloth"]["sharding"] is None
    assert json.loads(run("runtimes", "--name", "tune", "--format", "json").out)["runtimes"] == [found["torchtune"]]


def test_a_runtime_is_shown_with_its_sources() -> None:
    shown = json.loads(run("runtimes", "show", "litgpt", "--format", "json").out)
    assert shown["fields"]["adapter_dropout"]["value"] == "0.05"
    assert shown["fields"]["adapter_dropout"]["source"]["url"].startswith("https://")
    assert "did you mean litgpt" in refused("runtimes", "show", "litgtp").err


def test_a_word_behind_a_list_shows_a_profile_or_is_a_part_of_the_names() -> None:
    for same in (
        (("gpus", "a100"), ("gpus", "show", "a100")),
        (("models", "gpt2"), ("models", "show", "gpt2")),
        (("runtimes", "litgpt", "--format", "json"), ("runtimes", "show", "litgpt", "--format", "json")),
        (("models", "qwen2.5"), ("models", "--name", "qwen2.5")),
        (("models", "gpt-2"), ("models", "--name", "gpt2")),
        (("models", "Llama", "--family", "mllama"), ("models", "--name", "llama", "--family", "mllama")),
        (("gpus", "ls"), ("gpus",)),
        (("runtimes", "list"), ("runtimes",)),
    ):
        typed, meant = (run(*words) for words in same)
        assert (typed.code, typed.out) == (0, meant.out)
    assert "no GPU profile 'h1000'" in refused("gpus", "h1000").err


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("gpus 40gb", ("--min-memory", "40gb")),
        ("gpus at least 80 GB", ("--min-memory", "80 GB")),
        ("gpus hopper", ("--architecture", "hopper")),
        ("gpus ampere bf16 40gb", ("--architecture", "ampere", "--bf16", "--min-memory", "40gb")),
        ("gpus rtx 4090", ("show", "rtx-4090")),
        ("gpus a100 80gb", ("show", "a100-80gb")),
        ("models qwen2.5 7b", ("show", "qwen2.5-7b")),
        ("models llama 8b", ("--name", "llama 8b")),
    ],
)
def test_words_behind_a_list_are_a_profile_or_filters(words: str, options: tuple[str, ...]) -> None:
    kind = words.split()[0]
    spoken, typed = run(*words.split()), run(kind, *options)
    assert (spoken.code, spoken.out) == (typed.code, typed.out)
    assert spoken.code == 0
    assert "llama-3.1-8b" in spoken.out or kind == "gpus" or "show" in options


def test_words_that_no_profile_has_are_refused() -> None:
    assert "no gpus are called 'quux 3'" in refused("gpus", "quux", "3").err
