"""Find a profile by name: in the folders that a command names, in the user's own, then in the shipped ones.

`find` reads at most one file when the name is the file's own: a hundred profiles cost nothing. Only a name that no
file has is looked for among the `aliases`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from vramplan.catalog.fields import shown
from vramplan.catalog.reading import once
from vramplan.engines import imported
from vramplan.errors import InputError, Problem
from vramplan.values.job import Assumption

Kind = Literal["gpus", "models", "runtimes", "stacks", "prices", "grids", "platforms", "instances"]
LABELS = {
    "gpus": "GPU",
    "models": "model",
    "runtimes": "runtime",
    "stacks": "stack",
    "prices": "price",
    "grids": "grid",
    "platforms": "platform",
    "instances": "instance",
}

SUFFIXES = (".yaml", ".yml", ".json")
SHIPPED = "shipped"  # the origin of what comes with the program; another origin is a folder
MACHINE = "this machine"
LOOSE = "file"  # of a file that lies in no folder of profiles
VARIABLE = "VRAMPLAN_PROFILES"
_ALIASES = re.compile(r"^\s*[\"']?aliases[\"']?:\s*(?:\[(?P<flow>.*?)\]|\n(?P<block>(?:\s*-\s.*\n)+))", re.M | re.S)
_GAPS = re.compile(r"[\s_]+|(?<=[A-Za-z])/(?=\d{1,2}$)")  # the last is that of ViT-B/16


class Named(Protocol):
    """What every profile has."""

    @property
    def name(self) -> str:
        """The name of the file without its suffix."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names, as written."""

    @property
    def file(self) -> str:
        """Where it was read."""


P = TypeVar("P", bound=Named)


def slug(name: str) -> str:
    """The form in which names are compared: lower case, dashes for spaces, underscores and patches' slashes."""
    return _GAPS.sub("-", name.strip()).lower()


def is_path(text: str) -> bool:
    """Whether `text` names a file and not a profile: `meta-llama/Llama-3.1-8B` is a name unless that folder exists."""
    if text.lower().endswith(SUFFIXES) or text.startswith(("./", "../", "/", "~/")) or text in {".", ".."}:
        return True
    return (os.sep in text or "/" in text) and os.path.exists(text)


def resolve_path(text: str, base_dir: Path | None) -> Path:
    """The path that `text` means: from the folder of the job file if it is there, else from the current one."""
    path = Path(os.path.expanduser(text) if text.startswith("~/") else text)
    if base_dir is not None and not path.is_absolute():
        beside = base_dir / path
        if os.path.exists(beside):
            return beside
    return path


def is_missing_file(text: str) -> bool:
    """Whether `text` names a file that is not there."""
    return is_path(text) and not os.path.exists(resolve_path(text, None))


def shipped_dirs() -> list[Path]:
    """The trees that come with vramplan: the wheel's, else the checkout's.

    An editable install copies the wheel's tree once and never refreshes it, but then beside the package's metadata, not
    in the package, so that the checkout's is found.
    """
    return list(_shipped_dirs())


@cache
def _shipped_dirs() -> tuple[Path, ...]:
    """Looked for once: a process has one installation, and every name that is looked up asks for it."""
    package = Path(__file__).resolve().parents[1]
    return tuple(tree for tree in (package / "_profiles", package.parent / "profiles") if tree.is_dir())[:1]


