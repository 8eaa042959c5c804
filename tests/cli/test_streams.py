"""Stdout carries the answer and nothing else; colour is for terminals that want it; nobody hears of a closed pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, TINY, process, run, write_jobs

GPT2 = ("fit", "-m", "gpt2-xl", "-g", "v100")
NO = (*GPT2, "--micro-batch", "32", "--checkpointing", "full")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
BAR = "█░"


def on_terminal(*words: str, columns: int = 80, **environment: str) -> str:
    """What a terminal of so many columns receives."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")}
    env = {**inherited, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment}
    with subprocess.Popen([*COMMAND, *words], stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=env) as child:
        os.close(slave)
        received = b""
        try:
            while piece := os.read(master, 65536):
                received += piece
        except OSError:  # EIO: the other end is closed
            pass
        os.close(master)
        assert child.stderr is not None
        assert child.stderr.read() == b""
    return received.decode().replace("\r\n", "\n")


def interrupted(*words: str, after: bytes) -> tuple[int, str]:
    """The exit code, and what a terminal of 80 columns has received, if somebody presses Ctrl-C after some words."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "80"}
    with subprocess.Popen([*COMMAND, *words], stdin=slave, stdout=slave, stderr=slave, env=env) as child:
        os.close(slave)
        received = b""
        pressed = False
        try:
            while piece := os.read(master, 65536):
                received += piece
                if after in received and not pressed:
                    child.send_signal(signal.SIGINT)
                    pressed = True
        except OSError:  # EIO: the other end is closed
            pass
        os.close(master)
    return child.wait(), received.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    write_jobs(folder / "jobs.yaml", {"model": TINY, "gpu": "v100"}, {"model": "gpt2-xl", "gpu": "t4"})
    (folder / "gpus").mkdir()
    return folder


COMMANDS = {
    "fit": GPT2,
    "fit, a no": NO,
    "fit, tight": (*GPT2, "--reserve", "3.5 GiB"),
    "check": ("check", "jobs.yaml"),
    "validate": ("validate", "jobs.yaml"),
    "gpus": ("gpus",),
    "models": ("models",),
    "gpus show": ("gpus", "show", "v100"),
    "models show": ("models", "show", "gpt2-xl"),
    "help": ("fit", "--help"),
    "version": ("--version",),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_pipe_gets_ascii_without_colour_and_stderr_nothing(
    words: tuple[str, ...], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    ran = run(*words)
    assert ran.err == ""
    assert ran.out.isascii()
    assert all(char.isprintable() or char == "\n" for char in ran.out)
    assert ran.out.endswith("\n")
    if words[0] in ("fit", "--version"):
        assert max(map(len, ran.out.splitlines())) <= 80


def test_json_is_ascii_and_one_document_whatever_the_names(tmp_path: Path) -> None:
    file = write_jobs(tmp_path / "jobs.yaml", {"name": "Größe \u2603", "model": TINY, "gpu": "v100"})
    ran = run("check", file, "--format", "json")
    assert ran.out.isascii()
    assert ran.document["results"][0]["name"] == "Größe \u2603"
    assert run("check", file).out.isascii()


@pytest.mark.sweep(8)
@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "words", [GPT2, NO, ("gpus",), ("models", "show", "gpt2-xl")], ids=["fit", "no", "gpus", "show"]
)
def test_a_terminal_gets_colour_within_its_width(words: tuple[str, ...], columns: int) -> None:
    received = on_terminal(*words, columns=columns)
    assert COLOUR.search(received)
    plain = COLOUR.sub("", received)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= columns
    if words[0] == "fit":
        assert set(BAR) & set(plain)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("quieter", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_a_terminal_that_wants_no_colour_gets_what_a_pipe_gets(quieter: dict[str, str]) -> None:
    received = on_terminal(*GPT2, **quieter)
    assert received == run(*GPT2).out
    for words in (("gpus",), ("models", "show", "gpt2")):
        received = on_terminal(*words, **quieter)
        assert "\x1b" not in received
        assert received.isascii()
        assert max(map(len, received.splitlines())) <= 80


@pytest.mark.sweep(4)
@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_lists_on_a_terminal_keep_to_it(columns: int, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    for words in (("gpus",), ("models",), ("check", "jobs.yaml"), ("gpus", "show", "v100"), GPT2):
        received = COLOUR.sub("", on_terminal(*words, columns=columns))
        assert max(map(len, received.splitlines())) <= columns, words


@pytest.mark.sweep
def test_a_gpu_has_one_line_on_a_terminal() -> None:
    count = len(run("gpus").out.splitlines())
    for columns in (60, 80, 120, 200):
        assert len(on_terminal("gpus", columns=columns).splitlines()) == count


def test_an_error_on_a_terminal_has_no_escape_codes(tmp_path: Path) -> None:
    ran = run("fit", "-m", "\x1b[31mred", "-g", "v100")
    assert ran.code == 2
    assert "\x1b" not in ran.err


PIPED = {
    "models": ("models",),
    "fit": GPT2,
    "fit as JSON": (*GPT2, "--format", "json"),
    "help": ("fit", "--help"),
    "version": ("--version",),
    "an error object": ("fit", "-m", "x", "-g", "y", "--format", "json"),
}


@pytest.mark.sweep(12)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", PIPED.values(), ids=PIPED)
def test_a_reader_that_went_away_is_141_and_silent(words: tuple[str, ...], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, env=env, timeout=60, check=False)
    os.close(writer)
    said = b"" if words != PIPED["an error object"] else done.stderr
    assert (done.returncode, done.stderr) == (141, said)
    assert b"Traceback" not in done.stderr


@pytest.mark.sweep
def test_a_full_disk_is_said_and_is_no_success() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "models"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.sweep
def test_closed_streams_are_no_reason_to_fail() -> None:
    closed = f"{sys.executable} -m vramplan fit -m gpt2 -g v100 --quiet"
    for redirection, code in ((">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("<&-", 0)):
        done = subprocess.run(f"{closed} {redirection}", shell=True, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


INTERRUPTED = """
import os, signal, sys
from vramplan.cli.app import main
class Keyboard:
    def read(self, size):
        os.kill(os.getpid(), signal.SIGINT)
        return b""
