"""The linter of profiles: everything that is wrong with a file, and what in it is hardly true.

Errors are what the program itself refuses, plus what is not finished (TODO) and what would never be found (a name that
is not the file's). Warnings compare a card with its generation and a count with its architecture; they are for eyes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from vramplan.catalog import (
    document,
    gpus,
    grids,
    instances,
    locate,
    mirrors,
    models,
    platforms,
    prices,
    runtimes,
    stacks,
)
from vramplan.catalog.fields import ordered
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.gpu_profile import GpuProfile
from vramplan.catalog.plausible import doubts_about_gpu, doubts_about_model, doubts_about_software
from vramplan.catalog.profile import Profile
from vramplan.errors import InputError, Problem, near_matches
from vramplan.results.profiles import ERROR, WARNING, Finding, Linted

KindWord = Literal["gpu", "model", "runtime", "stack", "prices", "grid", "platform", "instances"]
FOLDER_OF: dict[KindWord, locate.Kind] = {
    "gpu": "gpus",
    "model": "models",
    "runtime": "runtimes",
    "stack": "stacks",
    "prices": "prices",
    "grid": "grids",
    "platform": "platforms",
    "instances": "instances",
}
KIND_OF: dict[str, KindWord] = {folder: kind for kind, folder in FOLDER_OF.items()}
LOADERS: dict[KindWord, Callable[[Path], Profile]] = {
    "gpu": gpus.load_gpu_profile,
    "model": models.load_model_profile,
    "runtime": runtimes.load_runtime_profile,
    "stack": stacks.load_stack_profile,
    "prices": prices.load_prices,
    "grid": grids.load_grid,
    "platform": platforms.load_platform,
    "instances": instances.load_instances,
}
TODO = "TODO"  # what `profiles new` writes where a person has to


def lint(files: Sequence[Path], known: Sequence[Path] = ()) -> Linted:
    """Look at each of `files`. `known`: folders whose names and aliases they are compared with, after each other.

    Raises InputError when there is nothing to look at.
    """
    if not files:
        raise InputError(
            [Problem("there is no profile to look at", "PATH", "a file, or a folder with gpus/ or models/")]
        )
    found: list[Finding] = []
    names = _Names(known)
    for path in files:
        found += _of_file(path, names)
    return Linted(tuple(map(str, files)), tuple(found))


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files that the paths mean: themselves, a folder's own, and those of its folders of a kind.

    Raises InputError for a path that is not there, and for a folder in which there is no profile.
    """
    files: list[Path] = []
    problems: list[Problem] = []
    for path in paths:
        if os.path.isdir(path):
            inside = [one for folder in (path, *(path / kind for kind in KIND_OF)) for one in _listed(folder)]
            if not inside:
                hint = "profiles are DIR/gpus/NAME.yaml and DIR/models/NAME.yaml"
                problems.append(Problem("holds no profile", hint=hint, file=str(path)))
            files += inside
        elif os.path.exists(path):
            files.append(path)
        else:
            problems.append(Problem("no such file or folder", file=str(path)))
    if problems:
        raise InputError(problems)
    return list(dict.fromkeys(files))


def kind_of(path: Path) -> KindWord:
    """The kind that a profile file says it has. Raises InputError when it says none."""
    root = document.load(path).root
    entry = root.entries.get("kind")
    given = entry.value.text if entry is not None and isinstance(entry.value, document.Scalar) else None
    if given in LOADERS:
        return given
    near = None if given is None else near_matches(given, LOADERS)
    hint = near or f"kind: {', '.join(LOADERS)}"
    place = (None, None) if entry is None else (entry.value.line, entry.value.column)
    message = "required key is missing" if given is None else f"{given!r} is no kind of profile"
    raise InputError([Problem(message, "kind", hint, str(path), *place)])


def _listed(folder: Path) -> list[Path]:
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / entry for entry in entries if not entry.startswith(".") and entry.endswith(locate.SUFFIXES)]


def _of_mirrors(path: Path, names: _Names) -> list[Finding]:
    """A table of copies of models: what it names has to be there."""
    try:
        found = mirrors.load_mirrors(path)
    except InputError as error:
        return [Finding(ERROR, problem) for problem in error.problems]
    missing = dict.fromkeys(one.model for one in found.values() if not names.has("model", one.model))
    return [Finding(ERROR, Problem(f"there is no model profile {one!r}", "model", file=str(path))) for one in missing]


