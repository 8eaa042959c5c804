"""Exit codes are public: a code never changes meaning, whatever the flags (docs/exit-codes.md)."""

from __future__ import annotations


class ExitCode:
    """What the process tells its caller."""

    OK = 0  # fits (tight counts as fits without --strict); every gate passed
    INTERNAL_ERROR = 1  # a bug in vramplan
    BAD_INPUT = 2  # usage, unknown name, broken file, a job that cannot be computed
    DOES_NOT_FIT = 3  # also: a gate failed
    TIGHT = 4  # only with --strict
    INTERRUPTED = 130
    BROKEN_PIPE = 141


def code_of(verdict: str, *, strict: bool) -> int:
    """The exit code of a verdict."""
    from vramplan.values.job import DOES_NOT_FIT, TIGHT  # here, so that --help does not load it

    if verdict == DOES_NOT_FIT:
        return ExitCode.DOES_NOT_FIT
    return ExitCode.TIGHT if verdict == TIGHT and strict else ExitCode.OK
