"""Exit codes are public: a code never changes meaning, whatever the flags (docs/exit-codes.md)."""

from __future__ import annotations


class ExitCode:
    """What the process tells its caller."""

    OK = 0  # fits, or tight with an estimate within the usable memory; every gate passed
    INTERNAL_ERROR = 1  # a bug in vramplan
    BAD_INPUT = 2  # usage, unknown name, broken file, a job that cannot be computed
    DOES_NOT_FIT = 3  # also: more likely than not (a tight estimate above the usable memory); a gate failed
    UNWRITABLE = 5  # the answer is known and cannot be written: a full disk
    TIGHT = 4  # only with --strict
    INTERRUPTED = 130
    BROKEN_PIPE = 141
