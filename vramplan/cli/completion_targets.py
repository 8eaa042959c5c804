"""What a shell offers of the layers of a model."""

from __future__ import annotations

import contextlib
from pathlib import Path

from vramplan.catalog.counting import in_code
from vramplan.catalog.models import find_model
from vramplan.cli.completion_values import TypedLine
from vramplan.errors import InputError
from vramplan.job.trained.adapter_targets import known_targets
from vramplan.replay.techniques.adapters import ALL_LINEAR, leaf
from vramplan.replay.techniques.trained import names_of


def targets(line: TypedLine) -> tuple[str, ...]:
    """What an adapter of the kind may sit on; without a model what every model has."""
    known: tuple[str, ...] = (ALL_LINEAR,)
    folders = [Path(folder).expanduser() for folder in line.options.get("profiles", ())]
    for name in line.options.get("model", ())[-1:]:
        with contextlib.suppress(InputError, OSError):
            model, _ = find_model(name, folders)
            model = in_code(model)
            names = known_targets(model, names_of(model), (line.options.get("adapter") or ["lora"])[-1])
            known = tuple(dict.fromkeys((*names, *map(leaf, names))))  # ends of names will do
    return known
