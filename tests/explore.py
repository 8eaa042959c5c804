"""Explore with fresh seeds what the suite draws the same for everybody: `python -m tests.explore --help`."""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import core, is_hypothesis_test
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException, StopTest

from tests.drawing import EXPLORING, install

ROOT = Path(__file__).resolve().parents[1]
NOTHING_FOUND, FOUND, NOT_RUN = 0, 1, 2  # exit codes

EPILOG = """\
A failure is printed with its smallest example, in a form to paste above the test as an example of it; the helpers
are imported from tests.engine.examples and tests.drawing. The seed that is printed with it draws it again.

example:
  python -m tests.explore --minutes 5 --jobs 2 --test "engine and not zero"

exit code: 0 if nothing was found, 1 if something was, 2 if nothing could be run.
"""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.explore",
        description="Run all property tests again and again with fresh random seeds, until the time is over.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="how long; the tests that run then end (default 30)"
    )
    parser.add_argument("--seed", type=int, help="of the first round (default: a random one, which is printed)")
    parser.add_argument("--test", metavar="EXPRESSION", help="only tests whose names match, as in `pytest -k`")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, each with seeds of its own")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders of tests (default: the whole suite)")
    parser.add_argument("--worker", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.minutes <= 0:
        parser.error("--minutes must be positive")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


class Exploration:
    """A pytest plugin: of what was collected it runs the properties alone, round by round, until the time is over.

    The seeds of one of `jobs` processes are `seed`, `seed + jobs`, `seed + 2 * jobs` and so on, one for each round. A
    test that has failed is not drawn again.
    """

    def __init__(self, minutes: float, seed: int, jobs: int, out: TextIO) -> None:
        self.minutes, self.seed, self.jobs, self.out = minutes, seed, jobs, out
        self.drawn: Counter[str] = Counter()
        self.found: list[str] = []
        self.errors: list[str] = []
        self._now = ""
        self._fixtures: set[str] = set()  # and parameters: what of its arguments is not drawn
        self.properties: int | None = None  # how many tests there are, once they are collected
        self._examples: dict[str, dict[tuple[str, str], tuple[str, str]]] = {}  # of each test: by what failed

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """What this command prints takes the place of pytest's own report."""
        config.pluginmanager.unregister(name="terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Properties are told by their nature: no list of them is kept."""
        items[:] = [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected hides its tests."""
        if report.failed:
            self.errors.append(f"{report.nodeid}\n{report.longreprtext}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """All rounds."""
        self.properties = len(session.items)
        for item in session.items:
            if item.obj._hypothesis_internal_use_settings.derandomize:  # type: ignore[attr-defined]
                self.errors.append(f"{item.nodeid} would draw the same in every round: its settings say derandomize")
        if self.errors or not session.items:
            return True
        for handle in {id(each): each for each in (item.obj.hypothesis for item in session.items)}.values():  # type: ignore[attr-defined]
            handle.inner_test = self._watched(handle.inner_test)
        for item, following in self._rounds(session.items):
            self._now, self._fixtures = item.nodeid, {*item.fixturenames}  # type: ignore[attr-defined]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return True

    def _rounds(self, items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
        """Each test with the one after it, while there is time."""
        left, until = list(items), time.monotonic() + 60 * self.minutes
        while left:
            core.global_force_seed = self.seed
            random.Random(self.seed).shuffle(left)
            for item, following in zip(left, [*left[1:], None], strict=True):
                if time.monotonic() >= until:
                    return
                yield item, following
            left = [item for item in left if item.nodeid not in self.found]
            self.seed += self.jobs

    def _watched(self, test: Any) -> Any:
        """The body of a test, which counts its examples and notes those that fail: the last one is the smallest."""

        @wraps(test)
        def run(*given: Any, **named: Any) -> Any:
            self.drawn[self._now] += 1
            recorders: dict[str, Recorder] = {}
            drawn = {name: value for name, value in named.items() if name not in self._fixtures}
            for name, value in drawn.items():
                if isinstance(value, st.DataObject):
                    named[name] = recorders[name] = Recorder(value)
            before = {name: source(value) for name, value in drawn.items() if name not in recorders}
            try:
                return test(*given, **named)
            except (HypothesisException, StopTest):
                raise
            except (Exception, pytest.fail.Exception) as error:
                sources = before | {name: recorder.source() for name, recorder in recorders.items()}
                frame = traceback.extract_tb(error.__traceback__)[-1]
                key = (type(error).__name__, f"{frame.filename}:{frame.lineno}")
                text = ", ".join(f"{name}={each}" for name, each in sources.items())
                why = "".join(traceback.format_exception_only(error)).strip()
                self._examples.setdefault(self._now, {})[key] = (f"@example({text})", why)
                raise

        return run

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print what was found, at once."""
        if not report.failed:
            return
        found = self._examples.setdefault(report.nodeid, {})
        lines = [f"\nFOUND by {report.nodeid}"]
        for (_, place), (text, why) in found.items():
            lines += [f"  {os.path.relpath(place, ROOT)}", *(f"  {line}" for line in why.splitlines()[:12]), text]
        if not found:
            lines.append(report.longreprtext)
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        lines.append(f"again: python -m tests.explore --seed {self.seed} --minutes 1 --test {name}")
        self.found.append(report.nodeid)
        self.out.write("\n".join(lines) + "\n")
        self.out.flush()


class Recorder:
    """Stands for what a test draws from inside, and notes it."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.sources: list[str] = []

    def draw(self, strategy: Any, label: Any = None) -> Any:
        """As `data.draw`."""
        value = self.data.draw(strategy, label)
        self.sources.append(source(value))
        return value

    def source(self) -> str:
        """What draws the same in an explicit example."""
        return f"Drawn({', '.join(self.sources)})"


def source(value: Any) -> str:
    """The source of a value; where none is known, what Python prints for it, marked so that it is not pasted."""
    from tests.pasted import NotWritten, source_of

    try:
        return source_of(value)
    except NotWritten as unknown:
        return f"<{unknown} that has no source: {value!r}>"


def work(options: argparse.Namespace, out: TextIO) -> int:
    """Explore in this process; what was drawn and found goes into the file that the command has named."""
    install()
    exploration = Exploration(options.minutes, options.seed, options.jobs, out)
    arguments = ["-p", "no:cacheprovider", f"--hypothesis-profile={EXPLORING}", "-c", str(ROOT / "pyproject.toml")]
    arguments += [f"--rootdir={ROOT}", "-W", "ignore::pytest.PytestWarning"]
    if options.test:
        arguments += ["-k", options.test]
    try:
        pytest.main([*arguments, *(options.paths or [str(ROOT / "tests")])], plugins=[exploration])
    finally:
        result = {
            "properties": exploration.properties,
            "drawn": exploration.drawn,
            "found": exploration.found,
            "errors": exploration.errors,
        }
        Path(options.worker).write_text(json.dumps(result))
    return NOTHING_FOUND


def explore(options: argparse.Namespace) -> int:
    """Start the processes, wait for them, and say what they have drawn."""
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    print(f"{options.minutes:g} minutes, {options.jobs} processes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.json") for number in range(options.jobs)]
        workers = []
        for number, file in enumerate(files):
            command = [sys.executable, "-m", "tests.explore", "--worker", str(file), "--minutes", str(options.minutes)]
            command += ["--seed", str(seed + number), "--jobs", str(options.jobs)]
            command += ["--test", options.test] if options.test else []
            command += [str(Path(path).resolve()) for path in options.paths]
            workers.append(subprocess.Popen(command, cwd=ROOT))
        for worker in workers:
            while True:
                try:
                    worker.wait()
                    break
                except KeyboardInterrupt:  # the workers have it too, and end
                    continue
        results = [json.loads(file.read_text()) if file.exists() else None for file in files]
    return summary(results)


def summary(results: Sequence[dict[str, Any] | None]) -> int:
    """Print how many examples each test has drawn, and what was found; the exit code."""
    whole = [result for result in results if result is not None]
    errors = {error for result in whole for error in result["errors"]}
    if errors:
        print(*sorted(errors), sep="\n")
        return NOT_RUN
    if len(whole) < len(results) or any(result["properties"] is None for result in whole):
        print("a process ended before it had collected the tests")
        return NOT_RUN
    if not whole[0]["properties"]:
        print("no property test has that name")
        return NOT_RUN
    drawn: Counter[str] = Counter()
    for result in whole:
        for test, count in result["drawn"].items():
            drawn[test.partition("[")[0]] += count
    print("\nexamples  test")
    for test in sorted(drawn):
        print(f"{drawn[test]:8,}  {test}")
    found = sorted({test for result in whole for test in result["found"]})
    print(f"\n{sum(drawn.values()):,} examples of {whole[0]['properties']} property tests; {len(found)} of them failed")
    print(*(f"  {test}" for test in found), sep="\n", end="\n" * bool(found))
    return FOUND if found else NOTHING_FOUND


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = parsed(arguments)
    if options.worker is None:
        return explore(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:  # pytest captures the other one
        return work(options, out)


if __name__ == "__main__":
    sys.exit(main())
