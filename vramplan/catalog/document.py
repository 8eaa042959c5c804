"""Read a YAML or JSON file into nodes that remember where they were written.

The events of PyYAML's C parser are put together here and not by `yaml.compose`, because a file may come from anybody:
depth, the nodes that aliases stand for, duplicate keys and tags are checked while the tree grows, without recursion.
Scalars keep their text; what it means is decided where it is read (`scalars.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping as MappingABC
from pathlib import Path
from typing import Any, NoReturn

from vramplan.catalog import scalars
from vramplan.catalog.text import fail, read_text
from vramplan.errors import InputError, Problem
from vramplan.tuples import NamedTuple

MAX_DEPTH = 40  # nested collections; a job has five
LIBRARY_DEPTH = "maximum nesting depth"  # of libyaml since PyYAML 6.0.4, in its message
MAX_ALIASED = 100_000  # nodes that aliases add: a short file of aliases to aliases can mean billions
MAX_PROBLEMS = 50  # more are of no use to anybody; the rest are counted


class Scalar:
    """One value as text. `style`: "plain" and "quoted" as in the file, "given" for text that came from no file."""

    __slots__ = ("column", "line", "style", "text")

    def __init__(self, text: str, style: str = "given", line: int | None = None, column: int | None = None) -> None:
        self.text, self.style, self.line, self.column = text, style, line, column

    @property
    def is_null(self) -> bool:
        """Nothing, `~` or `null`, without quotes."""
        return self.style == "plain" and self.text in scalars.NULLS


class Sequence:
    """A list of nodes."""

    __slots__ = ("column", "items", "line")

    def __init__(self, line: int | None = None, column: int | None = None) -> None:
        self.items: list[Node] = []
        self.line, self.column = line, column


class Entry(NamedTuple):
    """A key of a mapping, as written, and its value. `replaced`: the same key before it, where the last one counts."""

    key: Scalar
    value: Scalar | Sequence | Mapping
    replaced: Scalar | None = None


class Mapping:
    """Keys in the order of the file, each once."""

    __slots__ = ("column", "entries", "line")

    def __init__(self, line: int | None = None, column: int | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.line, self.column = line, column


Node = Scalar | Sequence | Mapping


class Document(NamedTuple):
    """The root of a file, and what was wrong with its form."""

    root: Mapping
    file: str | None
    problems: tuple[Problem, ...]


def load(path: Path | str, *, allow_stdin: bool = False) -> Document:
    """Read one file whose root is a mapping.

    Raises InputError when there is no such tree: missing, not a regular file, too large, not UTF-8, not YAML, empty,
    several documents, another root. Duplicate keys, tags and merge keys come as `Document.problems` with the tree, so
    that the caller can report them together with its own findings.
    """
    file = str(path)
    return parse(read_text(file, allow_stdin=allow_stdin), file)


def parse(text: str, file: str | None, *, json: bool | None = None, as_pyyaml: bool = False) -> Document:
    """The same for text. `json`: hold unquoted scalars to JSON's literals; by default for files named `.json`.

    `as_pyyaml`: take what PyYAML takes: merge keys (`<<: *name`), and of a key that is given twice the last one, which
    remembers the one that it replaced.
    """
    strict = (file or "").lower().endswith(".json") if json is None else json
    composer = _Composer(file, strict, as_pyyaml)
    root = composer.compose(_without_surrogates(text) if strict else text)
    if not isinstance(root, Mapping):
        kind = "a list" if isinstance(root, Sequence) else "a single value"
        composer.fail(f"expected keys and values, not {kind}", root.line, root.column)
    return Document(root, file, tuple(composer.problems))


def from_value(value: Any, depth: int = 0) -> Node:
    """A node without a place for a value from Python. Raises InputError for what no file could hold."""
    if depth > MAX_DEPTH:
        raise fail(f"more than {MAX_DEPTH} levels deep", None)
    if value is None:
        return Scalar("null", "plain")
    if isinstance(value, bool):
        return Scalar("true" if value else "false", "plain")
    if isinstance(value, int | float):
        return Scalar(repr(value), "plain")
    if isinstance(value, str | os.PathLike):
        return Scalar(os.fspath(value))
    if isinstance(value, list | tuple):
        sequence = Sequence()
        sequence.items = [from_value(item, depth + 1) for item in value]
        return sequence
    if isinstance(value, MappingABC):
        mapping = Mapping()
        mapping.entries = {
            str(key): Entry(Scalar(str(key)), from_value(item, depth + 1)) for key, item in value.items()
        }
        return mapping
    raise fail(f"a value cannot be a {type(value).__name__}", None)


def merged(base: Node, over: Node) -> Node:
    """`over` laid on `base`: mappings are merged deeply, lists and scalars replaced."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    result = Mapping(over.line, over.column)
    result.entries = dict(base.entries)
    for name, entry in over.entries.items():
        below = base.entries.get(name)
        result.entries[name] = Entry(entry.key, merged(below.value, entry.value)) if below else entry
    return result


