"""The transcripts of README.md and docs/ are what the program prints, to the byte.

A ```console block is run as one shell session: each line that starts with `$ ` is a command, and what stands below it
is what it prints, errors included. A ```yaml block whose first line is `# NAME.yaml` is that file, and lies in the
folder where the transcripts of its page are run.

`python tests/docs/test_readme.py` runs every session and writes what it printed into the pages.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.running import run

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))

FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:)(?P<target>[^)#]+)(?:#[^)]*)?\)")
END = "\x1e"  # between the outputs of a session; nothing prints it


class Session(NamedTuple):
    """One console block."""

    page: Path
    line: int
    body: str

    @property
    def commands(self) -> list[str]:
        """What is typed."""
        return [line[2:] for line in self.body.splitlines() if line.startswith("$ ")]


def sessions(page: Path) -> list[Session]:
    """The console blocks of a page in which vramplan is called."""
    text = page.read_text("utf-8")
    found = [
        Session(page, text.count("\n", 0, block.start()) + 1, block["body"])
        for block in FENCE.finditer(text)
        if block["kind"] == "console"
    ]
    return [session for session in found if any("vramplan" in command for command in session.commands)]


def write_files(page: Path, folder: Path) -> None:
    """The named YAML blocks of a page as files."""
    for block in FENCE.finditer(page.read_text("utf-8")):
        name = re.match(r"# ([\w.-]+\.ya?ml)\n", block["body"])
        if block["kind"] == "yaml" and name:
            (folder / name[1]).write_text(block["body"], "utf-8")


def replay(session: Session, folder: Path) -> str:
    """The block as it would be if it were typed now: commands, and below each what it prints into a pipe."""
    bin_folder = folder / ".bin"
    bin_folder.mkdir(exist_ok=True)
    program = bin_folder / "vramplan"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vramplan "$@"\n', "utf-8")
    program.chmod(0o755)
    environment = {
        "PATH": os.pathsep.join((str(bin_folder), os.environ.get("PATH", os.defpath))),
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
        "LC_ALL": "C.UTF-8",
        "HOME": str(folder),
    }
    # `$?` of a command is that of the one before, as at a prompt, whatever is printed in between
    script = "status=0\n" + "".join(
        f"(exit $status)\n{command}\nstatus=$?\nprintf '{END}'\n" for command in session.commands
    )
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    outputs = done.stdout.split(END)[:-1]
    assert len(outputs) == len(session.commands), f"the shell stopped early: {done.stdout}"
    return "".join(f"$ {command}\n{output}" for command, output in zip(session.commands, outputs, strict=True))


SPECIAL = re.compile(r"[&;<>()$`\\*?\[~|]")  # what a shell does not pass on as it stands


def replay_here(session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The same with the program in this process, which is several times faster.

    A shell has what stands behind its pipe alone. None if the block has more need of one, or if a command prints to
    both streams, between which only a pipe knows the order.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    shown, status = [], 0
    for command in session.commands:
        if command == "echo $?":
            shown.append(f"$ {command}\n{status}\n")
            status = 0
            continue
        words, filters = piped(command)
        if words is None:
            return None
        ran = run(*words)
        if ran.err and (ran.out or filters):
            return None
        out, status = ran.out, ran.code
        if filters:
            environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "HOME": str(folder)}
            done = subprocess.run(
                ["sh", "-c", filters],
                cwd=folder,
                env=environment,
                input=out,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
            )
            out, status = done.stdout, done.returncode
        shown.append(f"$ {command}\n{out}{ran.err}")
    return "".join(shown)


def piped(command: str) -> tuple[list[str] | None, str]:
    """The arguments of the program, and what its output goes through; no arguments if a shell has to find them."""
    program, *rest = command.split(" | ")
    while program.count("'") % 2 or program.count('"') % 2:  # that one was between quotes
        if not rest:
            return None, ""
        program = f"{program} | {rest.pop(0)}"
    if SPECIAL.search(program) or not program.startswith("vramplan ") or "vramplan" in " | ".join(rest):
        return None, ""
    return shlex.split(program)[1:], " | ".join(rest)


SESSIONS = [session for page in PAGES for session in sessions(page)]
OF_README = [session for session in SESSIONS if session.page == README]
OF_DOCS = [session for session in SESSIONS if session.page != README]


def named(session: Session) -> str:
    return f"{session.page.name}:{session.line}: {session.commands[0]}"


@pytest.mark.snapshot
@pytest.mark.parametrize("session", OF_README, ids=named)
def test_a_transcript_of_readme_is_what_the_program_prints(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(session, tmp_path, monkeypatch)


@pytest.mark.sweep(48)
@pytest.mark.snapshot
@pytest.mark.parametrize("session", OF_DOCS, ids=named)
def test_a_transcript_is_what_the_program_prints(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(session, tmp_path, monkeypatch)


def check(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(session.page, tmp_path)
    printed = replay_here(session, tmp_path, monkeypatch)
    if printed is None:
        printed = replay(session, tmp_path)
    assert printed == session.body, "python tests/docs/test_readme.py rewrites the transcripts"


@pytest.mark.contract
def test_no_example_is_an_error_that_its_page_does_not_mean() -> None:
    """An option or a key that there is not is a slip of the page: those that show near matches have a value wrong."""
    slips = re.compile(r"^(internal error|error: (--print|No such option))", re.MULTILINE)
    assert [named(session) for session in SESSIONS if slips.search(session.body)] == []


def test_the_readme_shows_a_yes_a_no_a_single_value_and_a_gate() -> None:
    commands = [command for session in sessions(ROOT / "README.md") for command in session.commands]
    assert "vramplan fit --model gpt2-xl --gpu v100" in commands
    assert "echo $?" in commands
    assert any("--print recommended.micro_batch_size" in command for command in commands)
    assert any(command.startswith("vramplan check") for command in commands)
    assert len(sessions(ROOT / "README.md")) >= 4


@pytest.mark.contract
def test_the_readme_is_short_and_its_yes_too() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    assert text.count("![") == 1
    assert len([line for line in text.splitlines() if line.startswith("- **")]) == 4
    (yes,) = (
        one for one in sessions(ROOT / "README.md") if one.commands == ["vramplan fit --model gpt2-xl --gpu v100"]
    )
    assert yes.body.count("\n") <= 13  # with the command itself


def test_the_readme_has_two_set_up_commands_of_one_line() -> None:
    """CI runs them as they stand there, and people paste them."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = [block["body"].splitlines() for block in FENCE.finditer(text) if block["kind"] == "sh"]
    assert [len(lines) for lines in blocks] == [1, 1]
    (use,), (develop,) = blocks
    assert use.endswith("vramplan fit --model gpt2-xl --gpu v100")
    assert develop.endswith("-m pytest -n auto")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(FENCE.sub("", page.read_text("utf-8")))
    assert not [target for target in targets if not (page.parent / target).exists()]


def update(pages: Iterable[Path]) -> None:
    """Put what the program prints now into the transcripts of these pages."""
    for page in pages:
        text = page.read_text("utf-8")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_files(page, folder)
            for session in sessions(page):
                printed = replay(session, folder)
                if printed != session.body:
                    print(f"{page.relative_to(ROOT)}:{session.line}: rewritten")
                    text = text.replace(f"```console\n{session.body}```", f"```console\n{printed}```")
        page.write_text(text, "utf-8")


if __name__ == "__main__":
    update(PAGES)
