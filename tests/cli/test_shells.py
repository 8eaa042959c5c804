"""Completion in bash, zsh and fish: the scripts are run in the shells that are installed, and installed for them."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import run
from vramplan.cli.shells import SCRIPTS, SHELLS
from vramplan.options import table

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_that_is_named_is_printed(shell: str) -> None:
    ran = run("--show-completion", shell)
    assert ran == (0, SCRIPTS[shell], "")
    assert run(f"--show-completion={shell}") == ran


def test_without_a_name_the_shell_is_found_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramplan.cli.shells._caller", lambda: None)
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run("--show-completion").out == SCRIPTS["fish"]
    monkeypatch.setattr("vramplan.cli.shells._caller", lambda: "zsh")
    assert run("--show-completion").out == SCRIPTS["zsh"]
    monkeypatch.setattr("vramplan.cli.shells._caller", lambda: "dash")
    monkeypatch.setenv("SHELL", "/bin/dash")
    ran = run("--show-completion")
    assert ran.code == 2
    assert "--show-completion: which shell is not clear (name it: --show-completion bash, zsh or fish)" in ran.err


def test_a_shell_that_is_not_known_is_refused() -> None:
    ran = run("--install-completion", "fsh")
    assert ran.code == 2
    assert "there is no completion for 'fsh' (did you mean fish" in ran.err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and `vramplan` on the path."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "my home"
    (place / "bin").mkdir(parents=True)
    program = place / "bin" / "vramplan"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m vramplan "$@"\n', "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("PATH", os.pathsep.join((str(place / "bin"), os.environ["PATH"])))
    return place


@pytest.mark.parametrize("shell", SHELLS)
def test_installing_twice_changes_what_installing_once_does(shell: str, home: Path) -> None:
    rc = home / {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".unused"}[shell]
    rc.write_text("# no line break at the end", "utf-8")
    first = run("--install-completion", shell)
    assert first.code == 0, first.err
    written = {file: file.read_text("utf-8") for file in home.rglob("*") if file.is_file()}
    assert SCRIPTS[shell] in written.values()
    assert run("--install-completion", shell) == first
    assert {file: file.read_text("utf-8") for file in home.rglob("*") if file.is_file()} == written
    assert rc.read_text("utf-8").startswith("# no line break at the end")


def test_a_place_that_cannot_be_written_is_an_error(home: Path) -> None:
    (home / ".local").write_text("", "utf-8")
    ran = run("--install-completion", "bash")
    assert ran.code == 2
    assert "cannot be written" in ran.err


# The shells


def shell_or_skip(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


RECORDING = """#!/bin/sh
if [ -z "$_VRAMPLAN_COMPLETE" ] && [ "$1" != --show-completion ]; then echo "$@" >>"{log}"; exit; fi
PYTHONPATH="{root}" exec "{python}" -m vramplan "$@"
"""


class Terminal:
    """A shell at a terminal of its own, as a person has it. What it shows is not read, only what it runs."""

    def __init__(self, folder: Path, *command: str) -> None:
        import pty

        self.log = folder / "log"
        self.log.touch()
        program = folder / "vramplan"
        program.write_text(RECORDING.format(log=self.log, root=ROOT, python=sys.executable), "utf-8")
        program.chmod(0o755)
        self.child, self.stream = pty.fork()
        if self.child == 0:
            os.environ |= {"TERM": "dumb", "PS1": "> ", "HOME": str(folder)}
            os.environ["PATH"] = os.pathsep.join((str(folder), os.environ["PATH"]))
            os.chdir(folder)
            os.execv(command[0], command)

    def type(self, keys: str) -> str:
        """Type a line that calls vramplan; the arguments that it was called with."""
        before = self.log.read_text("utf-8")
        os.write(self.stream, f"{keys}\n".encode())
        end = time.monotonic() + 30  # far longer than it takes: a machine may have much to do
        shown = b""
        while time.monotonic() < end:
            if select.select([self.stream], [], [], 0.05)[0]:
                shown += os.read(self.stream, 65536)
            text = self.log.read_text("utf-8")
            if len(text) > len(before) and text.endswith("\n"):
                return text[len(before) : -1]
        raise AssertionError(shown)

    def close(self) -> None:
        os.kill(self.child, 9)
        os.waitpid(self.child, 0)
        os.close(self.stream)


TYPED = [
    ("mod\tsh\tgpt2-med\t", "models show gpt2-medium"),
    ("fit --gpu v100s\t--pr\t", "fit --gpu v100s --pr"),  # --precision, --print, --profiles
    ("fit --gpu=v100s\t--dro\t0", "fit --gpu=v100s --dropout 0"),
    ("fit --checkpointing ev\t4", "fit --checkpointing every:4"),
    ("fit --checkpointing=ev\t4", "fit --checkpointing=every:4"),
    ("fit --optimizer-imp\tfor-l\t", "fit --optimizer-implementation for-loop"),
    ("check some-j\t", "check some-jobs.yaml"),
    ("fit --profiles a-f\t", "fit --profiles a-folder/"),
    ("fit --profiles 'a-folder' --gpu my-o\t", "fit --profiles a-folder --gpu my-own"),
]


@pytest.fixture(scope="module", params=["bash", "zsh"])
def terminal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A shell that has read its script."""
    shell = shell_or_skip(request.param)
    place = tmp_path_factory.mktemp("place")
    (place / "some-jobs.yaml").write_text("version: 1\n", "utf-8")
    (place / "a-folder" / "gpus").mkdir(parents=True)
    (place / "a-folder" / "gpus" / "my-own.yaml").write_text("title: My own\n", "utf-8")
    opened = Terminal(place, shell, *{"bash": ("--norc", "--noprofile"), "zsh": ("-f",)}[request.param], "-i")
    assert opened.type(f". <(vramplan --show-completion {request.param}); vramplan ready") == "ready"
    yield opened
    opened.close()


