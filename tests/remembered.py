"""What the tests of a process ask for again and again, and what cannot differ, is made once.

A process of `vramplan` answers one command and forgets. One that runs a thousand tests would spend half of its time on
reading the same shipped profiles, building the same commands out of their signatures and replaying the same iterations
for the planner. What is remembered is a function of its arguments alone: of a file in the checkout's folder of profiles
as long as it is not changed, of a name where no other folder is searched, of a setup. What people write is always read,
and what tests replay themselves is replayed. `tests/architecture/test_remembered.py` holds that nothing has changed
what is remembered; the tests that start processes have nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, lru_cache, wraps
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from vramplan.catalog import document, gpus, locate, models
from vramplan.cli import commands
from vramplan.planner import replays, reserving

SHIPPED = Path(__file__).resolve().parents[1] / "profiles"
PREFIX = f"{SHIPPED}{os.sep}"


def of_files(read: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a path that reads a shipped file once."""
    known: dict[str, tuple[int, Any]] = {}

    @wraps(read)
    def remembered(path: Path | str, **options: Any) -> Any:
        name = str(path)
        if not name.startswith(PREFIX):
            return read(path, **options)
        try:
            changed = os.stat(name).st_mtime_ns
        except OSError:
            return read(path, **options)
        if name not in known or known[name][0] != changed:
            known[name] = changed, read(path, **options)
        return known[name][1]

    return remembered


def of_names(find: Callable[..., Any]) -> Callable[..., Any]:
    """`locate.find` that searches the shipped profiles once for each name, where no other folder is searched."""
    known: dict[tuple[str, str], Any] = {}

    @wraps(find)
    def remembered(kind: str, name: str, dirs: Any, load: Callable[[Path], Any]) -> Any:
        if locate.searched(dirs) != [SHIPPED]:
            return find(kind, name, dirs, load)
        if (kind, name) not in known:
            known[kind, name] = find(kind, name, dirs, load)
        return known[kind, name]

    return remembered


def of_setups(replay: Callable[..., Any], most: int) -> Callable[..., Any]:
    """What is computed of a setup, computed once; other threads compute for themselves, as tests of them are about."""
    known = lru_cache(most)(replay)

    @wraps(replay)
    def remembered(*arguments: Any, **options: Any) -> Any:
        return (known if current_thread() is main_thread() else replay)(*arguments, **options)

    return remembered


def install() -> None:
    """From now on, in this process."""
    document.load = of_files(document.load)
    locate.find = of_names(locate.find)
    gpus.load_gpu_profile = of_files(gpus.load_gpu_profile)
    models.load_model_profile = of_files(models.load_model_profile)
    commands.build = cache(commands.build)
    replays.replay = of_setups(replays.replay, 256)
    reserving.records_of = of_setups(reserving.records_of, 64)
    reserving.reserve = of_setups(reserving.reserve, 128)
