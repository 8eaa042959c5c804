"""Every test is of one kind, and says so: `pytest -m truth`, `-m closed_form`, `-m snapshot`, `-m contract`."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests import drawing, sweeps
from tests.extent import runs_whole
from tests.watchdog import Watchdog

gc.disable()  # until everything is collected: a quarter of the time of that, and next to nothing is freed
drawing.install()  # before the tests are imported, which take their settings from it

LONG = tuple(f"tests/{room}/" for room in ("measured", "compare", "planner", "fuzz", "packaging", "docs", "explain"))
VALUES = ("truth", "closed_form", "snapshot")  # where an expected value comes from; never mixed in one test


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the suite takes beside pytest's own options."""
    sweeps.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """No profile and no card of the person who runs the tests is in them, and none in the processes they start.

    Where Python is told to leave no bytecode behind, those processes share some in a folder that goes at the end:
    reading the sources of the program takes each of them longer than most tests.
    """
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        bytecode = tempfile.TemporaryDirectory(prefix="vramplan-bytecode-", ignore_cleanup_errors=True)
        config.add_cleanup(bytecode.cleanup)
        del os.environ["PYTHONDONTWRITEBYTECODE"]
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode.name
    os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).with_name("no-configuration"))
    for name in ("VRAMPLAN_PROFILES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        os.environ.pop(name, None)
    sweeps.decide(config)
    from vramplan.answers.session import Session  # it imports the program, which reads the environment

    # one for all tests of the process: replaying what another test has replayed would take half of the time
    session = Session(most_records=1024)
    session.replays.most_direct, session.replays.most_simulations = 32, 4096
    config.add_cleanup(_entered(session.open()))
    config.pluginmanager.register(Watchdog())


def _entered(context: AbstractContextManager[Any]) -> Callable[[], None]:
    stack = ExitStack()
    stack.enter_context(context)
    return stack.close


def pytest_collection(session: pytest.Session) -> None:
    """Of several processes each begins to import the test files at another place, and finds what others have compiled.

    All of them need all files, and assertions are rewritten in them, which takes longer than everything else that
    collecting does. Whatever an import raises, the collector meets again and tells.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    root = session.config.rootpath
    given = [root / argument.partition("::")[0] for argument in session.config.args]
    files = [file for path in given for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    names = [".".join(file.relative_to(root).with_suffix("").parts) for file in files if file.is_relative_to(root)]
    first = len(names) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for name in (*names[first:], *names[:first]):
        with suppress(Exception, pytest.skip.Exception):
            import_module(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test without an expected value of these kinds holds what the documents promise: a contract."""
    sweeps.draw_less(config, items)
    apart = set(sweeps.left_out(config, items))
    if apart:
        config.hook.pytest_deselected(items=[item for item in items if item in apart])
        items[:] = [item for item in items if item not in apart]
    for item in items:
        kinds = {mark.name for mark in item.iter_markers() if mark.name in VALUES}
        if len(kinds) > 1:
            raise pytest.UsageError(f"{item.nodeid} mixes {' and '.join(sorted(kinds))}")
        if not kinds:
            item.add_marker("contract")
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))  # so that no process ends with a long file alone


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that says so has its answers without remedies and simulations, but in the whole suite."""
    if item.get_closest_marker("plain") is None or runs_whole():
        yield
        return
    from tests.answers import plainly  # it imports the program, as above

    with plainly():
        yield


def pytest_collection_finish() -> None:
    """The collector passes over what collecting made, which stays to the end, and looks rarely at what is new.

    It costs a tenth of the time otherwise, and most of the tests that collect themselves: a replay makes many objects
    and no cycle. What is looked at is what has come to stay, once in ten million objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000_000, 20, 50)
    gc.enable()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which does not have to be there
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file run in one process, so that what they share is made once.

    Of those that look at traced rows, the ones that look at the same file of rows do, and those that look at all files;
    so do those that compute the published runs, and those that read the sources. Node ids say so, and no mark: what
    xdist_group adds to them is lost under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # it would begin with the files that have most tests

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path, _, test = nodeid.partition("::")
            if path.startswith("tests/measured/") or ("oracle" in path and "published_runs" in test):
                return "published runs"
            if path.startswith("tests/architecture/"):
                return "sources"
            if not path.startswith("tests/oracle/"):
                return path
            rows = "" if "block_by_block" in test else test.partition("[")[2]  # those are chosen among all rows
            return f"rows of {rows}" if rows else "rows of all files"

    return Scheduling(config, log)
