"""Two profiles of one kind, field by field: values are compared in base units, not as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import gpus, locate, stacks
from vramplan.catalog.gpu_profile import asks_for_local
from vramplan.catalog.lint import FOLDER_OF, LOADERS, KindWord, kind_of
from vramplan.catalog.profile import Profile
from vramplan.errors import InputError, Problem
from vramplan.results.profiles import DiffRow, DiffSide, DiffValue, ProfileDiff

_ABSENT = DiffValue(False)


def find(name: str, dirs: Sequence[Path], kind: KindWord | None = None) -> tuple[KindWord, Profile]:
    """The profile of a name, an alias or a path, or of the local card, and its kind.

    A name is looked for among GPUs, models, runtimes and stacks. Raises InputError, with near matches of every kind.
    """
    if asks_for_local(name) and kind in (None, "gpu"):
        return "gpu", gpus.find_gpu(name, dirs)
    if locate.is_path(name):
        path = locate.resolve_path(name, None)
        found_kind = kind_of(path)
        if kind is not None and found_kind != kind:
            raise InputError([Problem(f"is a {found_kind} profile, not a {kind} profile", file=str(path))])
        return found_kind, LOADERS[found_kind](path)
    hints: list[str] = []
    for one in (kind,) if kind is not None else FOLDER_OF:
        found = locate.find(FOLDER_OF[one], name, dirs, LOADERS[one])
        if found is not None:
            return one, found
        hint = locate.unknown(FOLDER_OF[one], name, dirs).hint
        if hint is not None and hint.startswith("did you mean"):
            hints.append(hint.removeprefix("did you mean ").removesuffix("?"))
    label = "profile" if kind is None else f"{kind} profile"
    near = f"did you mean {' or '.join(hints)}?" if hints else "`vramplan gpus` and `vramplan models` list the names"
    raise InputError([Problem(f"there is no {label} {name!r}", hint=near)])


def shipped_of(name: str, dirs: Sequence[Path]) -> tuple[Profile, Profile, KindWord]:
    """(yours, shipped, kind) of a profile that shadows a shipped one. Raises InputError when it shadows none."""
    kind, mine = find(name, dirs)
    shipped = locate.shadowed(FOLDER_OF[kind], mine.name, mine.file)
    if shipped is None:
        where = "is a shipped one" if locate.origin(mine.file) == locate.SHIPPED else f"({mine.file}) shadows none"
        hint = f"name two: vramplan profiles diff {name} OTHER"
        raise InputError([Problem(f"{mine.name} {where}: there is nothing to compare it with", hint=hint)])
    return mine, LOADERS[kind](shipped), kind


def diff(kind: KindWord, a: Profile, b: Profile, dirs: Sequence[Path] = ()) -> ProfileDiff:
    """The fields of both, with those of their stacks, in the order of `a`, then those that only `b` has."""
    a, b = stacks.with_stack(a, dirs), stacks.with_stack(b, dirs)
    keys = list(dict.fromkeys((*a.fields, *b.fields)))
    rows = []
    for key in keys:
        left, right = _value(a, key), _value(b, key)
        same = left.present == right.present and left.value == right.value
        rows.append(DiffRow(key, same, left, right))
    return ProfileDiff(kind, _side(a), _side(b), tuple(rows))


def _side(profile: Profile) -> DiffSide:
    return DiffSide(profile.name, profile.title, profile.file, locate.origin(profile.file))


def _value(profile: Profile, key: str) -> DiffValue:
    field = profile.fields.get(key)
    if field is None:
        return _ABSENT
    source = profile.sources.get(field.source or "")
    return DiffValue(
        present=True,
        value=field.value,
        text=field.text,
        unit=field.unit,
        source=None if source is None else source.title,
        url=None if source is None else source.url,
        reason=field.reason,
    )
