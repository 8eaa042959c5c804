"""Typed reading of mappings: what is wrong is noted with its place and the reading goes on.

Two kinds of trouble are kept apart. A *problem* is a broken file: an unknown key, a wrong type, a word that nobody
knows. A *refusal* is a value that is well formed and cannot be computed: a technique that is not modelled, a profile
that does not exist, two keys that contradict each other. One refused job does not spoil the other jobs of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal, TypeVar

from vramplan import units
from vramplan.catalog import document, scalars
from vramplan.catalog.document import Mapping, Node, Scalar, Sequence
from vramplan.errors import InputError, Problem, near_matches

T = TypeVar("T")

MAX_INTEGER = 2**62  # nothing that is counted here comes near; arithmetic on it stays cheap
_LONGEST_SHOWN = 60
_LONGEST_NAME = 1_000  # characters of a name that stands in a text
_LONGEST_TEXT = 10_000  # characters; checkpoint segments of a deep model are long, and a path may be


def one_line(text: str) -> str:
    """A name that this program did not choose, such as that of a folder, as `Fields.text` takes it."""
    return "".join(char if char.isprintable() else "?" for char in text)[:_LONGEST_NAME].strip() or "?"


class Sink:
    """Collects the problems and the refusals of one file or one job, each once."""

    def __init__(self, file: str | None, problems: Iterable[Problem] = ()) -> None:
        self.file = file
        self.problems = list(problems)
        self.refusals: list[Problem] = []

    def raise_problems(self) -> None:
        """Raise InputError with the problems, in the order of the file, if there are any."""
        if self.problems:
            raise InputError(ordered(self.problems))

    def raise_all(self) -> None:
        """Raise InputError with problems and refusals, in the order of the file, if there are any."""
        if self.problems or self.refusals:
            raise InputError(ordered([*self.problems, *self.refusals]))


def ordered(problems: Iterable[Problem]) -> list[Problem]:
    """In the order of the file, and what several jobs inherit from `defaults` once."""
    seen: set[tuple[Any, ...]] = set()
    result: list[Problem] = []
    for problem in sorted(problems, key=lambda one: (one.line or 0, one.column or 0)):
        inherited = problem.line is not None  # then the place says what it is, whatever job meets it
        identity = (problem.file, problem.line, problem.column, problem.message, None if inherited else problem.key)
        if identity not in seen:
            result.append(problem)
        seen.add(identity)
    if len(result) > document.MAX_PROBLEMS:
        rest = len(result) - document.MAX_PROBLEMS
        result[document.MAX_PROBLEMS :] = [Problem(f"and {rest} more problems", file=result[0].file)]
    return result


class Fields:
    """The keys of one mapping. A reader returns None for what is absent, null or wrong; the latter is noted."""

    def __init__(self, node: Mapping, sink: Sink, path: str = "") -> None:
        self.node, self.sink, self.path = node, sink, path
        self.for_a_list = ""  # what to do about a list where one value is expected; {} stands for the key

    @property
    def names(self) -> list[str]:
        """The keys, in the order of the file."""
        return list(self.node.entries)

    def node_of(self, name: str) -> Node | None:
        """The value as it stands in the file."""
        entry = self.node.entries.get(name)
        return entry.value if entry else None

    def given(self, name: str) -> bool:
        """Present and not null."""
        node = self.node_of(name)
        return node is not None and not (isinstance(node, Scalar) and node.is_null)

    def present(self, name: str) -> bool:
        """Present, be it as null."""
        return name in self.node.entries

    def text(self, name: str) -> str | None:
        """The text as written: an unquoted `no`, `1e9` or `7.0` is that text and not what YAML would make of it."""
        node = self._scalar(name, "text")
        if node is None:
            return None
        if not node.text.strip():
            self.problem(name, "is an empty text")
        elif not node.text.isprintable() or len(node.text) > _LONGEST_TEXT:
            self.problem(name, f"expected one line of at most {_LONGEST_TEXT} printable characters")
        else:
            return node.text
        return None

    def scalar_text(self, name: str) -> str | None:
        """The text of a scalar as it stands there, for what is one of several kinds; nothing is noted."""
        node = self.node_of(name)
        return node.text.strip() if isinstance(node, Scalar) and not node.is_null else None

    def prose(self, name: str) -> str | None:
        """A text that may have been written over several lines, as one line."""
        node = self._scalar(name, "text")
        text = None if node is None else " ".join(node.text.split())
        if text and text.isprintable():
            return text
        if text is not None:
            self.problem(name, "expected a text of printable characters")
        return None

    def word(self, name: str, known: Collection[str], *, any_case: bool = False) -> str | None:
        """One of the `known` words; another one is a problem with the nearest ones as a hint.

        In `any_case` for words that programs of others write in capitals.
        """
        text = self.text(name)
        if text is not None and any_case and text.lower() in known:
            return text.lower()
        if text is None or text in known:
            return text
        self.unknown_word(name, text, known)
        return None

    def unknown_word(self, name: str, text: str, known: Collection[str], hint: str | None = None) -> None:
        """A problem for a word that is not known, with the nearest ones if no better hint is given."""
        hint = hint or nearest(text, known) or "known: " + ", ".join(known)
        self.problem(name, f"{shown(text)} is not a known value", hint=hint)

    def integer(self, name: str, *, minimum: int = 1, maximum: int = MAX_INTEGER) -> int | None:
        """A whole number. `4.0` and `1e9` are whole numbers, `true` and `"4"` are not numbers."""
        value = self.number(name, minimum=minimum, maximum=maximum, what="a whole number")
        if isinstance(value, float):
            if not value.is_integer():
                self.problem(name, f"expected a whole number, not {value!r}")
                return None
            value = int(value)
        return value

    def number(
        self,
        name: str,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
        below: float | None = None,
        what: str = "a number",
    ) -> int | float | None:
        """A finite number from `minimum` to `maximum`, both included, and less than `below`."""
        node = self._scalar(name, what)
        if node is None:
            return None
        try:
            value = None if node.style == "quoted" else scalars.number(node.text)
        except scalars.NotANumber as error:
            self.problem(name, str(error))
            return None
        if value is None:
            hint = "remove the quotes" if node.style == "quoted" and _is_number(node.text) else None
            self.problem(name, f"expected {what}, not {shown(node.text)}", hint=hint)
        elif minimum is not None and value < minimum:
            self.problem(name, f"{value} is too small; the least is {minimum}")
        elif maximum is not None and value > maximum:
            self.problem(name, f"{value} is too large; the most is {maximum}")
        elif below is not None and value >= below:
            self.problem(name, f"{value} is too large; it is less than {below}")
        else:
            return value
        return None

    def boolean(self, name: str) -> bool | None:
        """`true` or `false`."""
        node = self._scalar(name, "true or false")
        if node is None:
            return None
        value = None if node.style == "quoted" else scalars.BOOLEANS.get(node.text)
        if value is None:
            self.problem(name, f"expected true or false, not {shown(node.text)}")
        return value

    def size_bytes(self, name: str, *, rounding: Literal["up", "down"], allow_zero: bool = False) -> int | None:
        """A size with its unit, as whole bytes."""
        return self.parsed(name, lambda text: units.parse_size_bytes(text, rounding=rounding, allow_zero=allow_zero))

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """A text that `parse` understands; the InputError it raises is noted with the place."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except InputError as error:
            for problem in error.problems:
                self.problem(name, problem.message, hint=problem.hint)
            return None

    def texts(self, name: str) -> list[str] | None:
        """A list of texts; a single text is a list of one."""
        node = self.node_of(name)
        if isinstance(node, Scalar):
            text = self.text(name)
            return None if text is None else [text]
        result = []
        for item in self._items(name):
            if not isinstance(item, Scalar) or item.is_null:
                self.problem(name, "expected a list of texts", at=item)
                return None
            result.append(item.text)
        return result if node is not None else None

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, each at least 1."""
        result = []
        for item in self._items(name):
            text = item.text if isinstance(item, Scalar) else ""
            if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) <= MAX_INTEGER:
                self.problem(name, "expected a list of whole numbers above 0", at=item)
                return None
            result.append(int(text))
        if self.given(name) and not result and isinstance(self.node_of(name), Sequence):
            self.problem(name, "is an empty list")
        return tuple(result) or None

    def fields(self, name: str) -> Fields | None:
        """A nested mapping."""
        node = self.node_of(name)
        if node is None or (isinstance(node, Scalar) and node.is_null):
            return None
        if not isinstance(node, Mapping):
            self.problem(name, f"expected keys and values, not {_kind(node)}")
            return None
        return Fields(node, self.sink, f"{self.path}{name}.")

    def mappings(self, name: str) -> Iterator[Fields]:
        """The mappings of a list; what is no mapping is noted and left out."""
        for index, item in enumerate(self._items(name)):
            if isinstance(item, Mapping):
                yield Fields(item, self.sink, f"{self.path}{name}.{index}.")
            else:
                self.problem(f"{name}.{index}", f"expected keys and values, not {_kind(item)}", at=item)

    def value(self, name: str) -> Any:
        """Whatever stands there as Python values, for what is passed on and not computed with."""
        node = self.node_of(name)
        return None if node is None else self._plain(name, node)

    def problem(self, name: str | None, message: str, *, hint: str | None = None, at: Node | None = None) -> None:
        """Note that the file is broken at `name`; None: the mapping itself."""
        self.sink.problems.append(self._located(name, message, hint, at))

    def refuse(self, name: str | None, message: str, *, hint: str | None = None, at: Node | None = None) -> None:
        """Note that what `name` says cannot be computed."""
        self.sink.refusals.append(self._located(name, message, hint, at))

    def reject_unknown(self, known: Collection[str], meant: Callable[[str], str | None] = lambda _: None) -> None:
        """A problem for each key that is not known, with what is `meant` by it, or the nearest known ones."""
        for name, entry in self.node.entries.items():
            if name not in known:
                # comparing words is slow, and nobody reads the hint of the hundredth mistake
                few = len(self.sink.problems) < document.MAX_PROBLEMS
                hint = (meant(name) or nearest(name, known)) if few else None
                if hint is None and len(known) <= 12:
                    hint = "known: " + ", ".join(known)
                self.problem(name, "unknown key", hint=hint, at=entry.key)

    def _located(self, name: str | None, message: str, hint: str | None, at: Node | None) -> Problem:
        entry = self.node.entries.get(name) if name is not None else None
        place: Node = at or (entry.value if entry else self.node)
        key = f"{self.path}{name}" if name is not None else self.path.removesuffix(".") or None
        if key is not None and (len(key) > 3 * _LONGEST_SHOWN or not key.isprintable()):
            key = shown(key)
        return Problem(message, key, hint, self.sink.file, place.line, place.column)

    def _scalar(self, name: str, what: str) -> Scalar | None:
        node = self.node_of(name)
        if node is None:
            return None
        if not isinstance(node, Scalar):
            hint = self.for_a_list.format(name) if isinstance(node, Sequence) else ""
            self.problem(name, f"expected {what}, not {_kind(node)}", hint=hint or None)
            return None
        return None if node.is_null else node

    def _items(self, name: str) -> list[Node]:
        node = self.node_of(name)
        if isinstance(node, Sequence):
            return node.items
        if node is not None and not (isinstance(node, Scalar) and node.is_null):
            self.problem(name, f"expected a list, not {_kind(node)}")
        return []

    def _plain(self, name: str, node: Node) -> Any:
        if isinstance(node, Sequence):
            return [self._plain(name, item) for item in node.items]
        if isinstance(node, Mapping):
            return {key: self._plain(name, entry.value) for key, entry in node.entries.items()}
        if node.style != "plain":
            return node.text
        try:
            return scalars.plain_value(node.text)
        except scalars.NotANumber as error:
            self.problem(name, str(error), at=node)
            return None


def shown(text: str) -> str:
    """The value as a message quotes it: short, and on one line."""
    return repr(text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "...")


def nearest(word: str, known: Collection[str]) -> str | None:
    """`near_matches`, but not for a text so long that comparing it takes seconds."""
    return near_matches(word, known) if len(word) <= _LONGEST_SHOWN else None


def _is_number(text: str) -> bool:
    try:
        return scalars.number(text) is not None
    except scalars.NotANumber:
        return False


def _kind(node: Node) -> str:
    if isinstance(node, Scalar):
        return shown(node.text)
    return "a list" if isinstance(node, Sequence) else "a mapping"
