"""Shell scripts read for the arguments of the command that they run; nothing is executed.

What is understood: assignments, `+=`, arrays, `$X`, `${X}`, `${X:-default}`, `${X[@]}`, `$((arithmetic))`, quotes,
lines that go on behind a backslash, `export`, `if`, `elif`, `else`, `case`, `$(echo ...)` with a test before it,
sourced files, a function or a script beside it that is called with arguments (`bash run.sh 7B 4096`), and the command
behind `--` of a Python program that starts it on a cluster (`python mason.py --gpus 8 -- accelerate launch ...`). What
only the caller knows (`$1`, a variable that nothing sets) stays in the arguments as an unknown with its name. A test of
a variable that nothing sets sees it empty, as the shell does.
Source: the GNU Bash manual, sections 3.1.2 (quoting), 3.3 (functions), 3.4.1 (positional parameters), 3.5 (expansions)
and 6.4 (conditional expressions).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from vramplan.tuples import NamedTuple

OPEN, CLOSE = "\ue000", "\ue001"  # around the name of an unknown, inside an expanded text
MAX_STATEMENTS = 20_000
MAX_TEXT = 200_000  # characters of one expanded word

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
_REDIRECTION = re.compile(r"(&?>{1,2}\|?|<{3}|<)[ \t]*(?P<descriptor>&(\d+|-))?")
_WRITTEN = re.compile(r"(?:\d|&)?>{1,2}(?P<target>.*)", re.DOTALL)  # of a command that a variable held
_UNKNOWN = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
_BLANKS = re.compile(f"[ \\t\\n]+(?![^{OPEN}]*{CLOSE})")  # not those inside an unknown
_ECHO = re.compile(
    r"\s*(?:(?P<test>\[\[?\s.*?\s\]\]?|test\s.*?)\s*&&\s*)?echo\s+(?P<text>[^|;&]*?)(?:\|\|\s*echo\s+(?P<other>[^|;&]*))?\s*",
    re.DOTALL,
)


class Word(NamedTuple):
    """A word as it stands, quotes and all; `items`: of an array."""

    text: str
    line: int
    items: tuple[Word, ...] | None = None


class Argument(NamedTuple):
    """One expanded word of the command, and where it stands."""

    text: str
    line: int


@dataclass
class Script:
    """What a script runs."""

    launcher: list[Argument] = field(default_factory=list)
    program: Argument | None = None
    arguments: list[Argument] = field(default_factory=list)
    values: dict[str, list[Argument]] = field(default_factory=dict)
    """Variables as the script leaves them."""

    notes: list[str] = field(default_factory=list)
    commands: list[list[Argument]] = field(default_factory=list)
    """All that the script runs, in its order."""

    empty: list[str] = field(default_factory=list)
    """Variables that nothing sets, where arguments were expected."""


def unknowns(text: str) -> list[str]:
    """The names of what only the caller knows in an expanded text."""
    return _UNKNOWN.findall(text)


def shown(text: str) -> str:
    """An expanded text with its unknowns as variables."""
    return _UNKNOWN.sub(lambda found: f"${found[1]}", text)


def read(text: str, sourced: Callable[[str], str | None] = lambda path: None) -> Script:
    """Read a script. `sourced`: the text of a file that it sources, None if it is not there."""
    reader = _Reader(sourced)
    reader.run_all(_statements(text))
    script = reader.script
    script.values = reader.values
    if script.program is None:
        reader.gather()
    return script


def words_of(text: str) -> list[Argument]:
    """The words of a command line that stands alone."""
    reader = _Reader(lambda path: None)
    result: list[Argument] = []
    for statement in _statements(text):
        for word in statement:
            result += reader.expand(word)
    return result


def _statements(text: str) -> list[list[Word]]:
    """The statements of a script as words, and the ends of statements as they are."""
    result: list[list[Word]] = []
    for line in _Scanner(text).statements():
        result.append(line)
        if len(result) > MAX_STATEMENTS:
            break
    return result


class _Scanner:
    """Cuts a script into statements and words; quotes and nesting are kept as they stand."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1

    def statements(self) -> list[list[Word]]:
        result: list[list[Word]] = []
        words: list[Word] = []
        heredoc: str | None = None
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif char in " \t\r":
                self.at += 1
            elif char in "\n;":
                self.at += 1
                if char == "\n":
                    self.line += 1
                if words:
                    result.append(words)
                words = []
                if char == "\n" and heredoc:
                    self._skip_heredoc(heredoc)
                    heredoc = None
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text.startswith(("&&", "||"), self.at) and not self._in_test(words):
                self.at += 2
                if words:
                    result.append(words)
                words = []
            elif self.text.startswith(("&&", "||"), self.at):
                words.append(Word(self.text[self.at : self.at + 2], self.line))
                self.at += 2
            elif char in "|&" and not self.text.startswith(("&>", "|&"), self.at):
                self.at += 1
                if words:
                    result.append(words)
                words = []
            elif char in "<>&":
                found = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?").match(self.text, self.at)
                if found:
                    heredoc = found[1]
                    self.at = found.end()
                    continue
                self._redirected(words)
            elif char in "()":
                words.append(Word(char, self.line))
                self.at += 1
            else:
                words.append(self._word())
        if words:
            result.append(words)
        return result

    def _redirected(self, words: list[Word]) -> None:
        """Past `> FILE`, `2>&1`, `&>> FILE` and `< FILE`, which are no arguments."""
        found = _REDIRECTION.match(self.text, self.at)
        if found is None or self._in_test(words) or any(word.text == "(" for word in words):
            self.at += 1
            return
        if words and words[-1].text.isdecimal() and self.text[self.at - 1].isdecimal():
            words.pop()
        self.at = found.end()
        if found["descriptor"] is None and self.text[self.at : self.at + 1] not in ("", "\n", "("):
            self._word()

    @staticmethod
    def _in_test(words: list[Word]) -> bool:
        opened = sum(word.text == "[[" for word in words)
        return opened > sum(word.text == "]]" for word in words)

    def _skip_heredoc(self, end: str) -> None:
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[self.at : stop].strip()
            self.at = min(stop + 1, len(self.text))
            self.line += 1
            if line == end:
                return

    def _word(self) -> Word:
        start, line = self.at, self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self.line += self.text[self.at + 1 : self.at + 2] == "\n"
                if self.text[self.at + 1 : self.at + 2] == "\n":
                    break
                self.at += 2
            elif char == "(":
                before = self.text[start : self.at]
                if re.fullmatch(r"[A-Za-z_]\w*\+?=", before):
                    self.at += 1
                    return Word(before, line, tuple(self._array()))
                if before.endswith("$"):
                    self._nested("(", ")")
                else:
                    break
            elif char == "{" and self.text[self.at - 1 : self.at] == "$":
                self._nested("{", "}")
            elif char == "'":
                self._until("'")
            elif char == '"':
                self._double()
            elif char == "`":
                self._until("`")
            elif char in " \t\r\n;|&<>)":
                break
            else:
                self.at += 1
        if self.text.startswith("\\\n", self.at):
            self.line -= 1  # counted when it is skipped
        if self.at == start:
            self.at += 1  # a sign that begins no word: it stands for itself
        return Word(self.text[start : self.at], line)

    def _array(self) -> list[Word]:
        items: list[Word] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                return items
            if self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif char in " \t\r\n":
                self.line += char == "\n"
                self.at += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in ";|&<>(":
                self.at += 1
            else:
                items.append(self._word())
        return items

    def _until(self, quote: str) -> None:
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quote:
            self.line += self.text[self.at] == "\n"
            self.at += 1
        self.at += 1

    def _double(self) -> None:
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text[self.at] == "\\":
                self.line += self.text[self.at + 1 : self.at + 2] == "\n"
                self.at += 2
                continue
            if self.text.startswith("$(", self.at):
                self.at += 1
                self._nested("(", ")")
                continue
            if self.text.startswith("${", self.at):
                self.at += 1
                self._nested("{", "}")
                continue
            self.line += self.text[self.at] == "\n"
            self.at += 1
        self.at += 1

    def _nested(self, opening: str, closing: str) -> None:
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            self.line += char == "\n"
            depth += (char == opening) - (char == closing)
            self.at += 1
            if depth == 0:
                return


