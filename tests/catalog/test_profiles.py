"""Profiles: lookup by name, alias and path; sources; and what a broken one says."""

import builtins
from pathlib import Path

import pytest

from vramplan.catalog import gpus, locate, models, reading
from vramplan.catalog.config_classes import MODEL_TYPES, NEUTRAL
from vramplan.catalog.locate import Kind, aliases_in, files
from vramplan.catalog.text import STDIN_NAMES
from vramplan.catalog.unfound import unknown
from vramplan.errors import InputError

GPU = """\
kind: gpu
name: {name}
title: A card
aliases: [{name}-alias, Tesla {name}]
note: >
  only a
  fixture
sources:
  sheet: {{title: A sheet, url: https://example.org, accessed: "2026-11-20"}}
fields:
  vendor: {{value: nvidia, source: sheet}}
  architecture: {{value: volta, source: sheet}}
  memory: {{value: 32 GiB, source: sheet}}
  visible_memory: {{value: null, reason: not published}}
  compute_capability: {{value: 7.0, source: sheet}}
  bf16: {{value: false, source: sheet}}
  memory_bandwidth: {{value: 900 GB/s, source: sheet}}
  link_bandwidth: {{value: 300 GB/s, source: sheet, direction: bidirectional_total, note: all links}}
  tdp: {{value: 300 W, source: sheet}}
"""
MODEL = """\
kind: model
name: {name}
sources: {{paper: {{title: A paper, url: https://example.org, accessed: "2026-11-20"}}}}
fields:
  family: {{value: gpt2, source: paper}}
  layers: {{value: {layers}, unit: blocks, source: paper}}
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of profiles in place of the shipped ones."""
    for kind in ("gpus", "models"):
        (tmp_path / "shipped" / kind).mkdir(parents=True)
        (tmp_path / "mine" / kind).mkdir(parents=True)
    for name in ("card", "other", "third"):
        (tmp_path / "shipped/gpus" / f"{name}.yaml").write_text(GPU.format(name=name))
    (tmp_path / "shipped/models/net.yaml").write_text(MODEL.format(name="net", layers=3))
    monkeypatch.setattr(locate, "shipped_dirs", lambda: [tmp_path / "shipped"])
    return tmp_path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are opened."""
    seen: list[str] = []
    real = builtins.open
    monkeypatch.setattr(
        builtins, "open", lambda file, *rest, **more: (seen.append(str(file)), real(file, *rest, **more))[1]
    )
    return seen


def test_a_name_reads_one_file(tree: Path, opened: list[str]) -> None:
    for spelling in ("card", "CARD", " Card "):
        opened.clear()
        with reading.opened(reading.FileMemo(most_files=0)):
            assert gpus.find_gpu(spelling).name == "card"
        assert [Path(file).name for file in opened if file.endswith(".yaml")] == ["card.yaml"]


def test_a_session_looks_at_a_folder_once_and_again_when_a_file_in_it_is_another(tree: Path) -> None:
    folder, shipped = tree / "mine/gpus", locate._shipped_dirs()[0] / "gpus"
    with reading.opened(reading.FileMemo()):
        assert locate._own_files(folder) is locate._own_files(folder)
        assert gpus.match_gpu("mine-alias", [tree / "mine"]) is None
        (folder / "mine.yaml").write_text(GPU.format(name="mine"))
        assert gpus.match_gpu("mine-alias", [tree / "mine"]) is not None
        (folder / "mine.yaml").write_text(GPU.format(name="mine").replace("mine-alias", "another"))
        assert gpus.match_gpu("mine-alias", [tree / "mine"]) is None
        assert gpus.match_gpu("another", [tree / "mine"]) is not None
        (folder / "mine.yaml").unlink()
        assert gpus.match_gpu("another", [tree / "mine"]) is None
    assert locate._shipped_files(shipped) is locate._shipped_files(shipped)


def test_the_shape_of_a_profile_is_read_again_when_its_file_is_another(tree: Path) -> None:
    path = tree / "mine/models/net.yaml"
    with reading.opened(reading.FileMemo()):
        for layers in (3, 21):
            path.write_text(MODEL.format(name="net", layers=layers))
            shape = models.load_model_shape(path)
            assert shape.layers == layers
            assert models.load_model_shape(path) is shape


@pytest.mark.parametrize("alias", ["card-alias", "Card_Alias", "tesla card", "Tesla-CARD"])
def test_an_alias_finds_the_profile(tree: Path, alias: str) -> None:
    assert gpus.find_gpu(alias).name == "card"


@pytest.mark.parametrize(
    "written",
    [
        *("[a, fast card]", "[fast card]", "[ fast card ]", "['fast card', a]", '["fast-card"]', "[\n  fast card\n]"),
        *("\n- fast card", "\n  -   Fast_Card  # a comment", "\n  - 'fast card'", "\n  - fast\n    card\n  - a"),
        *("[a,fast card]", "\n  - &one fast card", "\n  - >-\n    fast card", "\n  - |-\n    fast card"),
        "[ # a comment\n  fast card]",
    ],
)
def test_an_alias_is_found_however_it_is_written(tree: Path, written: str) -> None:
    path = tree / "shipped/gpus/card.yaml"
    path.write_text(path.read_text().replace("[card-alias, Tesla card]", written))
    assert "fast-card" in map(locate.slug, gpus.find_gpu("card").aliases)
    assert gpus.find_gpu("fast card").name == "card"


def test_a_label_reads_no_profile_that_only_speaks_of_it(tree: Path, opened: list[str]) -> None:
    assert gpus.match_gpu("fixture") is None
    assert gpus.match_gpu("a") is None
    assert opened == []


@pytest.mark.parametrize(
    ("short", "card"),
    [("h10", "h100"), ("rtx-409", "rtx-4090"), ("mi30", "mi300a or mi300x"), ("tesla v10", "tesla-v100")],
)
def test_a_name_cut_short_names_what_it_begins(short: str, card: str) -> None:
    with pytest.raises(InputError, match=rf"did you mean {card}\b"):
        gpus.find_gpu(short)


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),  # as its driver calls it
        ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", "rtx-3050-laptop-6gb"),
        ("NVIDIA RTX A2000 8GB Laptop GPU", "rtx-a2000-laptop-8gb"),
        ("NVIDIA RTX 4000 Ada Generation Laptop GPU", "rtx-4000-ada-laptop"),
        ("4090 laptop", "rtx-4090-laptop"),
        ("rtx 3080 mobile", "rtx-3080-laptop-8gb"),
    ],
)
def test_the_gpu_of_a_laptop_is_not_the_card_of_its_name(name: str, card: str) -> None:
    assert gpus.find_gpu(name).name == card


@pytest.mark.parametrize(
    ("kind", "word", "hint"),
    [
        ("models", "lama-3", "did you mean llama-3-8b or llama-3-70b or llama-3.1-8b or llama-3.2-1b?"),
        ("models", "lama-3.1-8b", "did you mean llama-3.1-8b or llama-3-8b?"),  # and not an alias of the first
        ("models", "bert-lrge", "did you mean bert-large or hubert-large?"),
        ("models", "mixtrel", "did you mean mixtral-8x7b or mixtral-8x22b?"),
        ("gpus", "rtx4900", "did you mean rtx4090 or rtx4080 or rtx4070?"),
    ],
)
def test_a_slip_of_a_letter_leads_to_what_was_meant(kind: Kind, word: str, hint: str) -> None:
    assert unknown(kind, word, ()).hint == hint


def test_a_name_that_is_near_nothing_leads_to_the_list() -> None:
    assert unknown("models", "zephir", ()).hint == f"vramplan models lists all {len(files('models', ()))}"


def test_an_unknown_name_names_the_nearest(tree: Path) -> None:
    with pytest.raises(InputError) as caught:
        gpus.find_gpu("crad")
    assert str(caught.value) == "gpu: there is no GPU profile 'crad' (did you mean card?)"
    with pytest.raises(InputError, match="known: card, other, third"):
        gpus.find_gpu("zzzzzz")
    with pytest.raises(InputError, match="tesla-card"):
        gpus.find_gpu("tesla_cord")


@pytest.mark.parametrize("name", ["../card", "card/../card", "", " ", "\0", "x" * 5000, "*", "card.", "-card", "\n"])
def test_odd_names_are_unknown_and_no_paths(tree: Path, name: str) -> None:
    with pytest.raises(InputError):
        gpus.find_gpu(name)


def test_the_fields_of_a_gpu(tree: Path) -> None:
    profile = gpus.find_gpu("card")
    assert profile.sources["sheet"].url == "https://example.org"
    assert profile.fields["memory"].text == "32 GiB"
    assert profile.fields["link_bandwidth"].direction == "bidirectional_total"
    assert profile.fields["visible_memory"].reason == "not published"
    assert (profile.fields["tdp"].value, profile.fields["tdp"].source) == (300.0, "sheet")
    gpu = profile.gpu()
    assert (gpu.capacity_bytes, gpu.capacity_basis) == (32 * 2**30, "nominal")
    assert (gpu.compute_capability, gpu.bf16, gpu.flash_attention) == ("7.0", False, None)
    assert gpu.note == "only a fixture"
    assert gpu.memory_bandwidth_bytes_per_s == 900e9


def test_capacity_is_what_the_framework_sees_where_a_source_says_so(tree: Path) -> None:
    path = tree / "shipped/gpus/card.yaml"
    path.write_text(
        path.read_text().replace("{value: null, reason: not published}", "{value: 31.74 GiB, source: sheet}")
    )
    gpu = gpus.find_gpu("card").gpu()
    assert (gpu.capacity_bytes, gpu.capacity_basis) == (34080565493, "visible")  # rounded down


def test_the_users_folder_adds_and_shadows(tree: Path) -> None:
    mine = tree / "mine"
    (mine / "gpus/card.yaml").write_text(GPU.format(name="card").replace("32 GiB", "8 GiB"))
    (mine / "gpus/new.yaml").write_text(GPU.format(name="new"))
    assert gpus.find_gpu("card", [mine]).gpu().capacity_bytes == 8 * 2**30
    assert gpus.find_gpu("new-alias", [mine]).name == "new"
    assert [profile.name for profile in gpus.list_gpus([mine])] == ["card", "new", "other", "third"]
    assert locate.check_profile_dirs([mine]) == (mine,)


def test_folders_that_hold_no_profiles_are_refused(tree: Path) -> None:
    with pytest.raises(InputError) as caught:
        locate.check_profile_dirs([tree / "nowhere", tree])
    assert len(caught.value.problems) == 2


def test_a_path_is_read_as_it_is(tree: Path, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "special.yaml"
    path.write_text(GPU.format(name="card").replace("32 GiB", "9 GiB"))
    assert gpus.find_gpu(str(path)).gpu().capacity_bytes == 9 * 2**30
    monkeypatch.chdir(tmp_path)
    assert gpus.find_gpu("special.yaml").name == "card"
    with pytest.raises(InputError, match=r"nope.yaml: no such file"):
        gpus.find_gpu("nope.yaml")


def test_every_problem_of_a_profile_comes_at_once(tree: Path) -> None:
    path = tree / "shipped/gpus/card.yaml"
    path.write_text(
        "kind: gpuu\nname: card\nsources:\n  s: {title: t, url: u}\n"
        "fields:\n  memory: 32 GiB\n  bf16: {value: nope, source: x}\n"
        "  memori: {value: 1, source: s}\n  tdp: {value: 300}\n  fp8: {value: null}\n  fp16: {value: 5 GB, source: s}\n"
    )
    with pytest.raises(InputError) as caught:
        gpus.find_gpu("card")
    text = str(caught.value)
    for part in (
        "card.yaml:1:7: kind: this is a profile of kind 'gpuu', not 'gpu'",
        "card.yaml:4:6: sources.s.accessed: required key is missing",
        "card.yaml:6:11: fields.memory: a value needs its source (memory: {value: 32 GiB, source: ID})",
        "card.yaml:7:17: fields.bf16.value: expected true or false, not 'nope'",
        "card.yaml:7:31: fields.bf16.source: 'x' is not among the sources of this file",
        "card.yaml:8:3: fields.memori: unknown key (did you mean memory",
        "fields.tdp: a value needs its source",
        "fields.fp8: an unknown value needs a reason",
        "fields.fp16.value: '5 GB': 'GB' is not a unit of FLOP per time",
    ):
        assert part in text, part


def test_a_profile_without_memory_is_refused(tree: Path) -> None:
    path = tree / "shipped/gpus/card.yaml"
    path.write_text(path.read_text().replace("{value: 32 GiB, source: sheet}", "{value: null, reason: unknown}"))
    with pytest.raises(InputError, match="memory is missing"):
        gpus.find_gpu("card")


def test_a_broken_profile_does_not_hide_the_others(tree: Path) -> None:
    (tree / "shipped/gpus/abroken.yaml").write_text("aliases: [tesla card, lost]\n kind: [")
    assert gpus.find_gpu("tesla card").name == "card"
    with pytest.raises(InputError, match=r"abroken\.yaml"):
        gpus.find_gpu("lost")
    with pytest.raises(InputError, match=r"abroken\.yaml"):
        gpus.list_gpus()
    with pytest.raises(InputError, match="did you mean card"):
        gpus.find_gpu("cardd")


def test_a_model_profile_may_leave_out_what_has_a_default(tree: Path) -> None:
    shape, assumptions = models.find_model("net")
    assert (shape.layers, shape.hidden_size, shape.vocabulary_size, shape.name) == (3, 768, 50257, "net")
    assert {assumption.key for assumption in assumptions} == {
        *("model.hidden_size", "model.attention_heads", "model.vocabulary_size"),
    }
    assert models.find_model_profile("net").fields["layers"].unit == "blocks"


def test_a_model_profile_that_makes_no_network_is_refused_where_it_says_so(tree: Path) -> None:
    path = tree / "shipped/models/net.yaml"
    path.write_text(MODEL.format(name="net", layers=3) + "  attention_heads: {value: 7, source: paper}\n")
    with pytest.raises(InputError, match="hidden_size: 768 is not a multiple of the 7 attention heads"):
        models.find_model("net")
    path.write_text(MODEL.format(name="net", layers=3).replace("gpt2", "umt5"))
    with pytest.raises(InputError, match=r"net.yaml:5:11: fields.family: umt5 is not modelled"):
        models.find_model("net")


def test_an_alias_may_have_the_form_of_the_hub(tree: Path) -> None:
    path = tree / "shipped/models/net.yaml"
    path.write_text(path.read_text() + "aliases: [Someone/Net-3B]\n")
    assert models.find_model("someone/net-3b")[0].name == "net"


def test_a_file_in_the_current_folder_is_pointed_at(tree: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"write \./checkpoint"):
        models.find_model("checkpoint")


def test_listing_reads_every_shipped_profile() -> None:
    for profile in gpus.list_gpus():
        assert profile.gpu().capacity_bytes > 2**30
        assert profile.name == Path(profile.file).stem
    for model in models.list_models():
        assert model.shape().layers > 0
        assert model.name == Path(model.file).stem
        kind = MODEL_TYPES[model.shape().transformers_model_type]
        chosen = kind.defaults
        optional = {"classes", "sliding_window", "sliding_window_start", "rope_scaling"} | (set(NEUTRAL) - set(chosen))
        optional |= {"unknown_type", "dtype", "recipe_global_batch_size"}  # which are not published of each
        optional |= {"layer_input_size"} | {
            key for key, one in chosen.items() if one is None
        }  # which say that there is none
        if kind.tasks == ("image",):
            optional |= {"vocabulary_size", "tied_embeddings", "token_types"}
        if kind.tasks == ("ctc",):  # whose files leave the switches of their class as they are
            optional |= {"max_positions"} | {key for key in chosen if key.startswith("waveform.")}
        if kind.fixed.get("attention_heads") == 0 or "depths" in kind.defaults:
            optional |= set(kind.fixed) | {"image_size"}
        assert set(model.fields) >= set(models.FIELDS) - optional


def test_names_are_sorted_as_people_count(tree: Path) -> None:
    for name in ("a10", "a9"):
        (tree / "shipped/gpus" / f"{name}.yaml").write_text(GPU.format(name=name))
    assert [profile.name for profile in gpus.list_gpus()][:2] == ["a9", "a10"]


def test_stdin_is_no_profile() -> None:
    assert "-" in STDIN_NAMES
    with pytest.raises(InputError):
        gpus.find_gpu("-")


def test_aliases_read_from_the_text_are_those_that_are_parsed() -> None:
    for profile in (*gpus.list_gpus(), *models.list_models()):
        assert aliases_in(Path(profile.file).read_text("utf-8")) == list(profile.aliases)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gpt-2-xl", "gpt2-xl"),
        ("llama33b", "llama-30b"),
        ("llama-3-3b", None),
        ("llama3-3b", None),
        ("qwen-25-7b", None),
    ],
)
def test_a_dash_between_digits_is_part_of_a_name(name: str, found: str | None) -> None:
    if found is not None:
        assert models.find_model(name)[0].name == found
        return
    with pytest.raises(InputError):
        models.find_model(name)


def test_a_shipped_name_is_found_without_reading_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first command asks for such names: to read the text of all profiles takes a tenth of an answer."""
    monkeypatch.setattr(locate._File, "low", property(lambda file: pytest.fail(f"{file.path} was read")))
    assert locate.shipped_called("gpus", "RTX 4090") == "rtx-4090"
    assert locate.shipped_called("models", "gpt2-xl") == "gpt2-xl"


@pytest.mark.parametrize("kind", locate.LABELS)
def test_each_name_and_alias_is_that_of_its_profile(kind: locate.Kind) -> None:
    """No alias belongs to two profiles, and none is the name of another."""
    for stem, aliases in locate.aliases_by_name(kind, ()).items():
        assert {locate.shipped_called(kind, name) for name in (stem, *aliases)} == {stem}


def test_no_name_of_a_gpu_begins_with_that_of_a_model() -> None:
    """So a word that names a model is whole, and no GPU is looked for that begins with it."""
    of_models, of_gpus = (
        {locate.slug(name) for stem, aliases in locate.aliases_by_name(kind, ()).items() for name in (stem, *aliases)}
        for kind in ("models", "gpus")
    )
    assert not [gpu for gpu in of_gpus if any(gpu.startswith(f"{model}-") for model in of_models)]
