"""Grid profiles: how much carbon dioxide a kilowatt hour of a country's electricity stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import locate, profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile
from vramplan.catalog.reading import once
from vramplan.errors import InputError

_INTENSITY = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*(k?g)\s*/\s*kWh", re.ASCII)


def parse_intensity_g_per_kwh(text: str) -> float | None:
    """`369 g/kWh` or `0.369 kg/kWh` in grams; None for any other text."""
    found = _INTENSITY.fullmatch(text.strip())
    return None if found is None else float(found[1]) * (1000.0 if found[2] == "kg" else 1.0)


def _intensity(fields: Fields, name: str) -> float | None:
    text = fields.text(name)
    value = None if text is None else parse_intensity_g_per_kwh(text)
    if text is not None and value is None:
        fields.problem(name, f"{text[:40]!r} is no carbon intensity", hint="as in 369 g/kWh")
    return value


@once
def load_grid(path: Path | str) -> Profile:
    """Read one grid profile. Raises InputError with every problem of the file."""
    fields = profile.open_profile(Path(path))
    found = profile.read(fields, "grid", {"intensity": _intensity})
    if found.value("intensity") is None and not fields.sink.problems:
        fields.problem("fields", "intensity missing")
    fields.sink.raise_all()
    return found


def find_grid(name: str, dirs: Sequence[Path] = ()) -> Profile:
    """The profile of that name or alias. Raises InputError, with near matches."""
    found = locate.find("grids", name, dirs, load_grid)
    if found is None:
        raise InputError([locate.unknown("grids", name, dirs)._replace(key="grid")])
    return found
