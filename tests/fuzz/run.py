"""One round: a job or a file is drawn, its oracles are asked within limits, and a failure is made smaller."""

from __future__ import annotations

import gc
import resource
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.fuzz import draws, files, oracles
from tests.fuzz.draws import Keys
from vramplan import InputError
from vramplan.options.flags import quoted

MOST_SECONDS = 20.0  # of a question, which is up to six answers; a simulated allocator takes up to three for one
FILES = 0.25  # of all rounds
MOST_BYTES = 1 << 30  # that one round may add to the process


class Slow(BaseException):
    """An answer took longer than it may. No handler of the program catches it."""


class Fault(NamedTuple):
    """What was found, and how to see it again."""

    oracle: str
    message: str
    command: str
    keys: Keys | None = None


@contextmanager
def limited(seconds: float = MOST_SECONDS) -> Iterator[None]:
    """Raise Slow after so much processor time, which does not depend on what else the machine does."""

    def stop(number: int, frame: Any) -> None:
        raise Slow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def asked(oracle: str, question: Callable[[], str | None]) -> str | None:
    """What a question found; an exception or too much time is a find too."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with limited():
            found = question()
    except InputError:
        return None
    except Slow:
        return f"takes more than {MOST_SECONDS:g} s"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno})"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return f"needs {grown} bytes more than the rounds before" if grown > MOST_BYTES else found


REFUSED = ("refused", "")


def judged(keys: Keys, chosen: tuple[oracles.Oracle, ...]) -> tuple[str, str] | None:
    """The name of the first oracle that finds something about a job, and what it is; REFUSED if nobody answers it."""
    ask = oracles.Asker()
    results: list[Any] = []
    found = asked("answer", lambda: results.append(ask(keys)))  # type: ignore[func-returns-value]
    if found is not None:
        return "answer", found
    if not results:
        return REFUSED
    for oracle in chosen:
        found = asked(oracle.__name__, lambda oracle=oracle: oracle(ask, keys, results[0]))  # type: ignore[misc]
        if found is not None:
            return oracle.__name__, found
    return None


def smaller(keys: Keys, chosen: tuple[oracles.Oracle, ...], name: str) -> Keys:
    """The job with every key dropped without which the same oracle finds something still."""
    one = tuple(oracle for oracle in chosen if oracle.__name__ == name)
    changed = True
    while changed:
        changed = False
        for without in _each_without(keys):
            found = judged(without, one)
            if found is not None and found[0] == name:
                keys, changed = without, True
                break
    return keys


def _each_without(keys: Keys) -> Iterator[Keys]:
    for key in keys:
        if key in ("model", "gpu"):
            continue
        yield {other: value for other, value in keys.items() if other != key}
        if isinstance(keys[key], dict):
            for inner in keys[key]:
                if inner != "kind":
                    yield keys | {key: {name: part for name, part in keys[key].items() if name != inner}}
        if isinstance(keys[key], list) and len(keys[key]) > 1:
            yield keys | {key: keys[key][:1]}
    for key, simple in (("model", "gpt2"), ("gpu", "a100-80gb")):
        if keys[key] != simple:
            yield keys | {key: simple}


def job_round(random: Random) -> tuple[Fault | None, bool]:
    """A random job and its oracles. What is wrong, and whether the job was answered."""
    keys = draws.job(random)
    chosen = (*oracles.ALWAYS, *random.sample(oracles.ONE_OF, 2))
    found = judged(keys, chosen)
    if found is None or found == REFUSED:
        return None, found is None
    name, message = found
    least = smaller(keys, chosen, name)
    again = judged(least, chosen)
    command = "vramplan fit " + " ".join(map(quoted, oracles.line(least)))
    return Fault(name, message if again is None else again[1], command, least), True


def file_round(random: Random, folder: Path) -> Fault | None:
    """A broken file. What is wrong."""
    make = random.choice([files.job_file, files.config])
    words = make(random, folder)
    message = asked(make.__name__, lambda: files.wrong(words))
    if message is None:
        return None
    path = Path(next(word for word in words if str(folder) in word))
    text = path.read_bytes()[:1500].decode("utf-8", "backslashreplace")
    return Fault(make.__name__, message, f"vramplan {' '.join(map(quoted, words))}, where the file is\n{text}")


class Round(NamedTuple):
    """A round by its seed, which draws it again; `answered`: None of a file."""

    seed: int
    fault: Fault | None
    answered: bool | None


def rounds(seed: int) -> Iterator[Round]:
    """Rounds without end, each with a seed of its own."""
    with tempfile.TemporaryDirectory() as folder:
        number = seed
        while True:
            random = Random(number)
            if random.random() < FILES:
                yield Round(number, file_round(random, Path(folder)), None)
            else:
                yield Round(number, *job_round(random))
            number += 1
            if number % 50 == 0:
                gc.collect()
