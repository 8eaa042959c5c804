"""What tests/remembered.py keeps is what the program would make anew, also after the tests that have used it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.remembered import SHIPPED
from vramplan.answers.fit import answer
from vramplan.catalog import document, gpus, locate, models
from vramplan.job import build_job
from vramplan.planner import replays, reserving

FILES = sorted(SHIPPED.rglob("*.yaml"))[::12]
JOBS = (
    {"model": "gpt2-xl", "gpu": "v100"},
    {"model": "gpt2", "gpu": "t4", "micro_batch_size": 64, "activation_checkpointing": "optimal"},
    {"model": "gpt2", "gpu": "t4", "allocator": "simulate"},
)


def plain(node: Any) -> Any:
    """A tree of nodes with its places."""
    place = (node.line, node.column)
    if isinstance(node, document.Mapping):
        return place, {key: (plain(entry.key), plain(entry.value)) for key, entry in node.entries.items()}
    if isinstance(node, document.Sequence):
        return place, [plain(item) for item in node.items]
    return place, node.text, node.style


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_profile_is_what_its_file_says(path: Path) -> None:
    once, anew = document.load(path), document.load.__wrapped__(path)  # type: ignore[attr-defined]
    assert document.load(path) is once
    assert (plain(once.root), once[1:]) == (plain(anew.root), anew[1:])
    folder = path.parent.name
    if folder in ("gpus", "models"):
        load: Any = gpus.load_gpu_profile if folder == "gpus" else models.load_model_profile
        assert load(path) is load(path)
        assert load(path) == load.__wrapped__(path) == locate.find(folder, path.stem, (), load)  # type: ignore[arg-type]


def test_what_a_person_writes_is_read_each_time(tmp_path: Path) -> None:
    card = tmp_path / "gpus" / "mine.yaml"
    card.parent.mkdir()
    text = (SHIPPED / "gpus" / "v100.yaml").read_text("utf-8")
    for title in ("one", "another"):
        lines = [f"title: {title}" if line.startswith("title:") else line for line in text.splitlines()]
        lines = ["name: mine" if line.startswith("name:") else line for line in lines]
        card.write_text("\n".join(line for line in lines if not line.startswith("aliases:")), "utf-8")
        found = gpus.match_gpu("mine", [tmp_path])
        assert found is not None
        assert found.title == title
    assert gpus.match_gpu("mine") is None


@pytest.mark.parametrize("keys", JOBS, ids=str)
def test_an_answer_is_that_of_replays_made_anew(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = [answer(build_job(keys)) for _ in range(2)]
    for room, name in ((replays, "replay"), (reserving, "records_of"), (reserving, "reserve")):
        monkeypatch.setattr(room, name, getattr(room, name).__wrapped__)
    assert remembered == [answer(build_job(keys))] * 2
