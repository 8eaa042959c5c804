"""The settings of one program, each with its place, and what a reader makes of them.

A reader takes what it needs from a `Sheet`, by the program's own names, and says what that means to a `Meaning`. What
no reader took is then of no effect, without a word of ours, or not understood: nothing is dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from vramplan.configs.own_names import is_beside_training, is_of_what_is_off, is_off, may_decide
from vramplan.configs.shell import Argument, Script, shown, unknowns
from vramplan.configs.table import ProgramRelease, Table
from vramplan.configs.written import Written, interpolated, referred
from vramplan.errors import Problem, near_matches
from vramplan.tuples import NamedTuple
from vramplan.values.model import ModelShape

TRUE = frozenset({"true", "yes", "on", "1", "y", "t"})
FALSE = frozenset({"false", "no", "off", "0", "n", "f"})
VARIABLE = re.compile(r"\$\w+|\$\{[A-Z_][A-Z0-9_]*\}|\.\.\.|<[^<>]+>|\{[A-Za-z_ ]+\}|[xX]{2,}")
"""A variable of a script in the value of a setting, or what stands for a value that is to be filled in."""


LONGEST = 200  # characters of a value in a message


def said(value: Any) -> str:
    """A value in a message, with what only a script's caller knows as a variable."""
    text = shown(value) if isinstance(value, str) else str(value)
    return repr(f"{text[:LONGEST]}..." if len(text) > LONGEST else shown(value) if isinstance(value, str) else value)