def config_dir() -> Path | None:
    """The folder of profiles in the user's configuration, whether it exists or not; None without a home.

    `$XDG_CONFIG_HOME/vramplan/profiles`, else `~/.config/vramplan/profiles`, else on Windows `%APPDATA%` in its place
    (XDG Base Directory Specification 0.8: a relative path in the variable is ignored).
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        base = (os.environ.get("APPDATA") or "") if os.name == "nt" else os.path.join(home, ".config")
        if not os.path.isabs(base):
            return None
    return Path(base, "vramplan", "profiles")


def variable_dirs() -> tuple[Path, ...]:
    """The folders of `$VRAMPLAN_PROFILES`, a list as in `$PATH`, whether they exist or not."""
    parts = os.environ.get(VARIABLE, "").split(os.pathsep)
    return tuple(Path(os.path.expanduser(part.strip())) for part in parts if part.strip())


def user_dirs() -> tuple[Path, ...]:
    """The folders of the user that no command names: the variable's, then the configuration's if it is there.

    Raises InputError when the variable names a folder that holds no profiles: what was asked for is not ignored.
    """
    named = check_profile_dirs(variable_dirs(), key=VARIABLE)
    own = config_dir()
    return (*named, own) if own is not None and os.path.isdir(own) else named


def searched(dirs: Iterable[Path]) -> list[Path]:
    """Every folder in which names are looked up, in that order. Raises InputError as `user_dirs` does."""
    return [*dirs, *user_dirs(), *shipped_dirs()]


def origin(file: str) -> str:
    """`shipped`, the folder of profiles in which the file lies, or `file` for one that lies in none.

    Without a file it is `this machine`: the profile of a local card.
    """
    if not file:
        return MACHINE
    path = Path(file)
    folder = path.parent.parent
    if folder in shipped_dirs():
        return SHIPPED
    return str(folder) if path.parent.name in LABELS else LOOSE


def shipped_file(kind: Kind, name: str) -> Path | None:
    """The file of a shipped profile of that name; None if none is shipped."""
    for directory in shipped_dirs():
        for suffix in SUFFIXES:
            path = directory / kind / f"{slug(name)}{suffix}"
            if os.path.isfile(path):
                return path
    return None


def shipped_called(kind: Kind, name: str) -> str | None:
    """The name of the shipped profile with that name or alias; None if there is none."""
    wanted, by_name = slug(name), _files(kind, shipped_dirs())
    if wanted in by_name:  # which the text of no file is read for
        return wanted
    return next((stem for stem in _having(wanted, by_name) if wanted in map(slug, by_name[stem].aliases)), None)


def is_part_of_a_name(kind: Kind, text: str) -> bool:
    """Whether a shipped profile has the text in its name or an alias."""
    found = _files(kind, shipped_dirs()).items()
    return any(is_in_a_name(text, (stem, *file.aliases)) for stem, file in found)


def is_in_a_name(text: str, names: Iterable[str]) -> bool:
    """Whether one of the names has the text, whatever the letters' case and the dashes: gpt-2 is in gpt2-xl.

    Of words with spaces between, it has each behind the one before.
    """
    wanted = ".*".join(re.escape(slug(word).replace("-", "")) for word in text.split())
    return any(re.search(wanted, slug(name).replace("-", "")) is not None for name in names)


def shadowed(kind: Kind, name: str, file: str) -> Path | None:
    """The shipped profile that the profile `name` in `file` stands in front of; None if there is none."""
    shipped = shipped_file(kind, name)
    return None if shipped is None or origin(file) == SHIPPED else shipped


def shadow_told(kind: Kind, profile: Named, asked: str | None = None) -> tuple[Assumption, ...]:
    """The assumption that says so when the profile stands in front of a shipped one; else nothing.

    `asked`: the name that found it, which may be an alias of a shipped profile too.
    """
    if not profile.file:
        return ()
    label = LABELS[kind]
    if asked is not None and slug(asked) != slug(profile.name) and origin(profile.file) != SHIPPED:
        other = shipped_called(kind, asked)
        if other not in (None, slug(profile.name)):
            why = f"{profile.file} has {shown(slug(asked))} among its aliases, which is the shipped {other}"
            return (Assumption(label.lower(), profile.name, why),)
    if shadowed(kind, profile.name, profile.file) is None:
        return ()
    return (Assumption(label.lower(), profile.name, f"{profile.file} shadows the shipped profile of that name"),)


def check_profile_dirs(dirs: Iterable[Path | str], key: str = "profiles") -> tuple[Path, ...]:
    """The folders, each with a subfolder for a kind of profile; InputError for those that have none."""
    problems, result = [], []
    for directory in map(Path, dirs):
        if not os.path.isdir(directory):
            problems.append(Problem("no such directory", key, file=str(directory)))
        elif not any(os.path.isdir(directory / kind) for kind in LABELS):
            hint = "profiles are DIR/gpus/NAME.yaml and DIR/models/NAME.yaml"
            *first, last = LABELS
            message = f"has no folder {', '.join(first)} or {last}"
            problems.append(Problem(message, key, hint, str(directory)))
        result.append(directory)
    if problems:
        raise InputError(problems)
    return tuple(result)


def files(kind: Kind, dirs: Sequence[Path]) -> dict[str, Path]:
    """Every profile file by name; where two folders have the name, the earlier folder's."""
    return files_in(kind, searched(dirs))


def files_in(kind: Kind, folders: Iterable[Path]) -> dict[str, Path]:
    """The same in these folders alone."""
    return {stem: file.path for stem, file in _files(kind, folders).items()}


def aliases_by_name(kind: Kind, dirs: Sequence[Path]) -> dict[str, tuple[str, ...]]:
    """Of every profile file by name, the `aliases_in` it."""
    return {stem: file.aliases for stem, file in _files(kind, searched(dirs)).items()}


def _files(kind: Kind, folders: Iterable[Path]) -> dict[str, _File]:
    found: dict[str, _File] = {}
    for directory in folders:
        of_folder = _shipped_files if directory in _shipped_dirs() else _own_files
        for stem, file in of_folder(os.path.join(directory, kind)).items():
            found.setdefault(stem, file)
    return found


def find(kind: Kind, name: str, dirs: Sequence[Path], load: Callable[[Path], P]) -> P | None:
    """The profile called `name`, by its file name or by an alias; None if there is none. InputError if it is broken."""
    wanted = slug(name)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+/-]*", wanted):
        return None
    folders = searched(dirs)
    if "/" not in wanted:
        for directory in folders:
            beginning = os.path.join(directory, kind, wanted)
            for suffix in SUFFIXES:
                if os.path.isfile(beginning + suffix):  # unlike Path.is_file, false for a name that is too long
                    return _named(load, Path(beginning + suffix))
    by_name = _files(kind, folders)
    if wanted in by_name:  # spelt with capitals or underscores on the disk
        return _named(load, by_name[wanted].path)
    broken: InputError | None = None
    for stem in _having(wanted, by_name):
        try:
            profile = _named(load, by_name[stem].path)
        except InputError as error:
            broken = broken or error
            continue
        if wanted in map(slug, profile.aliases):
            return profile
    if broken is not None:
        raise broken
    same = _with_other_dashes(wanted, by_name)
    return None if same is None else _named(load, same)