_PLACES = re.compile(r"=\"?\$\{?\d")
_PROGRAM = re.compile(r"(^|/)[\w.\-]+\.py$")
_LAUNCHERS = ("torchrun", "python", "python3", "deepspeed", "accelerate", "srun", "uv", "bash", "sh")
_NODES = ("--num_nodes", "--num-nodes", "--nodes", "--nnodes")
_GPUS = ("--gpus", "--num_gpus", "--num-gpus", "--gpus_per_node", "--gpus-per-node")
_MODULES = ("torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch")


def _functions(statements: list[list[Word]]) -> tuple[list[list[Word]], dict[str, list[list[Word]]]]:
    """The statements without the functions that one of them calls with arguments, and those functions."""
    found: dict[str, list[list[Word]]] = {}
    kept: list[tuple[list[Word], str]] = []
    name, depth = "", 0
    for words in statements:
        texts = [word.text for word in words]
        if not name:
            head = texts[1:] if texts[0] == "function" else texts
            plain = [text for text in head if text not in ("(", ")")]
            if (
                plain
                and re.fullmatch(r"\w+", plain[0])
                and plain[1:2] in ([], ["{"])
                and (texts[0] == "function" or head[1:3] == ["(", ")"])
            ):
                name, depth = plain[0], 0
                found[name] = []
        if name:
            kept.append((words, name))
            depth += texts.count("{")
            depth -= texts[0] == "}"
            body = words[texts.index("{") + 1 :] if not found[name] and "{" in texts and texts[0] != "{" else words
            found[name].append(body)
            if depth <= 0 and texts[0] == "}":
                name = ""
        else:
            kept.append((words, ""))
    called: dict[str, int] = {}
    for words, _ in kept:
        if words[0].text in found and len(words) > 1 and words[1].text != "(":
            called[words[0].text] = called.get(words[0].text, 0) + 1
    once = {at for at, count in called.items() if count == 1}
    left = [words for words, inside in kept if inside not in once]
    return left, {at: [words for words in found[at] if words and words[0].text not in "{}"] for at in once}