class Sheet:
    """The settings of one program: dotted keys, each once."""

    def __init__(
        self,
        written: Mapping[str, Written],
        release: ProgramRelease,
        layers_of: Callable[[str], int | None] = lambda name: None,
        linears_of: Callable[[str], list[str] | None] = lambda name: None,
        source: str = "",
        devices: int | None = None,
        shape_named: Callable[[Mapping[str, Any]], str | None] = lambda sizes: None,
        beside: Mapping[str, Any] = MappingProxyType({}),
        opened: Callable[[str], Mapping[str, Written] | None] = lambda path: None,
        shape_of: Callable[[str], ModelShape | None] = lambda name: None,
        declared: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """What a reader may ask beside the file.

        `layers_of`: the blocks of a model by its name. `linears_of`: what its linear layers are called, where
        PEFT's word for all of them names more, which are no layers: the tensors of experts. `source`: the text
        of the file, for its comments. `devices`: how many GPUs were named beside the file, None where nobody
        said. `shape_named`: the catalogue's name for a model of these sizes. `beside`: what other files and the
        command line say of the same job, by its keys, as `parallel.sharding`. `opened`: the settings of a file
        that this one names; None where it is not there. `shape_of`: the model of a name, of the catalogue. `declared`:
        the arguments of the script that a command starts, where that is there, with their defaults.
        """
        self.declared = declared
        self.shape_named = shape_named
        self.shape_of = shape_of
        self.beside, self.opened = beside, opened
        self.adopted: list[tuple[str, Sheet, Table]] = []
        self.devices = devices
        self.written, self.variables = interpolated(written), referred(written)
        self.source = source
        self.release = release
        self.layers_of, self.linears_of = layers_of, linears_of
        self.taken: set[str] = set()
        self.problems: list[Problem] = []
        self.unsaid: dict[str, str] = {}
        """Settings whose value only the caller of a script knows, with their text."""
        self.refused = False

    def __contains__(self, key: str) -> bool:
        return key in self.written

    def given(self, key: str) -> bool:
        """Whether the file gives a key a value that is not null."""
        found = self.written.get(key)
        return found is not None and found.value is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key: of the file, else of the release, else `default`. Null in a file is its default."""
        self.taken.add(key)
        found = self.written.get(key)
        if found is not None and found.value is not None:
            return found.value
        return self.release.defaults.get(key, default)

    def under(self, prefix: str) -> dict[str, Any]:
        """The values below a key, by what follows it; they count as taken."""
        start = prefix + "."
        below = {key[len(start) :]: item.value for key, item in self.written.items() if key.startswith(start)}
        self.taken.update(start + key for key in below)
        return below

    def known(self, key: str, default: Any = None) -> Any:
        """The value of a key as `get` has it; one that only the caller knows is noted and left to the default."""
        value = self.get(key, default)
        if isinstance(value, str) and (unknowns(value) or VARIABLE.fullmatch(value)):
            self.unsaid[key] = shown(value)
            return self.release.defaults.get(key, default)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool | None:
        """A boolean; a word that is none is a problem."""
        value = self.known(key, default)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float) and value in (0, 1):
            return bool(value)
        word = str(value).strip().lower()
        if word in TRUE:
            return True
        if word in FALSE:
            return False
        self.problem(key, f"{said(value)} is neither true nor false")
        return default

    def count(self, key: str, default: int | None = None) -> int | None:
        """A whole number; `1e9` and `2.0` count."""
        value = self.number(key, default)
        if value is None:
            return None
        if value != int(value):
            self.problem(key, f"{value} is not a whole number")
            return default
        return int(value)

    def number(self, key: str, default: float | None = None) -> float | None:
        """A number; text that spells one counts, as the programs' own parsers have it."""
        value = self.known(key, default)
        if value is None:
            return None
        if isinstance(value, bool):
            self.problem(key, f"{value} is not a number")
            return default
        try:
            found = value if isinstance(value, int | float) else float(str(value).replace("_", ""))
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            self.problem(key, f"{said(value)} is not a number")
            return default
        return found

    def text(self, key: str, default: str | None = None) -> str | None:
        """A text."""
        value = self.get(key, default)
        return None if value is None else str(value).strip()

    def texts(self, key: str) -> list[str] | None:
        """A list of texts; one text with commas, or with spaces as a command line gives, counts."""
        value = self.get(key)
        if value is None or value == "":
            return None
        if isinstance(value, list | tuple):
            return [str(item) for item in value]
        return [part for part in re.split(r"[,\s]+", str(value)) if part]

    def adopt(self, key: str, other: Sheet, table: Table) -> None:
        """Take in the settings of the file that `key` names; they are sorted out with its own."""
        self.adopted.append((key, other, table))
        self.problems += other.problems

    def place(self, key: str) -> Written | None:
        """Where a setting stands: of this file, or `KEY:SETTING` of the file that a key names."""
        found = self.written.get(key)
        if found is None:
            for name, other, _ in self.adopted:
                if key.startswith(name + ":"):
                    return other.place(key[len(name) + 1 :])
        return found

    def problem(self, key: str, message: str, hint: str | None = None) -> None:
        """Note what is wrong with a value, with its place."""
        place = self.written.get(key, Written(None))
        self.problems.append(Problem(message, key, hint, place.file, place.line, place.column))

    def refuse(self, key: str, message: str, hint: str) -> None:
        """Note why the file is none for this reader; what else it does not understand is no news then."""
        self.refused = True
        self.problem(key, message, hint)

    def word(self, key: str, words: Mapping[str, Any], default: str | None = None) -> Any:
        """What a word of a key stands for among `words`; a word that is none of them is a problem."""
        value = self.text(key, default)
        if value is None:
            return None
        for spelling in (value, value.lower(), value.lower().replace("-", "_")):
            if spelling in words:
                return words[spelling]
        self.problem(key, f"{said(value)} is not understood", near_matches(value, words))
        return None


class ToldValue(NamedTuple):
    """A value of a job, and the settings of the program that gave it."""

    value: Any
    of: tuple[str, ...]


@dataclass
class Meaning:
    """The job that a file means, in our keys, with what was left open and what has no word here."""

    job: dict[str, ToldValue] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)
    pointed: dict[str, str] = field(default_factory=dict)
    allocator: str | None = None  # what the program sets of it by itself

    def say(self, key: str, value: Any, *of: str) -> None:
        """The job has `value` under `key`, because of the settings `of`."""
        self.job[key] = ToldValue(value, of)

    def ask(self, key: str, reason: str) -> None:
        """The file leaves `key` open; `reason` says who gives it."""
        if key not in self.job:
            self.open[key] = reason

    def lack(self, key: str, what: str) -> None:
        """The job has no word for the value under `key`: what it is, and what is counted in its place."""
        self.lacking[key] = what

    def note(self, text: str) -> None:
        """What a reader of the answer should know."""
        if text not in self.notes:
            self.notes.append(text)

    def launched(self, program: str, variable: str, settings: str) -> None:
        """Tell how a program sets the caching allocator by itself: it is no setting of the files, so no key has it."""
        self.allocator = settings
        told = f"which the allocator has where it is simulated; --allocator {settings} always simulates it"
        self.note(f"{program} sets {variable}={settings} by itself, {told}")

    def nested(self) -> dict[str, Any]:
        """The job as keys within keys."""
        result: dict[str, Any] = {}
        for key, told in self.job.items():
            *above, last = key.split(".")
            place = result
            for part in above:
                place = place.setdefault(part, {})
            place[last] = told.value
        return result


DEVICES = "devices"  # among what a program tells: how many there are
ALONE = "alone"  # and that a launcher starts one process
BY_DEEPSPEED = "by_deepspeed"  # and that DeepSpeed's engine trains, which casts the weights whatever its stage