def _of_file(path: Path, names: _Names) -> list[Finding]:
    if path.name == mirrors.FILE:
        return _of_mirrors(path, names)
    try:
        loaded = document.load(path)
        kind = kind_of(path)
    except InputError as error:
        return [Finding(ERROR, problem) for problem in error.problems]
    to_do = list(_to_do(loaded.root, str(path)))
    profile: Profile | None = None
    problems: list[Problem] = []
    try:
        profile = LOADERS[kind](path)
    except InputError as error:
        places = {(one.line, one.column) for one in to_do}
        problems = [one for one in error.problems if (one.line, one.column) not in places]
    problems += to_do
    if path.parent.name in KIND_OF and KIND_OF[path.parent.name] != kind:
        problems.append(_at(loaded, "kind", f"a {kind} profile belongs into the folder {FOLDER_OF[kind]}"))
    name = _text(loaded, "name")
    if name is not None and path.parent.name in KIND_OF and locate.slug(name) != locate.slug(path.stem):
        message = f"{name!r} is not the name of the file, by which it is found"
        problems.append(_at(loaded, "name", message, f"name: {path.stem}"))
    if profile is not None and profile.stack is not None and not names.has("stack", profile.stack):
        hint = "a name of the folder stacks; `vramplan profiles path` lists where it is looked for"
        problems.append(_at(loaded, "stack", f"there is no stack profile {profile.stack!r}", hint))
    found = [Finding(ERROR, problem) for problem in ordered(problems)]
    doubts: list[Problem] = []
    if profile is not None:
        doubts += names.collisions(profile, kind, loaded)
        about: Iterator[tuple[str, str]] = iter(())
        if isinstance(profile, GpuProfile):
            about = doubts_about_gpu(profile)
        elif isinstance(profile, models.ModelProfile):
            about = doubts_about_model(profile)
        else:
            about = doubts_about_software(profile)
        doubts += [_at_field(loaded, key, message) for key, message in about]
    return found + [Finding(WARNING, doubt) for doubt in ordered(doubts)]


def _to_do(root: document.Mapping, file: str) -> Iterator[Problem]:
    """A problem for every value that begins with TODO."""
    left: list[tuple[str, Any]] = [("", root)]
    while left:
        path, node = left.pop()
        if isinstance(node, document.Mapping):
            left += [(f"{path}.{key}" if path else key, entry.value) for key, entry in node.entries.items()]
        elif isinstance(node, document.Sequence):
            left += [(path, item) for item in node.items]
        elif node.text.lstrip().startswith(TODO):
            hint = "write what you found, or {value: null, reason: why not}" if path.startswith("fields.") else None
            yield Problem("is still to be written", path, hint, file, node.line, node.column)


def _text(loaded: document.Document, key: str) -> str | None:
    entry = loaded.root.entries.get(key)
    return entry.value.text if entry is not None and isinstance(entry.value, document.Scalar) else None


def _at(loaded: document.Document, key: str, message: str, hint: str | None = None) -> Problem:
    entry = loaded.root.entries.get(key)
    place = (None, None) if entry is None else (entry.value.line, entry.value.column)
    return Problem(message, key, hint, loaded.file, *place)


def _at_field(loaded: document.Document, key: str, message: str) -> Problem:
    """A doubt about `fields.key.value`."""
    node: Any = loaded.root
    for part in ("fields", key, "value"):
        entry = node.entries.get(part) if isinstance(node, document.Mapping) else None
        if entry is None:
            break
        node = entry.value
    return Problem(message, f"fields.{key}", None, loaded.file, node.line, node.column)


class _Names:
    """Which profile of which kind has a name or an alias."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._taken: dict[str, dict[str, tuple[str, str]]] = {}

    def has(self, kind: KindWord, name: str) -> bool:
        """Whether a profile of that kind has the name or the alias."""
        return locate.slug(name) in self._of_kind(kind)

    def collisions(self, profile: Profile, kind: KindWord, loaded: document.Document) -> Iterator[Problem]:
        """A problem for each alias that finds another profile, or is found by another profile's name."""
        taken = self._of_kind(kind)
        own = locate.slug(profile.name)
        for alias in profile.aliases:
            word = locate.slug(alias)
            holder, file = taken.get(word, (own, profile.file))
            if word == own:
                yield _at(loaded, "aliases", f"{alias!r} is the name itself", "remove it")
            elif locate.slug(holder) != own:
                message = f"{alias!r} is also what {holder} is called ({file}): only one of them is found by it"
                yield _at(loaded, "aliases", message, "remove it from one of them")
        seen = [locate.slug(alias) for alias in profile.aliases]
        for alias in {word for word in seen if seen.count(word) > 1}:
            yield _at(loaded, "aliases", f"{alias!r} is there twice", "remove one")
        if not profile.title:
            yield Problem("is missing: people read it", "title", "title: NVIDIA A100 SXM4 80 GB", loaded.file, 1, 1)
        architecture = profile.value("architecture") if kind == "gpu" else None
        if architecture is not None and architecture not in GENERATIONS:
            hint = near_matches(architecture, GENERATIONS) or f"known: {', '.join(GENERATIONS)}"
            message = f"{architecture!r} is no architecture that is known here: the context is that of none"
            yield _at_field(loaded, "architecture", message)._replace(hint=hint)

    def _of_kind(self, kind: KindWord) -> dict[str, tuple[str, str]]:
        if kind not in self._taken:
            profiles: list[Profile] = []
            for path in locate.files_in(FOLDER_OF[kind], self._folders).values():
                with contextlib.suppress(InputError):  # it has findings of its own where it is looked at
                    profiles.append(LOADERS[kind](path))
            taken = {locate.slug(one.name): (one.name, one.file) for one in profiles}  # names go before aliases
            for one in profiles:
                for alias in one.aliases:
                    taken.setdefault(locate.slug(alias), (one.name, one.file))
            self._taken[kind] = taken
        return self._taken[kind]