JSON_FAULTS = {
    "Expecting ',' delimiter": "a comma or a closing bracket is missing before this place",
    "Expecting ':' delimiter": "a colon is missing behind the key",
    "Expecting value": "a value is missing or misspelt: text has quotes, and the words are null, true and false",
    "Expecting property name enclosed in double quotes": 'a key in double quotes is missing, as in "model"; '
    "no comma stands before a closing brace",
    "Illegal trailing comma before end of object": "no comma stands before a closing brace",
    "Illegal trailing comma before end of array": "no comma stands before a closing bracket",
    "Unterminated string starting at": "the text that begins here has no closing quote",
    "Extra data": "something follows the end of the document",
}
"""What the parser of the standard library finds, in plain words."""


def _plain_json(text: str) -> tuple[str, int, int] | None:
    """What is wrong with a JSON text, its line and its column; None if this parser finds nothing."""
    import json  # only a broken file pays for it

    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"not JSON: {JSON_FAULTS.get(error.msg, error.msg)}", error.lineno, error.colno
    except RecursionError:
        return None
    return None


def _without_surrogates(text: str) -> str:
    r"""JSON writes U+1F600 as a pair \ud83d\ude00, which YAML refuses; \U0001f600 is the same for both eyes."""

    def joined(match: re.Match[str]) -> str:
        if match["high"] is None:
            return match[0]  # another escape: skipped, so that the backslash of an escaped backslash starts nothing
        high, low = int(match["high"], 16), int(match["low"], 16)
        return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"

    pair = r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    return re.sub(rf"{pair}|\\.", joined, text) if "\\u" in text else text


class _Anchored(NamedTuple):
    """What an alias stands for: the node, how many nodes that is, how many levels of collections."""

    node: Node
    size: int
    levels: int


class _Open:
    """A collection that has not ended: its node, a key that waits for its value, and what is inside it so far."""

    __slots__ = ("anchor", "before", "key", "levels", "merged", "node")

    def __init__(self, node: Mapping | Sequence, anchor: str | None, before: int) -> None:
        self.node, self.anchor, self.before = node, anchor, before
        self.key: Scalar | None = None
        self.levels = 0
        self.merged: tuple[Scalar, Node] | None = None  # the merge key, and what is behind it


