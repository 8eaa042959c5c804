"""The rigs and the composed jobs: what holds without a rig, and a few rows where one is set up."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.oracle.chosen import path_of
from tests.traces import composed, composed_page, drawn, drawn_adapters
from tests.traces.limits import limited
from tests.traces.parts import PARTS
from tests.traces.rigs import RIGS, WITHOUT, pinned, python_of, row_names, set_up, source_of
from vramplan.engines.deepspeed import walk
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.options import table

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads(composed_page.KEPT.read_text("utf-8"))
MENDED = json.loads((Path(__file__).parent / "mended.json").read_text("utf-8"))["jobs"]
ANSWERED = [one for one in DOCUMENT["results"] if one["status"] in ("exact", "off")][::5]
for sharded in composed_page.kept().values():
    ANSWERED += [one for one in sharded["results"] if one["status"] in ("exact", "off")][::4]


@pytest.mark.contract
def test_every_file_of_rows_has_a_rig() -> None:
    named = {file for rig in RIGS.values() for file in rig.files}
    assert not [file for file in row_names() if file not in named]
    page = (ROOT / "docs" / "traces.md").read_text("utf-8")
    for what, where in WITHOUT.items():
        assert f"| {what} | {where} |" in page
    for rig in RIGS.values():
        lines = pinned(rig.requirements)
        assert lines, rig.name
        assert all("==" in line for line in lines), rig.name
        assert f"tests/traces/requirements/{rig.name}.txt" in page


@pytest.mark.contract
@pytest.mark.parametrize("is_mirrored", [True, False])
def test_a_rig_asks_for_no_further_index_where_its_own_have_everything(
    is_mirrored: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[list[str]] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(words)
        misses = "--quiet" in words and not is_mirrored
        return subprocess.CompletedProcess(words, int(misses))

    monkeypatch.setenv("VRAMPLAN_RIGS", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", run)
    assert set_up(RIGS["zero"]) == 0
    installed = [words[4:] for words in ran if words[2:4] == ["pip", "install"]]
    assert installed[0] == ["--quiet", "torch==2.13.0+cpu"]
    file = RIGS["zero"].requirements
    assert installed[1] == (pinned(file) if is_mirrored else ["-r", str(file)])


@pytest.mark.contract
@pytest.mark.parametrize("file", row_names())
def test_a_file_of_rows_names_the_rig_its_versions_and_its_command(file: str) -> None:
    with path_of(file).open(encoding="utf-8") as opened:
        head = opened.read(4000).split('"jobs":', 1)[0]
    assert json.loads(head.rstrip().rstrip(",") + "}")["defaults"]["source"] == source_of(file), (
        "stale: run python -m tests.traces sources"
    )


@pytest.mark.contract
@pytest.mark.parametrize("file", PARTS)
def test_a_file_of_parts_names_them_too(file: str) -> None:
    assert any(file in rig.files for rig in RIGS.values())
    source = json.loads(path_of(file).read_text("utf-8"))["source"]
    assert source == source_of(file), "stale: run python -m tests.traces sources"


@pytest.mark.contract
def test_every_option_is_drawn_or_named_as_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and their words, also those of adapters and of `parallel`; with larger shares, so that few jobs show all."""
    monkeypatch.setattr(drawn, "PROBABILITY", 0.5)
    monkeypatch.setattr(drawn_adapters, "FEW", 0.5)
    seen: dict[str, set[str]] = {"optimizer": {one.partition(":")[0] for one in drawn.OPTIMIZERS} | {"adamw"}}
    random = Random(11)
    for number in range(360):
        keys = drawn.job(random, tmp_path)
        for one in (keys, drawn.shared(random, keys, drawn.SHARDINGS[number % len(drawn.SHARDINGS)])):
            _note(seen, one)
    left = {one.key: one for one in table.TABLE if not one.only and one.key not in seen}
    assert {*left} == (drawn.NOT_DRAWN & {*left}) | drawn.SHARING_NOT_DRAWN
    assert {one.key for one in table.TABLE} >= drawn.NOT_DRAWN
    for key in seen:
        words = {word.partition(":")[0] for word in table.find(key).words}
        assert words - seen[key] == {*drawn.WORDS_NOT_DRAWN.get(key, ())} & words, key


