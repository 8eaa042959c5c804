"""Names of the Hugging Face hub: read from the local cache, never fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import run
from vramplan.catalog import hub, models
from vramplan.errors import InputError

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "fedcba9876543210fedcba9876543210fedcba98"
CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 3, "_name_or_path": "/home/me/run-7"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache: Path, commit: str = COMMIT, ref: str | None = "main", **changes: object) -> Path:
    """A cached repository as huggingface_hub leaves it: snapshots hold links into a folder of blobs."""
    folder = cache / "models--someone--net-3b"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    blob = folder / "blobs" / f"blob-of-{commit[:4]}"
    blob.write_text(json.dumps({**CONFIG, **changes}))
    (folder / "snapshots" / commit / "config.json").symlink_to(blob)
    if ref is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    return folder


def test_a_cached_model_is_found_and_told(cache: Path) -> None:
    put(cache)
    shape, told = models.find_model("someone/net-3b")
    assert (shape.name, shape.family, shape.layers) == ("net-3b", "gpt2", 3)  # not what its author called it on disk
    assert told[0].key == "model"
    assert "revision 0123456789ab in the local Hugging Face cache" in told[0].why
    answer = run("fit", "--model", "someone/net-3b", "--gpu", "v100", "--format", "json")
    assert answer.code == 0
    assert json.loads(answer.out)["job"]["model"]["layers"] == 3


def test_a_revision_is_a_branch_a_tag_or_the_beginning_of_a_commit(cache: Path) -> None:
    put(cache)
    put(cache, OTHER, "v2", n_layer=5)
    assert models.find_model("someone/net-3b")[0].layers == 3
    assert models.find_model("someone/net-3b@v2")[0].layers == 5
    assert models.find_model("someone/net-3b@fedcba98")[0].layers == 5
    with pytest.raises(InputError, match=r"has no revision 'v3' of someone/net-3b.*--revision v3"):
        models.find_model("someone/net-3b@v3")


def test_without_the_main_branch_one_snapshot_is_taken_and_two_are_asked_about(cache: Path) -> None:
    put(cache, ref=None)
    assert models.find_model("someone/net-3b")[0].layers == 3
    put(cache, OTHER, None)
    with pytest.raises(InputError, match=r"has 2 revisions.*name one: someone/net-3b@0123456789ab or"):
        models.find_model("someone/net-3b")


def test_what_is_not_there_says_how_to_fetch_it(cache: Path) -> None:
    with pytest.raises(InputError, match=r"nothing is downloaded \(fetch it with: hf download no/such config.json;"):
        models.find_model("no/such")
    folder = put(cache)
    (folder / "blobs" / "blob-of-0123").unlink()  # a download that was broken off, or weights alone
    answer = run("fit", "--model", "someone/net-3b", "--gpu", "v100")
    assert (answer.code, answer.out) == (2, "")
    assert "hf download someone/net-3b config.json" in answer.err
    with pytest.raises(InputError, match=r"hf download .*; did you mean llama-3.1-8b"):
        models.find_model("meta-llama/Lama-3.1-8B")


def test_a_broken_file_is_named(cache: Path) -> None:
    put(cache, n_layer="three")
    with pytest.raises(InputError, match=r"snapshots/0123456789abcdef\w+/config.json:1:\d+: n_layer"):
        models.find_model("someone/net-3b")


def test_a_profile_comes_before_the_cache(cache: Path) -> None:
    folder = cache / "models--openai-community--gpt2-xl" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "n_layer": 1}))
    assert models.find_model("openai-community/gpt2-xl")[0].layers == 48


def test_the_folder_is_the_one_of_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """huggingface_hub/constants.py: HF_HUB_CACHE, else the older name, else hub in HF_HOME or the cache folder."""
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = (".cache/huggingface/hub", "x/huggingface/hub", "home/hub", "old", "new")
    assert hub.cache_dir() == tmp_path / expected[0]
    for name, value, folder in zip(reversed(names), ("x", "home", "old", "new"), expected[1:], strict=True):
        monkeypatch.setenv(name, f"~/{value}" if name == "HF_HOME" else str(tmp_path / value))
        assert hub.cache_dir() == tmp_path / folder


@pytest.mark.parametrize("name", ["a/b/c", "../b", "a/..", "a b/c", "a/b@", "/a", "a/"])
def test_what_cannot_be_a_repository_is_not_looked_for(cache: Path, name: str) -> None:
    assert not hub.is_repository(name)
    with pytest.raises(InputError):
        models.find_model(name)
