"""The linter on files that nobody would write: it always answers, and what it lets pass can be used."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramplan.catalog import generations, lint, locate, plausible
from vramplan.catalog.gpus import GpuProfile, load_gpu_profile
from vramplan.errors import InputError
from vramplan.results.profiles import ERROR

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    (ROOT / "profiles" / name).read_text("utf-8")
    for name in ("gpus/a100-80gb.yaml", "models/llama-3.2-1b.yaml", "runtimes/transformers.yaml")
]
JUNK = st.sampled_from(
    [
        "",
        "null",
        "TODO",
        "[]",
        "{}",
        "{value: }",
        "&a [*a]",
        "- x",
        "1e999",
        "999999999999 TiB",
        "-1",
        "true",
        "\t",
        "? :",
    ]
)


@st.composite
def broken(draw: st.DrawFn) -> str:
    """A shipped profile with a few lines dropped, doubled, or with another value."""
    lines = draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        change = draw(st.integers(0, 3))
        if change == 0:
            del lines[place]
        elif change == 1:
            lines.insert(place, lines[place])
        elif change == 2:
            lines[place] = lines[place].partition(":")[0] + ": " + draw(JUNK)
        else:
            lines[place] = draw(st.text(st.characters(codec="utf-8"), max_size=30))
    return "\n".join(lines)


@given(broken())
@settings(max_examples=30, deadline=None)
def test_whatever_is_in_a_file_there_is_an_answer_and_what_passes_can_be_read(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "odd.yaml"
        path.write_text(text, "utf-8")
        found = lint.lint([path])
        if not found.count(ERROR):
            lint.LOADERS[lint.kind_of(path)](path)
        for finding in found.findings:
            assert finding.problem.file == str(path)
            assert str(finding.problem).isprintable()


def test_no_files_are_an_error_and_not_a_pass() -> None:
    with pytest.raises(InputError, match="no profile to look at"):
        lint.lint([])


def test_every_shipped_gpu_is_plausible_and_of_a_known_generation() -> None:
    for path in locate.files_in("gpus", locate.shipped_dirs()).values():
        profile: GpuProfile = load_gpu_profile(path)
        assert profile.value("architecture") in generations.GENERATIONS, path
        assert not list(plausible.doubts_about_gpu(profile)), path


def test_what_follows_from_a_capability() -> None:
    assert [generations.of_capability(word) for word in ("7.0", "7.5", "8.9", "9.0", "12.1", "gfx942", "5.2")] == [
        *("volta", "turing", "ada", "hopper", "blackwell", "cdna3"),
        None,
    ]
    able = (generations.has_bf16, generations.has_flash, generations.has_fp8)
    assert [tuple(one(word) for one in able) for word in ("7.5", "8.0", "8.9", "10.0")] == [
        (False, False, False),
        (True, True, False),
        (True, True, True),
        (True, True, True),
    ]
