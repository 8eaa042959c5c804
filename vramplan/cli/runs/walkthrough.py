"""What `vramplan walkthrough` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramplan.answers.walkthrough import walkthrough as tell
from vramplan.cli.job_options import as_job
from vramplan.cli.output import emit, output
from vramplan.errors import UsageError
from vramplan.job.counts import parameter_count


def walkthrough(
    given: dict[str, Any],
    parameters: str | None,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
    details: bool,
) -> None:
    """Run `vramplan walkthrough` with the values of its options."""
    to = output(output_format, key, quiet)
    folders = [Path(folder) for folder in profiles or ()]
    emit("walkthrough", tell(as_job(given), parameters=_count(parameters), profile_dirs=folders), to, details=details)


def _count(text: str | None) -> int | None:
    """A number of parameters; None if there is none."""
    if text is None:
        return None

    count = parameter_count(text)
    if count is None:
        raise UsageError(f"{text!r} is not a number of parameters", key="--parameters", hint="1.5B, 1.5e9, 1500000000")
    return count