def _placed(word: Word, line: int) -> Word:
    """A word of another script, at the line that calls it."""
    items = None if word.items is None else tuple(_placed(item, line) for item in word.items)
    return word._replace(line=line, items=items)


class _Reader:
    """Goes through the statements once, keeps what variables hold, and finds the command."""

    def __init__(self, sourced: Callable[[str], str | None]) -> None:
        self.values: dict[str, list[Argument]] = {}
        self.script = Script()
        self.sourced = sourced
        self.depth = 0
        self.functions: dict[str, list[list[Word]]] = {}

    # ---- control flow

    def run_all(self, statements: list[list[Word]]) -> None:
        """Statements in their order, and functions that one place calls with arguments where it calls them."""
        kept, functions = _functions(statements)
        self.functions |= functions
        self.run(kept)
        for name in functions:
            self.run(self.functions.pop(name, []))  # its caller was in a branch that is not taken

    def called(self, statements: list[list[Word]], given: list[Argument]) -> None:
        """Statements with `$1`, `$2` and so on as a caller gives them."""
        numbered = {str(place): [item] for place, item in enumerate(given, 1)}
        before = {name: held for name, held in self.values.items() if name.isdecimal() or name == "@"}
        self.values = {name: held for name, held in self.values.items() if name not in before}
        self.values |= {**numbered, "@": given}
        self.run_all(statements)
        self.values = {name: held for name, held in self.values.items() if not name.isdecimal() and name != "@"}
        self.values |= before

    def run(self, statements: list[list[Word]]) -> None:
        """Statements in their order; branches that are not taken are left out."""
        taken: list[list[bool]] = []  # per open if: is this branch run, was one run
        cases: list[list[Any]] = []
        for words in statements:
            head = words[0].text
            if head in ("if", "elif"):
                if head == "if":
                    taken.append([False, False])
                elif not taken:
                    continue
                outer = all(entry[0] for entry in taken[:-1])
                run = outer and not taken[-1][1] and self.test(words[1:])
                taken[-1] = [run, taken[-1][1] or run]
                continue
            if head == "else" and taken:
                taken[-1] = [not taken[-1][1], True]
                words = words[1:]
            elif head == "fi" and taken:
                taken.pop()
                continue
            elif head == "then":
                words = words[1:]
            elif head == "case" and len(words) > 1:
                cases.append([self.text_of(words[1]), False, False, []])
                continue
            elif head == "esac" and cases:
                cases.pop()
                continue
            if cases and words and any(word.text == ")" for word in words):
                words = self.pattern(cases[-1], words)
            if cases and not cases[-1][1]:
                if len(words) == 1:
                    cases[-1][3].append(words[0])  # `a|` of `a|b)`: a bar ends a statement
                continue
            if not words or not all(entry[0] for entry in taken):
                continue
            self.statement(words)

    def pattern(self, case: list[Any], words: list[Word]) -> list[Word]:
        """A pattern of `case`: whether it is the branch; the words behind it."""
        at = next(index for index, word in enumerate(words) if word.text == ")")
        patterns = [part for word in (*case[3], *words[:at]) for part in word.text.strip("()\"'").split("|")]
        case[3] = []
        hit = not case[2] and any(part == "*" or part == case[0] for part in patterns)
        case[1], case[2] = hit, case[2] or hit
        return words[at + 1 :]

    def test(self, words: list[Word]) -> bool:
        """Whether a condition holds; a variable that nothing sets is empty in it."""
        texts: list[str] = []
        for word in words:
            if word.text in ("[", "]", "[[", "]]", "then", "test", ";"):
                continue
            texts.append(_UNKNOWN.sub("", self.text_of(word)))
        return self.alternatives(texts)

    def alternatives(self, texts: list[str]) -> bool:
        for sign, join in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
            if sign in texts:
                parts: list[list[str]] = [[]]
                for text in texts:
                    if text == sign:
                        parts.append([])
                    else:
                        parts[-1].append(text)
                return join(self.alternatives(part) for part in parts)
        if texts and texts[0] == "!":
            return not self.alternatives(texts[1:])
        return self.single([text for text in texts if text not in ("(", ")")])

    @staticmethod
    def single(texts: list[str]) -> bool:
        if not texts:
            return False
        if texts[0] == "-n":
            return len(texts) > 1 and texts[1] != ""
        if texts[0] == "-z":
            return len(texts) < 2 or texts[1] == ""
        if texts[0].startswith("-") and len(texts) <= 2 and len(texts[0]) == 2:
            return False  # files: nobody looks
        if len(texts) == 1:
            return texts[0] not in ("", "false")
        if len(texts) == 2:
            texts = ["", *texts] if texts[0] in ("==", "=", "!=") else [*texts, ""]
        left, sign, right = texts[0], texts[1], texts[2]
        if sign in ("==", "="):
            return re.fullmatch(re.escape(right).replace(r"\*", ".*"), left) is not None
        if sign == "!=":
            return left != right
        numbers = {"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt}
        numbers |= {"-ge": operator.ge, "-lt": operator.lt, "-le": operator.le}
        if sign in numbers:
            try:
                return bool(numbers[sign](int(left or 0), int(right or 0)))
            except ValueError:
                return False
        return False

    # ---- statements

    def statement(self, words: list[Word]) -> None:
        """An assignment, a sourced file, or a command."""
        while words and words[0].text in ("export", "declare", "local", "readonly", "do", "{", "}", "then", "time"):
            words = words[1:]
            while words and re.fullmatch(r"-[aAgilrx]+", words[0].text):
                words = words[1:]
        assigned = 0
        for word in words:
            matched = _ASSIGNMENT.match(word.text)
            if matched is None or matched["name"] == "":
                break
            self.assign(word, matched)
            assigned += 1
        words = words[assigned:]
        if not words:
            return
        if words[0].text in (".", "source") and len(words) > 1:
            self.source(self.text_of(words[1]))
            return
        if words[0].text in self.functions:
            given = [argument for word in words[1:] for argument in self.expand(word)]
            self.called(self.functions.pop(words[0].text), given)
            return
        if words[0].text in ("for", "while", "until", "function", "echo", "printf", "mkdir", "cd", "set", "unset"):
            return
        self.command(words)

    def assign(self, word: Word, matched: re.Match[str]) -> None:
        name = matched["name"]
        if word.items is not None:
            value = [item for part in word.items for item in self.expand(part)]
        else:
            value = [Argument(self.text_of(Word(matched["value"], word.line)), word.line)]
        if matched["more"] and name in self.values:
            old = self.values[name]
            if word.items is None and len(old) == 1:
                value = [Argument(old[0].text + value[0].text, old[0].line)]
            else:
                value = [*old, *value]
        self.values[name] = value

    def source(self, path: str) -> None:
        last = shown(path).rsplit("/", 1)[-1]
        text = self.sourced(last) if self.depth < 5 else None
        if text is None:
            self.script.notes.append(f"it sources {last}, which is not here")
            return
        self.depth += 1
        self.run_all(_statements(text))
        self.depth -= 1

    def command(self, words: list[Word]) -> None:
        arguments = [argument for word in words for argument in self.expand(word)]
        if not arguments:
            return
        if self.another(arguments):
            return
        first = arguments[0].text.rsplit("/", 1)[-1]
        if first in ("bash", "sh", "eval", "nohup", "run_cmd", "exec"):
            arguments = [part for item in arguments[1:] for part in _split(item)]
        arguments = self.inside(_without_redirections(arguments))
        self.script.commands.append(arguments)
        at = next((index for index, item in enumerate(arguments) if _PROGRAM.search(item.text)), None)
        if at is None:
            module = next((i for i, item in enumerate(arguments) if item.text == "-m"), None)
            if module is None or module + 1 >= len(arguments) or arguments[module + 1].text in _MODULES:
                return
            at = module + 1
        if self.script.program is not None and len(arguments) - at < len(self.script.arguments):
            return  # a helper beside the training
        flags = [item for item in arguments[at + 1 :] if item.text.startswith("-")]
        if self.script.program is None or len(flags) > 3:
            self.script.launcher = arguments[:at]
            self.script.program = arguments[at]
            self.script.arguments = arguments[at + 1 :]

    def another(self, arguments: list[Argument]) -> bool:
        """`bash run.sh a b`: run the script of that name with these arguments, where it reads them by their place."""
        given = arguments[1:] if arguments[0].text in ("bash", "sh", "exec", "nohup") else arguments
        if not given or not given[0].text.endswith(".sh") or len(given) < 2 or self.depth >= 5:
            return False
        text = self.sourced(given[0].text.rsplit("/", 1)[-1])
        if text is None or not _PLACES.search(text) or re.search(r"\$#|\bgetopts\b|\bshift\b", text):
            return False
        self.depth += 1
        self.called([[_placed(word, given[0].line) for word in words] for words in _statements(text)], given[1:])
        self.depth -= 1
        return True

    def inside(self, arguments: list[Argument]) -> list[Argument]:
        """The command behind `--` of a program that starts others on a cluster, with the processes that it starts."""
        texts = [item.text for item in arguments]
        if "--" not in texts:
            return arguments
        at = texts.index("--")
        outer, inner = texts[:at], arguments[at + 1 :]
        starts = inner[0].text.rsplit("/", 1)[-1] in _LAUNCHERS if inner else False
        if not starts or not any(_PROGRAM.search(text) for text in outer):
            return arguments  # the program's own arguments
        given = dict(pairwise(outer))
        nodes, each = (next((given[name] for name in names if name in given), "") for names in (_NODES, _GPUS))
        if nodes.isdecimal() and each.isdecimal():
            for place, item in enumerate(inner[:-1]):
                if item.text in ("--num_processes", "--num-processes"):
                    inner[place + 1] = inner[place + 1]._replace(text=str(int(nodes) * int(each)))
        return inner

    def gather(self) -> None:
        """Where no command is seen: the arguments that variables hold, as of a file that another one sources."""
        seen: set[str] = set()
        for value in self.values.values():
            parts = [part for item in value for part in _split(item)]
            if not any(part.text.startswith("--") for part in parts):
                continue
            text = " ".join(part.text for part in parts)
            if text not in seen:
                seen.add(text)
                self.script.arguments += parts

    # ---- expansion

    def text_of(self, word: Word) -> str:
        """A word as one text."""
        return " ".join(item.text for item in self.expand(word, split=False))

    def expand(self, word: Word, split: bool = True) -> list[Argument]:
        """A word as the shell hands it on: without quotes, variables replaced, unquoted results split."""
        pieces: list[tuple[str, bool]] = []  # text, and whether it may be split
        text, at = word.text, 0
        whole = re.fullmatch(r'"?\$\{(\w+)\[[@*]\]\}"?', text)
        if whole:
            held = self.values.get(whole[1])
            if held is None:
                return []
            return list(held) if text.startswith('"') else [part for item in held for part in _split(item)]
        if "@" in self.values and re.fullmatch(r'"?\$\{?[@*]\}?"?', text):
            return list(self.values["@"])
        whole = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", text)
        if whole and split and whole[1] in self.values:
            return [part for item in self.values[whole[1]] for part in _split(item)]
        while at < len(text):
            char = text[at]
            if char == "'":
                end = text.find("'", at + 1)
                end = len(text) if end < 0 else end
                pieces.append((text[at + 1 : end], False))
                at = end + 1
            elif char == '"':
                inner, at = self.quoted(text, at + 1)
                pieces.append((inner, False))
            elif char == "\\":
                if text[at + 1 : at + 2] != "\n":
                    pieces.append((text[at + 1 : at + 2], False))
                at += 2
            elif char == "`":
                end = text.find("`", at + 1)
                end = len(text) if end < 0 else end
                pieces.append((f"{OPEN}{text[at : end + 1]}{CLOSE}", False))
                at = end + 1
            elif char == "$":
                value, at = self.dollar(text, at)
                pieces.append((value, True))
            else:
                pieces.append((char, False))
                at += 1
        if not split:
            return [Argument("".join(piece for piece, _ in pieces)[:MAX_TEXT], word.line)]
        result, current, open_word = [], "", False
        for piece, splittable in pieces:
            if not splittable:
                current += piece
                open_word = True
                continue
            parts = _BLANKS.split(piece)
            for index, part in enumerate(parts):
                if index and (current or open_word):
                    result.append(Argument(current, word.line))
                    current, open_word = "", False
                current += part
                open_word = open_word or bool(part)
        if current or open_word:
            result.append(Argument(current[:MAX_TEXT], word.line))
        return result

    def quoted(self, text: str, at: int) -> tuple[str, int]:
        out = ""
        while at < len(text) and text[at] != '"':
            if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
                out += "" if text[at + 1] == "\n" else text[at + 1]
                at += 2
            elif text[at] == "$":
                value, at = self.dollar(text, at)
                out += value
            else:
                out += text[at]
                at += 1
        return out, at + 1

    def dollar(self, text: str, at: int) -> tuple[str, int]:
        """What `$...` at a place stands for, and where it ends."""
        if text.startswith("$((", at):
            end = _closing(text, at + 1, "(", ")")
            return self.arithmetic(text[at + 3 : end - 1]), end + 1
        if text.startswith("$(", at):
            end = _closing(text, at + 1, "(", ")")
            return self.substituted(text[at + 2 : end]), end + 1
        if text.startswith("${", at):
            end = _closing(text, at + 1, "{", "}")
            return self.braced(text[at + 2 : end]), end + 1
        matched = re.compile(r"\$([A-Za-z_]\w*|[0-9@#*?$!-])").match(text, at)
        if matched is None:
            return "$", at + 1
        return self.value(matched[1]), matched.end()

    def substituted(self, inside: str) -> str:
        """`$([ TEST ] && echo TEXT || echo OTHER)`; any other command is unknown."""
        found = _ECHO.fullmatch(inside)
        if found is None or (found["other"] is not None and found["test"] is None):
            return f"{OPEN}$({inside}){CLOSE}"
        holds = found["test"] is None or self.test([word for words in _statements(found["test"]) for word in words])
        words = [word for line in _statements((found["text"] if holds else found["other"]) or "") for word in line]
        return " ".join(self.text_of(word) for word in words)

    def braced(self, inside: str) -> str:
        matched = re.fullmatch(r"(?P<name>\w+)(\[[@*0-9]+\])?(?P<rest>.*)", inside, re.DOTALL)
        if matched is None:
            return f"{OPEN}{inside}{CLOSE}"
        name, rest = matched["name"], matched["rest"]
        if rest.startswith((":-", "-", ":=", "=")):
            default = rest.lstrip(":").lstrip("-=")
            held = self.values.get(name)
            if held is not None and (not rest.startswith(":") or any(item.text for item in held)):
                return self.value(name)
            return self.text_of(Word(default, 0)) if default else ""
        if rest.startswith((":+", "+")):
            held = self.values.get(name)
            return self.text_of(Word(rest.lstrip(":+"), 0)) if held and any(item.text for item in held) else ""
        value = self.value(name)
        if rest.startswith(("%", "#", "/", ":")):
            return value if unknowns(value) else f"{OPEN}{inside}{CLOSE}"
        return value

    def value(self, name: str) -> str:
        held = self.values.get(name)
        if held is None:
            return f"{OPEN}{name}{CLOSE}"
        return " ".join(item.text for item in held)

    def arithmetic(self, text: str) -> str:
        names = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: self.value(found[1]), text)
        names = re.sub(r"\$\{?(\d+)\}?", lambda found: self.value(found[1]), names)
        if unknowns(names):
            return f"{OPEN}{unknowns(names)[0]}{CLOSE}"
        value = arithmetic(names)
        return f"{OPEN}{text.strip()}{CLOSE}" if value is None else str(int(value))


