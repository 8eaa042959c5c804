"""Files that are none: one message with the name of the file, code 2, at once, and never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.running import process, refused, valid

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
CONTENTS = {
    "empty": b"",
    "blank": b"\n\n   \n",
    "only a comment": b"# nothing\n",
    "binary": bytes(range(256)) * 4,
    "nul": b"version: 1\x00\n",
    "latin 1": "version: 1\njobs: [{name: Größe}]\n".encode("latin-1"),
    "utf-16": "version: 1\n".encode("utf-16"),
    "a scalar": b"hello\n",
    "a list": b"- 1\n- 2\n",
    "duplicate keys": b"version: 1\nversion: 1\njobs: []\n",
    "an alias bomb": BOMB.encode(),
    "an alias to itself": b"a: &a [*a]\n",
    "a merge key": b"a: &a {b: 1}\nc:\n  <<: *a\n",
    "a tag": b"!!python/object/apply:os.system ['echo hacked']\n",
    "two documents": b"version: 1\n---\nversion: 1\n",
    "an open quote": b'version: "1\n',
    "an open bracket": b"version: [1\n",
    "a tab": b"version:\n\t1\n",
    "deep": b"[" * 5000 + b"]" * 5000,
    "deep mappings": b"".join(b" " * level + b"a:\n" for level in range(1500)),
    "a long line": b"a" * 3_000_000,
    "too large": b"# " + b"x" * 9_000_000,
    "a key that is a list": b"? [1, 2]\n: 3\n",
    "a huge number": b"version: " + b"9" * 100_000 + b"\n",
    "infinite": b"version: .inf\n",
}
PLACES = {
    "check": lambda file: ("check", file),
    "validate": lambda file: ("validate", file),
    "model": lambda file: ("fit", "-g", "t4", "-m", file),
    "gpu": lambda file: ("fit", "-m", "gpt2", "-g", file),
    "show": lambda file: ("models", "show", file),
}


@pytest.mark.sweep(8)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("content", CONTENTS)
def test_a_file_that_says_nothing_is_2_with_its_name(content: str, place: str, tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_bytes(CONTENTS[content])
    ran = refused(*PLACES[place](file), *([] if place == "show" else ["--format", "json"]))
    assert str(file) in ran.err
    assert len(ran.err) < 20_000
    if place != "show":
        problems = valid("error", ran.document)["error"]["problems"]
        assert any(problem["file"] == str(file) for problem in problems)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_2(place: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    for file in (*tmp_path.iterdir(), tmp_path / "missing.yaml", Path("/dev/zero"), Path("/dev/tty")):
        assert file.name.removesuffix(".yaml") in refused(*PLACES[place](file)).err


def test_an_unreadable_file_is_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret.yaml"
    file.write_text("version: 1\n")
    file.chmod(0)
    if os.access(file, os.R_OK):  # this user may read everything
        really_open = open

        def locked(path: object, *arguments: object, **options: object) -> object:
            if str(path) == str(file):
                raise PermissionError(13, "Permission denied", str(file))
            return really_open(path, *arguments, **options)  # type: ignore[call-overload]

        monkeypatch.setattr("builtins.open", locked)
    for place in PLACES.values():
        err = refused(*place(file)).err
        assert "Permission denied" in err
        assert str(file) in err


@pytest.mark.parametrize(
    "name", ["a\nb.yaml", "\x1b[2J.yaml", "x" * 300 + ".yaml", "\0.yaml", "-", "", " ", "~nobody/x.yaml"]
)
@pytest.mark.parametrize("place", PLACES)
def test_an_odd_name_is_2_and_does_not_move_the_cursor(name: str, place: str) -> None:
    ran = refused(*PLACES[place](name))
    assert ran.err.count("\n") == 1
    assert ran.err.removesuffix("\n").isprintable()


def test_an_endless_file_ends_at_once() -> None:
    for words in (("check", "/dev/zero"), ("fit", "-m", "/dev/urandom", "-g", "t4"), ("check", "/dev/stdin")):
        with open("/dev/zero", "rb") as endless:
            done = process(*words, stdin=endless)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr


def test_a_file_on_standard_input_that_is_none(tmp_path: Path) -> None:
    for content in CONTENTS.values():
        assert refused("check", "-", stdin=content).err.startswith("error: -")


@pytest.mark.parametrize("command", ["fit", "explain", "plan"])
def test_a_file_that_is_not_there_is_all_that_is_said(command: str) -> None:
    """It may name the GPU, so nobody can say yet that one is missing."""
    said = f"error: nofile.yaml: no such file (it is looked for in {os.getcwd()})\n"
    assert refused(command, "nofile.yaml").err == said
