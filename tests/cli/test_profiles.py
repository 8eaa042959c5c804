"""`vramplan profiles`: lint, new, diff, path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.running import refused, run, valid
from vramplan.catalog import gpus, lint, locate, models, runtimes, skeleton, stacks
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.lint import files_of
from vramplan.report.profiles import lint as report

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"gpu": "a100-80gb", "model": "llama-3.2-1b", "runtime": "transformers", "stack": "cuda-c"}
FIELDS = {"gpu": gpus.FIELDS, "model": models.FIELDS, "runtime": runtimes.FIELDS, "stack": stacks.FIELDS}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "vramplan" / "profiles"


def linted(*words: object) -> Any:
    ran = run("profiles", "lint", *words, "--format", "json")
    document = valid("profile-lint", ran.document)
    assert ran.code == (2 if document["summary"]["errors"] else 0), ran
    return document


def changed(tmp_path: Path, source: str, *changes: tuple[str, str], folder: str = "") -> Path:
    """A copy of a shipped profile with other text."""
    shipped = ROOT / "profiles" / source
    text = shipped.read_text("utf-8")
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    path = tmp_path / folder / shipped.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


# lint


def test_the_shipped_profiles_have_neither_errors_nor_warnings() -> None:
    count = sum(len(list((ROOT / "profiles" / kind).iterdir())) for kind in lint.KIND_OF) + 1  # mirrors.yaml
    ran = run("profiles", "lint", "--strict")
    assert (ran.code, ran.out) == (0, f"{count} profiles: 0 errors, 0 warnings\n")


def test_every_problem_of_every_file_comes_with_its_place_and_remedy(tmp_path: Path) -> None:
    first = changed(tmp_path, "gpus/t4.yaml", ("value: turing", "value: turring"), ("value: 70 W", "value: 70 kg"))
    second = tmp_path / "second.yaml"
    second.write_text("kind: gpuu\nname: [\n")
    third = tmp_path / "third.yaml"
    third.write_text("kind: gpuu\nname: x\n")
    document = linted(first, second, third)
    assert document["summary"]["errors"] == 3
    by_file = {finding["file"]: finding for finding in document["findings"]}
    assert set(by_file) == {str(first), str(second), str(third)}
    assert by_file[str(first)]["key"] == "fields.tdp.value"
    assert by_file[str(first)]["line"] == 1 + next(
        place for place, line in enumerate(first.read_text().splitlines()) if "tdp" in line
    )
    assert by_file[str(third)]["hint"] == "did you mean gpu?"
    lines = run("profiles", "lint", first, second, third).out.splitlines()
    assert len(lines) == 4  # one each in a pipe, and the count
    assert lines[0].startswith(f"{first}:")
    assert ": error: fields.tdp.value: " in lines[0]


@pytest.mark.parametrize(
    ("source", "before", "after", "key"),
    [
        ("gpus/a100-80gb.yaml", "value: 80 GiB", "value: 800 GiB", "memory"),
        ("gpus/a100-80gb.yaml", "value: 79.14 GiB", "value: 60 GiB", "visible_memory"),
        ("gpus/a100-80gb.yaml", "value: 79.14 GiB", "value: 85 GiB", "visible_memory"),
        ("gpus/a100-80gb.yaml", "value: 2039 GB/s", "value: 2039 MB/s", "memory_bandwidth"),
        ("gpus/a100-80gb.yaml", "value: 400 W", "value: 4 kW", "tdp"),
        ("gpus/a100-80gb.yaml", "fp16: {value: 312", "fp16: {value: 624", "fp16"),
        ("gpus/a100-80gb.yaml", 'value: "8.0"', 'value: "7.0"', "compute_capability"),
        ("gpus/a100-80gb.yaml", 'value: "8.0"', 'value: "80"', "compute_capability"),
        ("gpus/a100-80gb.yaml", "bf16: {value: true", "bf16: {value: false", "bf16"),
        ("gpus/a100-80gb.yaml", "fp8: {value: false", "fp8: {value: true", "fp8"),
        ("gpus/a100-80gb.yaml", "value: ampere", "value: ampre", "architecture"),
        ("gpus/a100-80gb.yaml", "vendor: {value: nvidia", "vendor: {value: amd", "vendor"),
        ("gpus/a100-80gb.yaml", ", direction: bidirectional_total", "", "link_bandwidth"),
        ("gpus/h100-80gb.yaml", "value: 1979 TFLOP/s", "value: 3958 TFLOP/s", "fp8_rate"),
        ("gpus/v100.yaml", 'bf16_rate: {value: null, reason: "no bf16 on Volta"}',
         "bf16_rate: {value: 125 TFLOP/s, source: lightning}", "bf16_rate"),
        ("gpus/mi300x.yaml", "fp8: {value: true", "fp8: {value: false", "fp8"),
        ("models/gpt2.yaml", "layers: {value: 12", "layers: {value: 13", "parameters"),
        ("models/llama-3.2-1b.yaml", "tied_embeddings: {value: true", "tied_embeddings: {value: false", "parameters"),
    ],
)  # fmt: skip
def test_a_figure_that_is_hardly_true_is_a_warning(
    tmp_path: Path, source: str, before: str, after: str, key: str
) -> None:
    path = changed(tmp_path, source, (before, after))
    ran = run("profiles", "lint", path, "--strict", "--format", "json")
    document = valid("profile-lint", ran.document)
    assert (ran.code, document["summary"]["errors"]) == (2, 0)
    found = [finding for finding in document["findings"] if finding["key"] == f"fields.{key}"]
    assert found, document["findings"]
    line = path.read_text().splitlines()[found[0]["line"] - 1]
    assert line.startswith(f"  {key}:")


def test_warnings_fail_only_where_it_is_asked_for(tmp_path: Path) -> None:
    path = changed(tmp_path, "gpus/a100-80gb.yaml", ("value: 400 W", "value: 4 kW"))
    assert (run("profiles", "lint", path, "-q").code, run("profiles", "lint", path, "-q", "--strict").code) == (0, 2)
    assert run("profiles", "lint", path, "--quiet").out == ""


def test_names_that_would_not_be_found_are_pointed_at(tmp_path: Path, home: Path) -> None:
    wrong = changed(tmp_path, "gpus/t4.yaml", ("name: t4\n", "name: t5\n"), folder="mine/gpus")
    assert "is not the name of the file" in run("profiles", "lint", tmp_path / "mine").out
    loose = changed(tmp_path, "gpus/t4.yaml", ("name: t4\n", "name: t5\n"))
    assert linted(loose)["summary"]["errors"] == 0  # by its path it is found all the same
    wrong.write_text(
        wrong.read_text().replace("name: t5\n", "name: t4\n").replace("[tesla-t4", "[V100 32GB, T4, tesla-t4")
    )
    messages = [finding["message"] for finding in linted(tmp_path / "mine")["findings"]]
    assert any("'V100 32GB' is also what v100 is called" in message for message in messages)
    assert any("is the name itself" in message for message in messages)
    misplaced = changed(tmp_path, "gpus/t4.yaml", folder="other/models")
    assert "belongs into the folder gpus" in run("profiles", "lint", misplaced).out


@pytest.mark.sweep
def test_what_is_looked_at(tmp_path: Path, home: Path) -> None:
    mine = changed(tmp_path, "gpus/t4.yaml", folder="mine/gpus")
    changed(tmp_path, "models/gpt2.yaml", folder="mine/models")
    assert linted("--profiles", tmp_path / "mine")["summary"]["files"] == 2
    assert linted(tmp_path / "mine")["summary"]["files"] == 2
    assert linted(mine, mine)["summary"]["files"] == 1
    changed(tmp_path, "gpus/t4.yaml", folder=str(home / "gpus"))
    shipped = len(files_of(locate.shipped_dirs()))
    assert linted()["summary"]["files"] == shipped + 1
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nothing"):
        assert str(path) in refused("profiles", "lint", path).err


@pytest.mark.parametrize(
    "text", ["", "[]", "kind: gpu", "\x00", "a: *b", "kind: {a: b}\n", "- kind: gpu", "kind: gpu\nkind: gpu\n"]
)
def test_a_file_that_is_none_is_a_finding_and_no_crash(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    assert linted(path)["summary"]["errors"] >= 1


@pytest.mark.parametrize("architecture", GENERATIONS)
def test_every_architecture_that_has_a_card_is_used_with_what_it_allows(architecture: str) -> None:
    cards = [profile for profile in gpus.list_gpus() if profile.value("architecture") == architecture]
    one = GENERATIONS[architecture]
    for card in cards:
        assert card.value("vendor") == one.vendor
        assert card.value("compute_capability") in (*one.targets, None)
    assert one.memory_gib[0] <= one.memory_gib[1]


# new


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_profile_has_every_field_and_the_linter_lists_what_is_to_do(kind: str, home: Path) -> None:
    ran = run("profiles", "new", kind, "my-thing", "--format", "json")
    document = valid("profile-new", ran.document)
    path = home / lint.FOLDER_OF[kind] / "my-thing.yaml"  # type: ignore[index]
    assert (ran.code, document["file"], document["copied_from"], document["shadows"]) == (0, str(path), None, None)
    loaded = yaml.safe_load(path.read_text("utf-8"))
    assert (loaded["kind"], loaded["name"]) == (kind, "my-thing")
    assert set(loaded["fields"]) <= set(FIELDS[kind])
    if kind == "gpu":
        assert set(loaded["fields"]) == set(FIELDS[kind])
    found = linted(path)
    assert {finding["message"] for finding in found["findings"]} == {"is still to be written"}
    assert {finding["key"].split(".")[-2] for finding in found["findings"] if "fields" in finding["key"]} == set(
        loaded["fields"]
    )
    assert len(found["findings"]) == path.read_text().count(": TODO")
    assert set(document["to_do"]) == {*loaded["fields"], "title", "url", "accessed"}


@pytest.mark.parametrize(("kind", "source"), KINDS.items())
def test_a_copy_is_the_same_profile_but_for_its_name(kind: str, source: str, home: Path) -> None:
    assert run("profiles", "new", kind, "copy", "--from", source).code == 0
    path = home / lint.FOLDER_OF[kind] / "copy.yaml"  # type: ignore[index]
    findings = linted(path)["findings"]
    assert [finding["key"] for finding in findings] == ["title"]
    load: Any = lint.LOADERS[kind]  # type: ignore[index]
    original = load(locate.shipped_file(lint.FOLDER_OF[kind], source))  # type: ignore[index]
    copy = load(path)
    assert copy.fields == original.fields
    assert copy.sources == original.sources
    assert copy.aliases == ()
    ran = run("profiles", "diff", "copy", source, "--format", "json")
    assert valid("profile-diff", ran.document)["summary"]["different"] == 0


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["gpus", "models"])
def test_a_copy_of_every_shipped_profile_is_read_back_as_it_was(kind: Any, tmp_path: Path) -> None:
    word = lint.KIND_OF[kind]
    for path in locate.files_in(kind, locate.shipped_dirs()).values():
        original = lint.LOADERS[word](path)
        target = tmp_path / f"{original.name}.yaml"
        target.write_text(skeleton.new_profile(word, original.name, original).text, "utf-8")
        copy = lint.LOADERS[word](target)
        assert (copy.fields, copy.sources) == (original.fields, original.sources), path


def test_a_file_is_never_replaced_unless_asked(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "mine.yaml"
    assert run("profiles", "new", "gpu", "mine", "-o", path).code == 0
    path.write_text("mine: yes\n")
    assert "--force" in refused("profiles", "new", "gpu", "mine", "-o", path).err
    assert path.read_text() == "mine: yes\n"
    assert run("profiles", "new", "gpu", "mine", "-o", path, "--force").code == 0
    assert path.read_text().startswith("# A profile of a GPU")
    assert "there is such a file" in refused("profiles", "new", "gpu", "x", "-o", tmp_path).err
    assert "cannot be written" in refused("profiles", "new", "gpu", "x", "-o", tmp_path, "--force").err
    assert "its folder cannot be made" in refused("profiles", "new", "gpu", "x", "-o", path / "below.yaml").err


def test_the_first_folder_of_the_variable_takes_new_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setenv("VRAMPLAN_PROFILES", os.pathsep.join(map(str, folders)))
    assert run("profiles", "new", "gpu", "mine").code == 0
    assert (folders[0] / "gpus" / "mine.yaml").is_file()


def test_standard_output_gets_the_profile_itself(home: Path) -> None:
    out = run("profiles", "new", "gpu", "mine", "--output", "-").out
    assert yaml.safe_load(out)["name"] == "mine"
    assert not home.exists()
    for words in (("--format", "json"), ("--print", "file")):
        refused("profiles", "new", "gpu", "mine", "--output", "-", *words)


def test_a_profile_that_will_shadow_says_so(home: Path) -> None:
    document = run("profiles", "new", "gpu", "v100", "--from", "v100-16gb", "--format", "json").document
    assert document["shadows"] == str(ROOT / "profiles/gpus/v100.yaml")
    assert "it shadows the shipped v100" in run("profiles", "new", "gpu", "v100", "--force").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpuu", "x"), "did you mean gpu?"),
        (("gpu", "My Card"), "my-card, say"),
        (("gpu", "../x"), "cannot be the name"),
        (("gpu", "x.yaml"), "without suffix"),
        (("gpu", ""), "cannot be the name"),
        (("gpu", "x", "--from", "a100-8gb"), "did you mean"),
        (("gpu", "x", "--from", "gpt2"), "no gpu profile"),
        (("gpu", "x", "--from", str(ROOT / "profiles/models/gpt2.yaml")), "is a model profile"),
    ],
)
def test_what_cannot_be_begun_is_refused_with_a_remedy(words: tuple[str, ...], said: str, home: Path) -> None:
    assert said in refused("profiles", "new", *words).err
    assert not home.exists()


# diff


def test_values_are_compared_and_not_their_spelling(tmp_path: Path) -> None:
    path = changed(tmp_path, "gpus/a100-80gb.yaml", ("80 GiB, ", "81920 MiB, "), ("value: 400 W", "value: 0.4 kW"))
    ran = run("profiles", "diff", path, "a100-80gb", "--format", "json")
    document = valid("profile-diff", ran.document)
    assert (ran.code, document["summary"]["different"]) == (0, 0)
    assert document["a"]["origin"] == "file"
    assert document["b"]["origin"] == "shipped"
    memory = next(row for row in document["fields"] if row["key"] == "memory")
    assert (memory["a"]["published"], memory["b"]["published"]) == ("81920 MiB", "80 GiB")
    assert memory["a"]["value"] == memory["b"]["value"] == 80 << 30


def test_two_cards_differ_where_they_differ() -> None:
    document = valid("profile-diff", run("profiles", "diff", "a100-40gb", "a100", "--format", "json").document)
    different = {row["key"] for row in document["fields"] if not row["same"]}
    assert {"memory", "visible_memory", "memory_bandwidth"} <= different
    assert not {"architecture", "compute_capability", "fp16"} & different
    out = run("profiles", "diff", "a100-40gb", "a100").out
    for row in document["fields"]:
        assert (f"  {row['key']} " in out) == (row["key"] in different)
    assert run("profiles", "diff", "a100", "a100", "--print", "summary.different").out == "0\n"


def test_a_name_alone_is_compared_with_what_it_shadows(home: Path) -> None:
    assert "is a shipped one" in refused("profiles", "diff", "v100").err
    run("profiles", "new", "gpu", "v100", "--from", "v100-16gb")
    document = valid("profile-diff", run("profiles", "diff", "v100", "--format", "json").document)
    assert (document["a"]["origin"], document["b"]["origin"]) == (str(home), "shipped")
    run("profiles", "new", "gpu", "own", "--from", "t4")
    assert "shadows none" in refused("profiles", "diff", "own").err


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_can_be_compared(kind: str) -> None:
    names = {
        "gpu": ("t4", "v100"),
        "model": ("gpt2", "gpt2-xl"),
        "runtime": ("pytorch", "transformers"),
        "stack": ("pytorch", "cuda-c"),  # the name of a runtime too
    }[kind]
    document = valid("profile-diff", run("profiles", "diff", *names, "--format", "json").document)
    assert document["kind"] == kind
    assert document["summary"]["different"] > 0


def test_profiles_of_two_kinds_and_unknown_names_are_refused() -> None:
    assert "one kind" in refused("profiles", "diff", "v100", "gpt2").err
    assert "did you mean gpt2" in refused("profiles", "diff", "gpt22", "gpt2").err
    assert "no such file" in refused("profiles", "diff", "./none.yaml", "gpt2").err


# path


def test_the_folders_are_listed_in_the_order_of_the_search(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(tmp_path, "gpus/t4.yaml", folder="option/gpus")
    changed(tmp_path, "models/gpt2.yaml", folder="variable/models")
    monkeypatch.setenv("VRAMPLAN_PROFILES", str(tmp_path / "variable"))
    ran = run("profiles", "path", "--profiles", tmp_path / "option", "--format", "json")
    folders = valid("profile-path", ran.document)["folders"]
    assert [folder["named_by"] for folder in folders] == ["--profiles", "VRAMPLAN_PROFILES", "configuration", "shipped"]
    assert [folder["shadowing"] for folder in folders] == [["gpus/t4"], ["models/gpt2"], [], []]
    assert [folder["exists"] for folder in folders] == [True, True, False, True]
    assert (folders[0]["gpus"], folders[1]["models"], folders[2]["gpus"]) == (1, 1, 0)
    assert folders[2]["path"] == str(home)
    assert run("profiles", "path", "--print", "folders.2.named_by").out == "shipped\n"


def test_the_summary_counts() -> None:
    assert report.summary(lint.Linted((), ())) == "0 profiles: 0 errors, 0 warnings"
