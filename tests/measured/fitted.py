"""Which published runs say nothing about a figure, because a constant that decides it was chosen in their sight.

Read from where the constants stand: `FITTED_FROM` of the modules, and `fitted_from` of the fields of profiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache

from vramplan.catalog import lint, locate
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.profile import Profile
from vramplan.catalog.runtimes import find_runtime_profile
from vramplan.planner import bands, budget
from vramplan.planner.bands import BAND_ESTIMATED, BAND_SIMULATED, RESERVED_ESTIMATED, Fitted
from vramplan.results.listings import ValidateRow

CONSTANTS: tuple[Fitted, ...] = (*bands.FITTED_FROM, *budget.FITTED_FROM)
OUTSIDE_OF_THE_ALLOCATOR = ("context", "process_group")
"""Fields that are no part of what a process allocates or reserves."""

ON_THE_DEVICE = ("device", "unspecified")
RESERVED = ("reserved", *ON_THE_DEVICE)


@cache
def _runtime(name: str) -> Profile:
    return find_runtime_profile(name)


@cache
def every_profile() -> tuple[Profile, ...]:
    """All that is shipped."""
    files = [(kind, path) for kind, folder in lint.FOLDER_OF.items() for path in locate.files(folder, ()).values()]
    return tuple(lint.LOADERS[kind](path) for kind, path in files if "fitted_from" in path.read_text("utf-8"))


def _architecture(field: str) -> str | None:
    """The architecture on whose cards alone a context is taken; None: on all."""
    word = field.removeprefix("context_").partition("_")[0]
    return word if field.startswith("context_") and word in GENERATIONS else None


def matches(name: str, runs: Iterable[str]) -> bool:
    """Whether a run is among the named ones."""
    return any(fnmatchcase(name, pattern) for pattern in runs)


def fitted_fields(row: ValidateRow) -> tuple[str, ...]:
    """The fields of profiles that decide the predicted figure of a row and were chosen in sight of that run."""
    profiles = [_runtime(str(row.runtime))]
    if row.result is not None:
        for kind, key in (("gpus", "gpu"), ("models", "model")):
            named = row.result.job[key]["name"]
            profiles += [one for one in every_profile() if one.name == named and f"/{kind}/" in one.file]
    found = []
    for profile in profiles:
        for key, field in profile.fields.items():
            if key.startswith(OUTSIDE_OF_THE_ALLOCATOR) and row.metric not in ON_THE_DEVICE:
                continue
            architecture = _architecture(key)
            if architecture is not None and row.result and architecture != row.result.job["gpu"]["architecture"]:
                continue
            if matches(row.name, field.fitted_from):
                found.append(f"{profile.name}: {key}")
    return tuple(found)


def is_fitted(row: ValidateRow, *, simulated: bool = True) -> bool:
    """Whether the predicted figure of a row is in part from the run that it is compared with."""
    if fitted_fields(row):
        return True
    return not simulated and row.metric in RESERVED and _decided(row, RESERVED_ESTIMATED)


def is_band_fitted(row: ValidateRow, *, simulated: bool = True) -> bool:
    """Whether the band of a row is in part from the run that it is compared with."""
    figure = BAND_SIMULATED if simulated else BAND_ESTIMATED
    return _decided(row, figure) or is_fitted(row, simulated=simulated)


def _decided(row: ValidateRow, figure: str) -> bool:
    return any(one.figure == figure and matches(row.name, one.runs) for one in CONSTANTS)


def counted(rows: Iterable[ValidateRow], *, simulated: bool = True) -> list[ValidateRow]:
    """The rows whose errors are those of figures that have not seen the run."""
    return [row for row in rows if not is_fitted(row, simulated=simulated)]


def counted_bands(rows: Iterable[ValidateRow], *, simulated: bool = True) -> list[ValidateRow]:
    """The rows whose bands have not seen the run."""
    return [row for row in rows if not is_band_fitted(row, simulated=simulated)]


def every_pattern() -> dict[str, tuple[str, ...]]:
    """The runs of every constant and of every field, by what names them."""
    fields = {f"{one.name}: {key}": field.fitted_from for one in every_profile() for key, field in one.fields.items()}
    return {f"{one.constant}, {one.figure}": one.runs for one in CONSTANTS} | {
        key: runs for key, runs in fields.items() if runs
    }
