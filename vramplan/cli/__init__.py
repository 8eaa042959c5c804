"""The command line: declarations here, what a command does in `runs`.

A declaration is read for every `--help` and every TAB; the body is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec

P = ParamSpec("P")

BODIES: dict[str, Callable[..., None]] = {}
"""The declarations that were imported so far, by the address of what each runs."""


def named(address: str) -> Any:
    """What a text names, `package.module` or `package.module:NAME`; it is imported when it is asked for."""
    module, _, name = address.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


def done_by(address: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make a command of a declaration, which has a signature and a help, and of the function at `address`.

    That function has the same parameters, as plain types and without defaults.
    """

    def of(declaration: Callable[P, None]) -> Callable[P, None]:
        @wraps(declaration)
        def run(*values: P.args, **options: P.kwargs) -> None:
            named(address)(*values, **options)

        BODIES[address] = declaration
        return run

    return of