def _note(seen: dict[str, set[str]], keys: dict[str, Any], group: str = "") -> None:
    """The keys of a job and the words of each, without the numbers that some have."""
    for name, given in keys.items():
        key = f"{group}.{name}" if group else name
        words = seen.setdefault(key, set()) if given is not None else set()
        if name in table.GROUPS and isinstance(given, dict):
            _note(seen, given, name)
            continue
        words |= {str(one).partition(":")[0] for one in (given if isinstance(given, list) else [given])}


@pytest.mark.contract
def test_a_seed_draws_the_same_jobs(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("a", "b"))
    first.mkdir()
    second.mkdir()
    pairs = [[drawn.job(random, folder) for _ in range(20)] for folder in (first, second) for random in [Random(5)]]
    for one, other in zip(*pairs, strict=True):
        assert composed.without_folder(one) == composed.without_folder(other)
    assert len({key for one in pairs[0] for key in one}) > 20


@pytest.mark.truth
@pytest.mark.parametrize("one", ANSWERED, ids=lambda one: f"{one['keys']['model']['name']} {one['number']}")
def test_composed_jobs_are_answered_as_they_were_traced(one: dict[str, object]) -> None:
    keys = one["keys"]
    assert isinstance(keys, dict)
    found = composed.predicted(build_job(composed.thin(keys)))
    assert (found == one["traced"]) == (one["status"] == "exact")


@pytest.mark.truth
@pytest.mark.parametrize("one", MENDED, ids=lambda one: one["why"])
def test_what_was_once_answered_wrongly_or_refused_is_exact(one: dict[str, Any]) -> None:
    """`why` names the tensor; these jobs were drawn, and traced as `compose` does it."""
    assert composed.predicted(build_job(composed.thin(one["keys"]))) == one["traced"]


@pytest.mark.truth
def test_the_places_of_oft_are_counted_once_whatever_was_asked_before() -> None:
    """What tells the order of the parameters builds the model again, unless it is known."""
    one = next(one for one in MENDED if one["why"] == "ZeRO-2: the places of OFT")
    job = build_job(composed.thin(one["keys"]))
    walk._order.cache_clear()
    assert [composed.predicted(job) for _ in range(2)] == [one["traced"]] * 2


@pytest.mark.contract
def test_the_page_of_composed_jobs_is_current() -> None:
    assert composed_page.PAGE.read_text("utf-8") == composed_page.page(), "stale: run python -m tests.traces page"


@pytest.mark.contract
def test_a_draw_drops_what_contradicts_it_and_keeps_what_nobody_modelled() -> None:
    keys = {"model": "bloom-560m", "gpu": "v100", "runtime": "pytorch", "attention": "efficient"}
    wrong = {"channels_last": True, "hold_outputs_until": "backward"}
    kept = {"optimizer": "adam-mini", "parallel": {"data": 2, "sharding": "fsdp"}}
    found = composed.settled({**keys, **wrong, **kept})
    assert not wrong.keys() & found.keys()
    assert found["attention"] == "eager"
    assert {key: found.get(key) for key in kept} == kept
    with pytest.raises(InputError, match="adam-mini"):
        build_job(found)


@pytest.mark.contract
def test_a_rig_that_stands_still_is_ended_though_it_catches_that_once() -> None:
    def stands() -> None:
        with limited(0.01):
            with contextlib.suppress(TimeoutError):
                time.sleep(60)
            time.sleep(60)

    with pytest.raises(TimeoutError, match=r"ended after 0.01 s"):
        stands()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_refusal_is_passed_and_noted() -> None:
    keys = {"model": "bloom-560m", "gpu": "v100", "packing": True}
    with pytest.raises(InputError):
        build_job(keys)
    with composed.past_refusals() as said:
        assert build_job(keys).packing
    assert any(one.startswith("packing: ") for one in said)


@pytest.mark.sweep(12)
@pytest.mark.truth
@pytest.mark.parametrize("rig", RIGS.values(), ids=lambda rig: rig.name)
def test_rows_of_a_rig_are_made_again(rig: object) -> None:
    assert rig in RIGS.values()
    one = next(found for found in RIGS.values() if found is rig)
    python = python_of(one)
    if python is None:
        pytest.skip(f"rig {one.name} is not set up: python -m tests.traces setup {one.name}")
    words = [
        str(python),
        "-W",
        "ignore",
        "-m",
        "tests.traces",
        "rows",
        one.name,
        "--rows",
        "1",
        "--files",
        one.files[0],
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