class Stdin:
    buffer = Keyboard()
sys.stdin = Stdin()
main(["check", "-"] + sys.argv[1:])
"""


@pytest.mark.parametrize("extra", [(), ("--format", "json"), ("--quiet",)])
def test_an_interrupt_is_130_and_silent(extra: tuple[str, ...]) -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, *extra], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_process_says_the_same_as_main_called_here() -> None:
    done = process(*GPT2)
    ran = run(*GPT2)
    assert (done.returncode, done.stdout, done.stderr) == ran


def test_a_message_that_cannot_be_written_changes_no_code() -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*COMMAND, "fit", "-m", "nope", "-g", "v100"], stderr=full, check=False, timeout=60)
    assert ran.returncode == 2


def test_a_pipe_that_nobody_reads_is_an_error_and_no_wait_without_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ("timeline", "-m", "bert-tiny", "-g", "v100", "--micro-batch", "1", "--quiet", "--svg", str(pipe))
    ran = process(*words)
    assert ran.returncode == 2
    assert "nobody reads from the pipe" in ran.stderr
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert process(*words).returncode == 0
        assert reader.stdout is not None
        assert reader.stdout.read().startswith(b"<svg")


def test_a_no_stands_on_a_terminal_before_what_would_fit_is_found() -> None:
    words = ("fit", "-m", "llama-3-70b", "-g", "a100")
    code, shown = interrupted(*words, after=b"make it fit ...")
    assert code == 130
    opening, _, rest = shown.partition("looking for what would make it fit ...")
    assert opening.startswith("DOES NOT FIT  llama-3-70b on a100")
    assert "GiB per GPU" in opening
    assert "  why not the largest part is" in rest  # what is known is said to its end
    assert "  to fit" not in rest
    whole = process(*words).stdout
    assert whole.startswith(opening)
    assert "  to fit " in whole