class Launched(NamedTuple):
    """What a command starts: a program with a file, some of whose keys it may set.

    `config`: the file that it names, as it stands in the script. `changes`: keys that it sets, None for one that it
    takes away. `devices`: how many processes it starts. `launcher`: options of the program that starts it, as
    `launcher.num_processes`. `others`: lines of the script that start a program too. `loops`: the values of variables
    of which the first is taken. `unread`: commands whose output the command takes as arguments, which nobody knows.
    """

    config: Written | None
    changes: Mapping[str, Written | None]
    devices: int | None
    launcher: Mapping[str, Written] = MappingProxyType({})
    others: tuple[int, ...] = ()
    loops: Mapping[str, list[str]] = MappingProxyType({})
    unread: tuple[str, ...] = ()

    def over(self, found: Mapping[str, Written]) -> dict[str, Written]:
        """The settings of the file with what the command changes, and the launcher's options."""
        kept = {key: item for key, item in found.items() if not self._replaces(key)}
        changed = {key: item for key, item in self.changes.items() if item is not None}
        return {**kept, **changed, **self.launcher}

    def _replaces(self, key: str) -> bool:
        parts = key.split(".")
        return any(".".join(parts[:count]) in self.changes for count in range(1, len(parts) + 1))


class Program(NamedTuple):
    """One training program whose files are read."""

    name: str
    releases: tuple[ProgramRelease, ...]
    """Newest first."""

    table: Table
    read: Callable[[Sheet, Meaning], None]
    recognise: Callable[[Mapping[str, Any]], int]
    """How many keys of a file are this program's alone."""

    release_of: Callable[[Mapping[str, Any]], str | None] = lambda keys: None
    """The release that a file is of, where its keys tell."""

    why_release: Callable[[Mapping[str, Any]], str | None] = lambda keys: None
    """What of its keys tells that release, where somebody may wonder."""

    prepared: Callable[[dict[str, Written]], dict[str, Written]] = lambda written: written
    """Its settings, of the forms in which its files have them."""

    says_how: bool = False
    """Its files say how devices share the work, and not what is trained."""

    tells: Callable[[Mapping[str, Written], Mapping[str, Any]], dict[str, Any]] = lambda written, told: {}
    """Of settings and the job that they mean: more that files which are read after it look at, and DEVICES."""

    file_keys: tuple[str, ...] = ()
    """Keys that name another program's file, which is then read with this one."""

    decides_precision: bool = False
    """It decides the precision itself when another file shards the model."""

    casts_whole_models: bool = True
    """What trains a model in 16 bits does so under FSDP too; else FSDP has its mixed precision."""

    started: Callable[[Sequence[Argument], Script, str], Launched | None] = lambda words, script, file: None
    """What the words of one command of a script in a file start, None where it is not this program."""

    copies: str | None = None
    """The command that writes a file which it brings with it, `{}` for its name: such a file has no ending."""

    on_platform: Callable[[Mapping[str, Written], str], Launched | None] = lambda written, file: None
    """What the specification of a run on a platform starts, None where it is none of this program."""

    def how_to_get(self, name: str) -> str | None:
        """How to come to a file that the program brings with it, or that stands on a page."""
        if re.match(r"https?://", name):
            return f"nothing is downloaded: fetch it with curl -LO {name}, and name the file"
        if self.copies is None or not re.fullmatch(r"[\w/-]+", name):
            return None
        return f"{self.name} brings it with it: {self.copies.format(name)} writes the file to name"


def sorted_out(sheet: Sheet, table: Table) -> tuple[list[str], dict[str, str], list[Problem]]:
    """The keys of a sheet that nobody took: without effect, without a word (with what they change), not understood."""
    quiet: list[str] = []
    wordless: dict[str, str] = {}
    strange: list[Problem] = []
    settings = {key: item.value for key, item in sheet.written.items()}
    for key, item in sheet.written.items():
        kind = table.class_of(key)
        if kind == "unmodelled" and item.value not in (None, False, "", 0, [], {}):
            wordless[key] = table.unmodelled_note(key)
        elif kind in ("unmodelled", "without_effect") or (key in sheet.variables and key not in sheet.taken):
            quiet.append(key)
        elif kind is None and key not in sheet.taken and key in sheet.declared:
            if str(item.value).lower() in ("none", "false", "", "0"):
                quiet.append(key)
            elif may_decide(key.rpartition(".")[2]) and not is_beside_training(key.rpartition(".")[0]):
                own = "an argument of the script's own, which may say what is trained; --ignore-unknown passes over it"
                strange.append(Problem("is not understood", key, own, item.file, item.line, item.column))
            else:
                wordless[key] = "an argument of the script's own, which is passed over"
        elif (
            kind is None
            and key not in sheet.taken
            and not table.is_slip(key)
            and (is_off(key, item.value) or is_of_what_is_off(key, settings))
        ):
            quiet.append(key)
        elif kind is None and key not in sheet.taken:
            hint = near_matches(key, table.known())
            strange.append(Problem("is not understood", key, hint, item.file, item.line, item.column))
    for name, other, of in sheet.adopted:
        more = sorted_out(other, of)
        quiet += [f"{name}:{key}" for key in more[0]]
        wordless.update({f"{name}:{key}": what for key, what in more[1].items()})
        strange += [problem._replace(key=f"{name}:{problem.key}") for problem in more[2]]
    return quiet, wordless, strange