@pytest.mark.sweep(6)
@pytest.mark.parametrize(("keys", "line"), TYPED, ids=[line for _, line in TYPED])
def test_tab_at_a_terminal(terminal: Terminal, keys: str, line: str) -> None:
    # some shells take the slash behind a folder away again when the line is entered
    assert terminal.type(f"vramplan {keys}").removesuffix("/") == line.removesuffix("/")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mod", {"models\tList the known models, or show one."}),
        ("models show gpt2-med", {"gpt2-medium\tGPT-2 Medium"}),
        ("fit --gpu=v100s", {"--gpu=v100s\tNVIDIA V100S PCIe 32 GB"}),
        ("fit --attention ", set(table.find("attention").words)),
        ("check some-j", {"some-jobs.yaml"}),
        ("fit --profiles a-f", {"a-folder/\tDirectory"}),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_fish_offers(line: str, wanted: set[str], home: Path) -> None:
    fish = shell_or_skip("fish")
    (home / "some-jobs.yaml").write_text("version: 1\n", "utf-8")
    (home / "a-folder").mkdir()
    script = f"vramplan --show-completion fish | source; complete -C 'vramplan {line}'"
    done = subprocess.run([fish, "--no-config", "-c", script], cwd=home, capture_output=True, text=True)
    assert set(done.stdout.splitlines()) == wanted, done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_a_new_session_has_the_installed_completion(shell: str, home: Path) -> None:
    found = shell_or_skip(shell)
    assert run("--install-completion", shell).code == 0
    asked = {
        "bash": ["-ic", "complete -p vramplan"],
        "zsh": ["-ic", "print -r -- ${_comps[vramplan]}"],
        "fish": ["-c", "complete -C 'vramplan che'"],
    }[shell]
    done = subprocess.run([found, *asked], cwd=home, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wanted = {"bash": "-F _vramplan_completion vramplan", "zsh": "_vramplan_completion", "fish": "check\t"}[shell]
    assert wanted in done.stdout, done.stderr


PAGE = (ROOT / "docs" / "completion.md").read_text("utf-8")


@pytest.mark.parametrize("script", re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL), ids=str.strip)
def test_the_lines_of_the_page_run(script: str, home: Path) -> None:
    shell = shell_or_skip("fish" if "| source" in script else "bash")
    done = subprocess.run([shell, "-c", script], cwd=home, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_names_the_files_that_are_written(home: Path) -> None:
    for shell in SHELLS:
        assert run("--install-completion", shell).code == 0
    written = {
        f"`~/{file.relative_to(home)}`" for file in home.rglob("*") if file.is_file() and "bin" not in file.parts
    }
    assert written
    assert not {name for name in written if name not in PAGE}