def _having(wanted: str, by_name: Mapping[str, _File]) -> Iterator[str]:
    """Names of files that have a slug as a value of its own, however spelt: to parse them would take far longer."""
    value = re.escape(wanted).replace("\\-", r"[\s_-]+") + _AFTER
    end, whole = re.compile(value), re.compile(_BEFORE + value)  # the first begins with letters: ten times quicker
    for stem, file in by_name.items():
        if end.search(file.low) and whole.search(file.low):
            yield stem


def _with_other_dashes(wanted: str, by_name: dict[str, _File]) -> Path | None:
    """The only profile whose name or alias is `wanted` but for dashes: `gpt-2` and `gpt2xl`."""
    plain = _without_dashes(wanted)
    found = {file.path for stem, file in by_name.items() if _without_dashes(stem) == plain}
    found = found or {file.path for file in by_name.values() if plain in file.undashed}
    return found.pop() if len(found) == 1 else None


class _File:
    """A file of a folder of profiles, and of its text what names are looked for in, when somebody looks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def low(self) -> str:
        """The text in small letters."""
        return _text(self.path).lower()

    @cached_property
    def aliases(self) -> tuple[str, ...]:
        """The `aliases_in` the text."""
        return tuple(aliases_in(_text(self.path)))

    @cached_property
    def undashed(self) -> frozenset[str]:
        """The aliases without dashes."""
        return frozenset(_without_dashes(slug(alias)) for alias in self.aliases)


def _of_folder(folder: Path | str) -> dict[str, _File]:
    """The profile files of one folder by name."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return {}
    found: dict[str, _File] = {}
    for entry in entries:
        stem, suffix = os.path.splitext(entry)
        if suffix in SUFFIXES and not stem.startswith("."):
            found.setdefault(slug(stem), _File(Path(folder, entry)))
    return found


_own_files = once(_of_folder)
_shipped_files = cache(_of_folder)  # as the program itself, what comes with it is not looked at again


def _without_dashes(name: str) -> str:
    """A name without its dashes but for those between digits: `llama-3-3b` is not `llama-33b`."""
    return _DASH.sub("", name)


_DASH = re.compile(r"(?<!\d)-|-(?!\d)")


# what stands around a value of a list: its punctuation, quotes, an anchor, the head of a block, a comment
_BEFORE = r"(?:[\[,\"'>|+-]|&\S+|#[^\n]*\n)\s*"
_AFTER = r"\s*(?:[\],\"'#\n]|\Z)"


def _named(load: Callable[[Path], P], path: Path) -> P:
    """The profile of a file in a folder of profiles, where the file's name is what finds it."""
    profile = load(path)
    if slug(profile.name) != slug(path.stem):
        message = f"{profile.name!r} is not the name of the file, by which it is found"
        raise InputError([Problem(message, "name", f"name: {path.stem}", str(path))])
    return profile


def unknown(kind: Kind, name: str, dirs: Sequence[Path]) -> Problem:
    """The problem of a name that nothing has, with the nearest names and aliases as a hint."""
    problem: Problem = imported("vramplan.catalog.unfound:unknown")(kind, name, dirs)
    return problem


def load_all(
    kind: Kind,
    dirs: Sequence[Path],
    load: Callable[[Path], P],
    broken: list[Problem] | None = None,
    having: Collection[str] = (),
) -> list[P]:
    """Every profile, by name. InputError with the problems of all broken ones, unless `broken` takes them.

    `having`: texts that a profile has somewhere; one without them is not parsed.
    """
    profiles: list[P] = []
    problems: list[Problem] = []
    for path in files(kind, dirs).values():
        if having and any(word not in _text(path) for word in having):
            continue
        try:
            profiles.append(_named(load, path))
        except InputError as error:
            problems += error.problems
    if problems and broken is None:
        raise InputError(problems)
    if broken is not None:
        broken += problems
    return sorted(profiles, key=lambda profile: _natural(profile.name))


def _natural(name: str) -> list[Any]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


@once
def _text(path: Path | str) -> str:
    try:
        return Path(path).read_text("utf-8") if os.path.isfile(path) else ""
    except (OSError, ValueError):
        return ""


def aliases_in(text: str) -> list[str]:
    """The aliases in the text of a profile, as written: to parse it would take twenty times as long.

    For hints and completion, where a name more or less does no harm; what finds a profile is the parsed file.
    """
    found = _ALIASES.search(text)
    if found is None:
        return []
    if found["flow"] is not None:
        items = found["flow"].split(",")
    else:
        items = [item.strip().removeprefix("-") for item in found["block"].splitlines()]
    return [stripped for item in items if (stripped := item.strip().strip("\"'"))]
