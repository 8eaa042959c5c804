"""What `vramplan calibrate` does."""

from __future__ import annotations

from pathlib import Path

from vramplan.catalog import skeleton, stacks
from vramplan.cli.output import emit, write
from vramplan.cli.output import output as output_as
from vramplan.cli.runs.listings import folders_of
from vramplan.errors import InputError, Problem, UsageError
from vramplan.measure import calibration
from vramplan.results.profiles import NewProfile

STANDARD = "-"


def calibrate(
    output: str | None, force: bool, profiles: list[str] | None, output_format: str, key: str | None, quiet: bool
) -> None:
    """Run `vramplan calibrate` with the values of its options."""
    to = output_as(output_format, key, quiet)
    if output == STANDARD and (key is not None or output_format != "text"):
        raise UsageError("- prints the profile itself, in no other format", key="--output", hint="name a file")
    file = Path(output) if output else skeleton.default_file("stack", stacks.DEFAULT)
    if output != STANDARD and file.exists() and not force:  # before the steps: they take a while
        raise InputError([Problem("there is such a file", "--output", "replace it with --force", str(file))])
    folders_of(profiles)
    found = calibration.calibrate(calibration.probe, stacks.load_stack_profile(calibration.shipped()))
    if output == STANDARD:
        write(found.text)
        return
    new = NewProfile("stack", stacks.DEFAULT, None, None, None, (), found.text)
    emit("calibrate", found._replace(file=skeleton.write(new, file, force=force).file), to)
