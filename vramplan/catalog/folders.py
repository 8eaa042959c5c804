"""The folders in which profiles are looked up, in that order, and what is in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import locate
from vramplan.catalog.lint import FOLDER_OF
from vramplan.results.profiles import Folder


def folders(dirs: Sequence[Path]) -> list[Folder]:
    """Every folder, also those that are not there: a person wants to know where to put a file."""
    places = [(path, "--profiles") for path in dirs]
    places += [(path, locate.VARIABLE) for path in locate.variable_dirs()]
    own = locate.config_dir()
    if own is not None:
        places.append((own, "configuration"))
    places += [(path, locate.SHIPPED) for path in locate.shipped_dirs()]
    found = []
    for place, (path, named_by) in enumerate(places):
        inside = {kind: set(locate.files_in(kind, [path])) for kind in FOLDER_OF.values()}
        later = [one for one, _ in places[place + 1 :]]
        behind = {kind: set(locate.files_in(kind, later)) for kind in inside}
        found.append(
            Folder(
                path=str(path),
                named_by=named_by,
                exists=os.path.isdir(path),
                gpus=len(inside["gpus"]),
                models=len(inside["models"]),
                runtimes=len(inside["runtimes"]),
                stacks=len(inside["stacks"]),
                shadowing=tuple(f"{kind}/{name}" for kind in inside for name in sorted(inside[kind] & behind[kind])),
            )
        )
    return found