class _Composer:
    """Puts a tree together from parser events, with a stack of its own."""

    def __init__(self, file: str | None, json: bool, as_pyyaml: bool) -> None:
        self.file, self.json, self.as_pyyaml = file, json, as_pyyaml
        self.problems: list[Problem] = []
        self._root: Node | None = None
        self._stack: list[_Open] = []
        self._anchors: dict[str, _Anchored | None] = {}  # None: its collection has not ended
        self._nodes = self._aliased = 0

    def compose(self, text: str) -> Node:
        """The root; InputError when there is none."""
        import yaml  # 8-15 ms: only for who reads a file

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        language = "JSON" if self.json else "YAML"
        try:
            self._compose(loader(text), yaml)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = _plain_json(text) if self.json else None
            if what is not None:
                self.problems.clear()  # of a text that is cut up wrongly
                self.fail(*what)
            told = " ".join(part.strip() for part in (error.context, error.problem) if part) or "it cannot be parsed"
            if LIBRARY_DEPTH in told:  # its scanner is ahead of the events that are counted here
                self.fail(f"more than {MAX_DEPTH} levels deep", *((mark.line + 1, mark.column + 1) if mark else ()))
            self.fail(f"not {language}: {told}", *((mark.line + 1, mark.column + 1) if mark else ()))
        except yaml.YAMLError as error:
            self.fail(f"not {language}: {' '.join(str(error).split())[:200]}")
        if self._root is None or (isinstance(self._root, Scalar) and self._root.is_null):
            self.fail("is empty")
        return self._root

    def fail(self, message: str, line: int | None = None, column: int | None = None) -> NoReturn:
        """Give up, with everything that was found so far."""
        raise InputError([*self.problems, Problem(message, file=self.file, line=line, column=column)])

    def problem(self, message: str, node: Node, key: str | None = None, hint: str | None = None) -> None:
        """Note a problem and go on."""
        if len(self.problems) == MAX_PROBLEMS:
            self.fail("and more of the same", node.line, node.column)
        self.problems.append(Problem(message, key, hint, self.file, node.line, node.column))

    def _compose(self, loader: Any, yaml: Any) -> None:
        scalar_event, alias_event = yaml.ScalarEvent, yaml.AliasEvent
        starts: dict[Any, type[Mapping] | type[Sequence]] = {
            yaml.MappingStartEvent: Mapping,
            yaml.SequenceStartEvent: Sequence,
        }
        ends = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
        while True:
            event = loader.get_event()
            kind = event.__class__
            if kind is scalar_event:
                self._scalar(event)
            elif kind in starts:
                self._start(starts[kind], event)
            elif kind in ends:
                self._end()
            elif kind is alias_event:
                self._alias(event)
            elif kind is yaml.StreamEndEvent:
                return

    def _scalar(self, event: Any) -> None:
        mark = event.start_mark
        # the C parser marks a plain scalar with "", the Python parser with None
        node = Scalar(event.value, "quoted" if event.style else "plain", mark.line + 1, mark.column + 1)
        self._nodes += 1
        if event.tag is not None:
            self._tag(event.tag, node)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(node, 1, 0)
        if self.json and node.style == "plain":
            wrong = scalars.json_problem(node.text)
            if wrong:
                self.problem(wrong, node)
        self._place(node)

    def _start(self, kind: type[Mapping] | type[Sequence], event: Any) -> None:
        mark = event.start_mark
        node = kind(mark.line + 1, mark.column + 1)
        self._nodes += 1
        if event.tag is not None:
            self._tag(event.tag, node)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if len(self._stack) == MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} levels deep", node.line, node.column)
        self._place(node)
        self._stack.append(_Open(node, event.anchor, self._nodes))

    def _end(self) -> None:
        closed = self._stack.pop()
        if closed.merged is not None:
            self._merge(closed, *closed.merged)
        levels = closed.levels + 1
        if closed.anchor is not None:
            self._anchors[closed.anchor] = _Anchored(closed.node, self._nodes - closed.before + 1, levels)
        if self._stack:
            self._stack[-1].levels = max(self._stack[-1].levels, levels)

    def _merge(self, closed: _Open, key: Scalar, node: Node) -> None:
        """Keys of one mapping, or of several in turn, that this one does not have (https://yaml.org/type/merge.html)."""
        for one in node.items if isinstance(node, Sequence) else [node]:
            if not isinstance(one, Mapping):
                self.problem("a merge key takes a mapping, or a list of mappings", key, "<<", hint="<<: *name")
                return
            assert isinstance(closed.node, Mapping)
            for name, entry in one.entries.items():
                closed.node.entries.setdefault(name, entry)

    def _alias(self, event: Any) -> None:
        name, line, column = event.anchor, event.start_mark.line + 1, event.start_mark.column + 1
        if name not in self._anchors:
            self.fail(f"*{name} has no &{name} before it", line, column)
        target = self._anchors[name]
        if target is None:
            self.fail(f"*{name} stands inside its own &{name}", line, column)
        self._nodes += target.size
        self._aliased += target.size
        if self._aliased > MAX_ALIASED:
            self.fail(f"its aliases stand for more than {MAX_ALIASED} values", line, column)
        if len(self._stack) + target.levels > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} levels deep", line, column)
        if self._stack:
            self._stack[-1].levels = max(self._stack[-1].levels, target.levels)
        self._place(target.node, line, column)

    def _tag(self, tag: str, node: Node) -> None:
        standard = tag.removeprefix("tag:yaml.org,2002:")
        if isinstance(node, Scalar) and standard in {"str", "!"}:
            node.style = "quoted"
        elif standard not in {"!", "map", "seq", "null", "bool", "int", "float"}:
            self.problem(f"the tag {tag[:60]!r} is not supported", node, hint="write the plain value")

    def _place(self, node: Node, line: int | None = None, column: int | None = None) -> None:
        """Put a finished or a starting node where it belongs. `line`, `column`: of the alias, where it is one."""
        line, column = line or node.line, column or node.column
        if not self._stack:
            if self._root is not None:
                self.fail("a second document starts here; put everything into one", line, column)
            self._root = node
            return
        parent = self._stack[-1]
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
            return
        key = parent.key
        if key is None:
            if not isinstance(node, Scalar):
                self.fail("a key must be text, not a list or a mapping", line, column)
            parent.key = Scalar(node.text, node.style, line, column)
            return
        parent.key = None
        first = parent.node.entries.get(key.text)
        is_merge = key.text == "<<" and key.style == "plain"
        if is_merge and self.as_pyyaml and parent.merged is None:
            parent.merged = key, node
        elif is_merge:
            self.problem("merge keys are not supported", key, "<<", hint="write the keys out, or use defaults")
        elif first is not None and not self.as_pyyaml:
            where = f"line {first.key.line}, column {first.key.column}"
            self.problem(f"the key is given twice; first at {where}", key, key.text[:60])
        else:
            parent.node.entries[key.text] = Entry(key, node, first.key if first is not None else None)
