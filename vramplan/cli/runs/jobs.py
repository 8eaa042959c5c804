"""The job that the options of a command describe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.cli.job_options import as_job, require
from vramplan.job import build_job
from vramplan.values.job import Job


def job_of(given: dict[str, Any], folders: Sequence[Path]) -> Job:
    """The resolved job that the options describe, to be replayed: not one of the runtime textbook.

    Raises InputError with everything that is wrong.
    """
    require(given)
    return build_job(as_job(given), profile_dirs=folders)
