"""What several answers of one process have in common is worked out once, while a session lasts.

A session is a value that somebody opens: `check` and `validate` for their file, a Python program for its calls, and the
test suite for its tests. What is remembered is a function of its key alone, so an answer is the same with a session, warm
or fresh, and without one. A thread has the session that it opened itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextvars import ContextVar, Token
from typing import Any, TypeVar

Made = TypeVar("Made")

MOST = 256
"""Values of one kind that are kept: the replays of some sixty jobs, 0.1 MB each."""


class Session:
    """Remembers what was made, by its kind and key: of each kind the values that were asked for last.

    `with Session():` opens one for the thread; it may be opened again later, and has then what it had.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._made: dict[str, OrderedDict[Hashable, Any]] = {}
        self._tokens: list[Token[Session | None]] = []

    def __enter__(self) -> Session:
        self._tokens.append(_OPEN.set(self))
        return self

    def __exit__(self, *_exception: object) -> None:
        _OPEN.reset(self._tokens.pop())

    def once(self, kind: str, key: Hashable, make: Callable[[], Made]) -> Made:
        """The value of a key; `make` is called where it is not known. What `make` raises is not remembered."""
        known = self._made.setdefault(kind, OrderedDict())
        if key in known:
            known.move_to_end(key)
            found: Made = known[key]
            return found
        made = known[key] = make()
        while len(known) > self._most:
            known.popitem(last=False)
        return made


_OPEN: ContextVar[Session | None] = ContextVar("session", default=None)


def once(kind: str, key: Hashable, make: Callable[[], Made]) -> Made:
    """What the open session remembers of a key; without one it is made."""
    session = _OPEN.get()
    return make() if session is None else session.once(kind, key, make)


def is_open() -> bool:
    """Whether this thread has a session."""
    return _OPEN.get() is not None