def _without_redirections(arguments: list[Argument]) -> list[Argument]:
    """The arguments of a command that was the text of a variable, up to a pipe."""
    kept: list[Argument] = []
    target = False
    for item in arguments:
        if item.text == "|":
            break
        found = _WRITTEN.fullmatch(item.text)
        if found is None and not target:
            kept.append(item)
        target = found is not None and not found["target"]
    return kept


def _split(item: Argument) -> list[Argument]:
    """A text of several words, as an unquoted variable gives; quotes inside hold words together."""
    if not re.search(r"\s", item.text):
        return [item]
    return [
        Argument(found[0].strip("'\""), item.line)
        for found in re.finditer(rf"'[^']*'|\"[^\"]*\"|(?:{OPEN}[^{CLOSE}]*{CLOSE}|\S)+", item.text)
    ]


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == opening) - (text[index] == closing)
        if depth == 0:
            return index
    return len(text)


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
MAX_NUMBER = 2**63


def arithmetic(text: str) -> int | float | None:
    """The value of an expression of numbers, `5 * 8`; None for anything else."""
    if len(text) > 200:
        return None
    try:
        return _number(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr) -> int | float:
    """A number made of numbers; `**` only of small ones. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _number(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        if isinstance(node.op, ast.Pow) and abs(left) <= 1000 and 0 <= right <= 20:
            return left**right
        if type(node.op) in _OPERATORS:
            value = _OPERATORS[type(node.op)](left, right)
            if abs(value) < MAX_NUMBER:
                return value  # type: ignore[no-any-return]
    raise ValueError("not an expression of numbers")
