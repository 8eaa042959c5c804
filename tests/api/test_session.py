"""One session for many answers: the same answers as without, with nothing replayed or read twice."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.cli import draws
from vramplan import FitResult, InputError, Session, fit
from vramplan.answers.fit import answer
from vramplan.answers.session import at_hand
from vramplan.catalog import document, reading
from vramplan.catalog.gpus import load_gpu_profile
from vramplan.job import build_any_job
from vramplan.replay.step import replay

SHIPPED = Path(__file__).resolve().parents[2] / "profiles"
WARM = Session(most_records=5)
KEYS: dict[str, Any] = {
    "model": "gpt2",
    "precision": "amp-fp16",
    "attention": "efficient",
    "micro_batch_size": 4,
    "activation_checkpointing": "none",
}


def alone(keys: dict[str, Any]) -> FitResult:
    """The answer of `fit` where no session is open."""
    return Context().run(lambda: fit(**keys))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every replay for a planner, as it is made."""
    made: list[Any] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        return replay(*arguments, **options)

    monkeypatch.setattr("vramplan.planner.replays.replay", counted)
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every document that is read, as it is."""
    made: list[str] = []
    load = document.load

    def counted(path: Path | str, **options: Any) -> Any:
        made.append(os.fspath(path))
        return load(path, **options)

    monkeypatch.setattr(document, "load", counted)
    return made


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """The profile of a card called mine, in a folder of profiles."""
    path = tmp_path / "gpus" / "mine.yaml"
    path.parent.mkdir()
    write(path, 17)
    return path


def write(path: Path, gib: int) -> None:
    source = "sources: {s: {title: t, url: 'https://example.com', accessed: '2026-01-01'}}"
    path.write_text(
        f"kind: gpu\nname: mine\n{source}\nfields:\n  memory: {{value: {gib} GiB, source: s}}\n", encoding="utf-8"
    )


@pytest.mark.sweep(4)
@settings(max_examples=4, deadline=None)
@given(keys=draws.jobs())
def test_a_session_that_has_answered_before_answers_as_none(keys: dict[str, Any]) -> None:
    assert fit(**keys, session=WARM) == fit(**keys, session=Session()) == alone(keys)


def test_many_jobs_of_one_iteration_are_replayed_once_and_read_once(played: list[Any], read: list[str]) -> None:
    session = Session()
    cards = ("v100", "t4", "a100-40gb") * 3
    for gpu in cards:
        fit(**KEYS, gpu=gpu, session=session)
    assert len(played) == len({arguments[0] for arguments in played}) == 3  # one for each row of the ladder
    assert sorted(set(read)) == sorted(read)


def test_without_a_session_nothing_is_kept(played: list[Any]) -> None:
    first, second = (alone({**KEYS, "gpu": "v100"}) for _ in range(2))
    assert first == second
    assert len(played) == 2 * len({arguments[0] for arguments in played})


def test_what_a_thread_has_open_is_used_there_alone() -> None:
    session, other = Session(), Session()
    with ThreadPoolExecutor(1) as pool, session.open():
        fit(**KEYS, gpu="v100")
        answer(build_any_job({**KEYS, "gpu": "t4"}))
        kept, files = len(session.replays), len(session.files)
        assert kept == 3
        assert files
        with other.open():
            fit(**KEYS, gpu="v100")
        pool.submit(fit, model="gpt2-medium", gpu="v100").result()
        assert (len(session.replays), len(session.files)) == (kept, files)
    assert len(other.replays) == kept


def test_the_session_at_hand_is_the_open_one_if_it_keeps_enough() -> None:
    session = Session(most_records=50)
    with session.open():
        assert at_hand() is at_hand(50) is session
        assert at_hand(51) is not session
        assert at_hand(51).replays.most_records == 51


@pytest.mark.sweep
def test_threads_may_share_a_session() -> None:
    session = Session(most_records=3, most_files=4)
    jobs = [{**KEYS, "gpu": gpu, "micro_batch_size": size} for gpu in ("v100", "t4") for size in (1, 2, 8)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda keys: fit(**keys, session=session), jobs * 2))
    assert answers == [alone(keys) for keys in jobs * 2]
    assert len(session.replays) <= 3
    assert len(session.files) <= 4


def test_a_profile_that_has_changed_is_read_again(card: Path) -> None:
    session = Session()

    def capacity() -> int:
        return fit(**KEYS, gpu="mine", profiles=card.parents[1], session=session).capacity_bytes

    assert capacity() == 17 << 30
    before = card.stat()
    write(card, 23)  # as many characters
    os.utime(card, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert capacity() == 23 << 30
    copy = card.with_name("copy")
    write(copy, 31)
    os.utime(copy, ns=(before.st_atime_ns, card.stat().st_mtime_ns))
    copy.replace(card)  # another file at the same path
    assert capacity() == 31 << 30
    card.unlink()
    with pytest.raises(InputError, match="no GPU profile 'mine'"):
        capacity()
    write(card, 17)
    assert capacity() == 17 << 30


def test_a_broken_profile_is_read_again(card: Path) -> None:
    session = Session()
    text = card.read_text("utf-8")
    card.write_text("kind: gpu\nname: mine\n", "utf-8")
    for _ in range(2):
        with pytest.raises(InputError, match="sources: required key is missing"):
            fit(**KEYS, gpu="mine", profiles=card.parents[1], session=session)
    card.write_text(text, "utf-8")
    assert fit(**KEYS, gpu="mine", profiles=card.parents[1], session=session).capacity_bytes == 17 << 30


def test_a_config_of_a_model_that_has_changed_is_read_again(tmp_path: Path, read: list[str]) -> None:
    session = Session()
    config = tmp_path / "config.json"
    parameters = []
    for layers in (3, 3, 4):
        text = f'{{"model_type": "gpt2", "n_layer": {layers}}}'
        if layers == 4 or not config.exists():
            config.write_text(text, "utf-8")
        parameters.append(fit(model=config, gpu="24 GiB", session=session).total_parameters)
    assert parameters[0] == parameters[1] < parameters[2]
    assert read.count(str(config)) == 2


def test_a_file_of_another_folder_is_another(
    card: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path stands for the file that is there now."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(card.parent, elsewhere / "gpus")
    write(elsewhere / "gpus" / "mine.yaml", 29)
    session = Session()
    found = []
    for folder in (card.parents[1], elsewhere, card.parents[1]):
        monkeypatch.chdir(folder)
        found.append(fit(**KEYS, gpu="./gpus/mine.yaml", session=session).capacity_bytes >> 30)
    assert found == [17, 29, 17]


@pytest.mark.sweep(24)
@pytest.mark.parametrize("path", sorted((SHIPPED / "gpus").glob("*.yaml"))[::12], ids=lambda path: path.stem)
def test_what_is_kept_is_what_the_file_says_after_it_was_used(path: Path) -> None:
    with reading.opened(reading.FileMemo()):
        kept = load_gpu_profile(path)
        fit(**KEYS, gpu=str(path))
        assert load_gpu_profile(path) is kept
    assert kept == Context().run(load_gpu_profile, path)


def test_the_least_recently_used_files_go() -> None:
    files, made = reading.FileMemo(most_files=2), []

    def load(path: Path | str) -> str:
        made.append(Path(path).stem)
        return Path(path).stem

    paths = {name: SHIPPED / "gpus" / f"{name}.yaml" for name in ("v100", "t4", "a100-40gb")}
    for name in ("v100", "t4", "v100", "a100-40gb", "v100", "t4"):
        assert files.read(load, paths[name]) == name
    assert made == ["v100", "t4", "a100-40gb", "t4"]
    assert len(files) == 2
