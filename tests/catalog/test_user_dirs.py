"""The user's own folders: where they are, in which order they are searched, and what shadowing says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.running import fit, process, refused, run, valid
from vramplan.catalog import locate

SOURCE = "sources: {s: {title: T, url: 'https://example.org', accessed: '2026-01-01'}}\n"


def gpu(folder: Path, name: str, memory: str, aliases: str = "") -> Path:
    path = folder / "gpus" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = f"kind: gpu\nname: {name}\ntitle: A card\naliases: [{aliases}]\n{SOURCE}"
    path.write_text(f"{body}fields: {{memory: {{value: {memory}, source: s}}, bf16: {{value: false, source: s}}}}\n")
    return path


def memory_of(name: str, *words: object) -> int:
    capacity: int = fit("-m", "bert-tiny", "-g", name, *words)["capacity_bytes"]
    return capacity


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "vramplan" / "profiles"


def test_the_configuration_is_searched(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no GPU profile 'mine'" in refused("fit", "-m", "bert-tiny", "-g", "mine").err
    gpu(home, "mine", "7 GiB")
    assert memory_of("mine") == 7 << 30
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config").symlink_to(tmp_path / "config")
    assert memory_of("mine") == 7 << 30
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/path")  # the specification: ignored
    assert locate.config_dir() == tmp_path / ".config" / "vramplan" / "profiles"


def test_options_go_before_the_variable_before_the_configuration_before_the_shipped(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = memory_of("v100")
    gpu(home, "v100", "4 GiB")
    assert memory_of("v100") == 4 << 30
    for number, name in ((5, "second"), (6, "first")):
        gpu(tmp_path / name, "v100", f"{number} GiB")
    monkeypatch.setenv("VRAMPLAN_PROFILES", f"{tmp_path / 'first'}{os.pathsep}{os.pathsep}{tmp_path / 'second'}")
    assert memory_of("v100") == 6 << 30
    gpu(tmp_path / "option", "v100", "8 GiB")
    assert memory_of("v100", "--profiles", tmp_path / "option") == 8 << 30
    monkeypatch.delenv("VRAMPLAN_PROFILES")
    (home / "gpus" / "v100.yaml").unlink()
    assert memory_of("v100") == shipped


@pytest.mark.sweep
def test_every_command_searches_them(home: Path, tmp_path: Path) -> None:
    path = gpu(home, "mine", "7 GiB", "my-alias")
    assert str(path) in run("gpus", "show", "my-alias").out
    rows = valid("gpus", run("gpus", "--format", "json").document)["gpus"]
    origins = {row["name"]: row["origin"] for row in rows}
    assert origins.pop("mine") == str(home)
    assert set(origins.values()) == {"shipped"}
    assert str(home) in run("gpus", "--name", "mine").out
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("version: 1\njobs: [{name: a, model: bert-tiny, gpu: my-alias}]\n")
    assert run("check", jobs).code == 0
    told = fit("-m", "llama-3-8b", "-g", "mine", "--micro-batch", "1", "--seq", "128")
    assert told["verdict"] == "does-not-fit"  # remedies look at all cards, these included


@pytest.mark.parametrize("word", ["v100", "V100-32GB"])
def test_a_shadowed_profile_is_said_with_the_file(home: Path, word: str) -> None:
    path = gpu(home, "v100", "4 GiB", "v100-32gb")
    told = fit("-m", "bert-tiny", "-g", word)["assumptions"]
    assert {"key": "gpu", "value": "v100", "why": f"{path} shadows the shipped profile of that name"} in told
    assert f"{path}" in run("fit", "-m", "bert-tiny", "-g", word, "--details").out.replace("\n    ", "")


def test_a_shadowed_model_and_runtime_are_said_too(home: Path) -> None:
    for kind, name in (("models", "bert-tiny"), ("runtimes", "transformers")):
        (home / kind).mkdir(parents=True)
        text = (Path(locate.shipped_dirs()[0]) / kind / f"{name}.yaml").read_text()
        (home / kind / f"{name}.yaml").write_text(text)
    told = {one["key"]: one["why"] for one in fit("-m", "bert-tiny", "-g", "t4")["assumptions"]}
    assert "shadows the shipped profile" in told["model"]
    assert told["runtime"].startswith(str(home))


def test_nothing_is_said_of_profiles_that_shadow_none(home: Path) -> None:
    gpu(home, "mine", "7 GiB")
    (home / "gpus" / "mine.yaml").rename(home / "gpus" / "mine.yml")
    for word in ("mine", "t4"):
        assert not [one for one in fit("-m", "bert-tiny", "-g", word)["assumptions"] if "shadows" in str(one["why"])]


def test_a_resolved_job_does_not_depend_on_what_shadows(home: Path) -> None:
    answer = fit("-m", "bert-tiny", "-g", "v100")
    gpu(home, "v100", "4 GiB")
    from vramplan.job import build_job

    job = build_job(answer["job"])
    assert job.gpu.capacity_bytes == answer["capacity_bytes"]
    assert not [one for one in job.assumptions if one.key == "gpu"]


def test_a_variable_that_names_no_profiles_is_refused_and_not_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("/nowhere/at/all", str(tmp_path)):
        monkeypatch.setenv("VRAMPLAN_PROFILES", value)
        for words in (("fit", "-m", "gpt2", "-g", "t4"), ("gpus",), ("models", "show", "gpt2"), ("profiles", "lint")):
            err = refused(*words).err
            assert "VRAMPLAN_PROFILES" in err
            assert value in err
        assert run("profiles", "path").code == 0  # the command that explains it works
    assert run("--help").code == 0


def test_an_unfinished_file_of_the_user_takes_no_remedy_away(home: Path) -> None:
    words = ("-m", "gpt2-xl", "-g", "v100-16gb", "--checkpointing", "full", "--micro-batch", "1")
    before = fit(*words)["remedies"]
    assert any("gpu" in remedy["change"] for remedy in before)
    assert run("profiles", "new", "gpu", "unfinished").code == 0
    assert fit(*words)["remedies"] == before


def test_a_missing_folder_costs_one_look(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, *rest, **more: (looked.append(str(path)), real(path, *rest, **more))[1]
    )
    locate.searched(())
    assert [path for path in looked if path.startswith(str(home))] in ([], [str(home)])  # isdir may be in C


def test_without_a_home_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert locate.config_dir() is None
    assert "no home directory" in refused("profiles", "new", "gpu", "x").err


def test_a_process_finds_them(home: Path) -> None:
    gpu(home, "mine", "7 GiB")
    done = process("fit", "-m", "bert-tiny", "-g", "mine", "--print", "capacity_bytes")
    assert done.stdout == f"{7 << 30}\n", done


def test_a_profile_that_takes_the_alias_of_a_shipped_one_is_a_warning(home: Path) -> None:
    shipped = fit("-m", "bert-tiny", "-g", "h100")
    path = gpu(home, "mycard", "7 GiB", "h100")
    answer = fit("-m", "bert-tiny", "-g", "h100")
    assert answer["capacity_bytes"] == 7 << 30
    warned = [one for one in answer["warnings"] if "h100 is answered as mycard" in one]
    assert len(warned) == 1
    assert str(path) in warned[0]
    assert shipped["job"]["gpu"]["name"] in warned[0]
    assert not [one for one in fit("-m", "bert-tiny", "-g", "mycard")["warnings"] if "is answered as" in one]


@pytest.mark.parametrize("kind", ["gpus", "models", "runtimes"])
def test_a_broken_file_takes_nothing_else_out_of_a_list(home: Path, kind: str) -> None:
    whole = run(kind)
    assert whole.code == 0
    gpu(home, "mine", "7 GiB")
    broken = home / kind / "broken.yaml"
    broken.parent.mkdir(exist_ok=True)
    broken.write_text("kind: [\n")
    ran = run(kind, "--format", "json")
    assert ran.code == 2
    assert ran.err.count("error: ") == 1
    assert str(broken) in ran.err
    names = {one["name"] for one in ran.document[kind]}
    assert len(names) >= len(whole.out.splitlines()) - 2
    assert "broken" not in names
    assert kind != "gpus" or "mine" in names


@pytest.mark.sweep
def test_a_broken_file_of_the_user_is_said_beside_the_remedies(home: Path) -> None:
    no = ("-m", "gpt2-xl", "-g", "v100", "--micro-batch", "32", "--checkpointing", "none")
    cards = [one["change"]["gpu"] for one in fit(*no)["remedies"] if "gpu" in one["change"]]
    assert cards
    path = gpu(home, "broken", "7 parsecs")
    answer = fit(*no)
    assert [one["change"]["gpu"] for one in answer["remedies"] if "gpu" in one["change"]] == cards
    assert [one for one in answer["warnings"] if str(path) in one]
