"""The words of a script as they stand, statement by statement: quotes, arrays, nested expansions, comments."""

from __future__ import annotations

import re

from vramplan.tuples import NamedTuple

MAX_STATEMENTS = 20_000

JOINS = ("&&", "||")
"""Between two commands, of which the second hangs on how the first ended."""

TESTS = ("[", "[[", "test")
_CALCULATED = re.compile(r"\(\((?P<inside>(?:[^()\n;]|\([^()\n]*\))*)\)\)")
"""`((A > 1))`, a test of numbers; what has semicolons is the head of a loop."""

_TESTS_ON = re.compile(r"[ \t]*(\\?\n[ \t]*)?(![ \t]*)?(\[|\(\(|test\s)")
_BEFORE_A_TEST = ("then", "else", "do", "{", "!")

_REDIRECTION = re.compile(r"(&?>{1,2}\|?|<{3}|<)[ \t]*(?P<descriptor>&(\d+|-))?")


HEREDOC = "<<"
HERE = "<<<"  # a text that a command reads
"""The first word of a statement that hands lines on: `<<`, the command, the file that it writes, the lines, and a quote
where variables stay as they are."""

_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"\\]?)(?P<end>\w+)['\"]?")


_TO_FILL_IN = re.compile(r"<[A-Za-z][\w ./-]*>")
"""What stands in the place of a name that is to be filled in, `PATH=<path to data>`."""

_BLANK = re.compile(r"<[A-Z]{2,}[\w ./-]*(?<! )>(?=[\s\"']|$)")
"""The same as a word of its own, `--save <PATH TO CHECKPOINTS>`, which no shell takes for a file."""


class ShellWord(NamedTuple):
    """A word as it stands, quotes and all; `items`: of an array."""

    text: str
    line: int
    items: tuple[ShellWord, ...] | None = None


def inside_calculated(text: str) -> str | None:
    """The expression of `((...))`, None where a word is another."""
    found = _CALCULATED.fullmatch(text)
    return None if found is None else found["inside"]


def is_test(words: list[ShellWord]) -> bool:
    """Whether a statement is a test, behind the words that begin a branch or a pattern of `case`."""
    texts = [word.text for word in words]
    if ")" in texts and texts[0] not in TESTS:
        texts = texts[texts.index(")") + 1 :]
    while texts and texts[0] in _BEFORE_A_TEST:
        texts = texts[1:]
    return bool(texts) and (texts[0] in TESTS or inside_calculated(texts[0]) is not None)


def statements_of(text: str) -> list[list[ShellWord]]:
    """The statements of a script as words, and the ends of statements as they are.

    A test before `&&` or `||` keeps that sign as its last word, and so does what follows it in the list.
    """
    result: list[list[ShellWord]] = []
    for line in _Scanner(text).statements():
        result.append(line)
        if len(result) > MAX_STATEMENTS:
            break
    return result


class _Scanner:
    """Cuts a script into statements and words; quotes and nesting are kept as they stand."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text.replace("\r\n", "\n"), 0, 1
        self.target = ShellWord("", 1)

    def statements(self) -> list[list[ShellWord]]:
        result: list[list[ShellWord]] = []
        words: list[ShellWord] = []
        heredoc: re.Match[str] | None = None
        head: list[ShellWord] = []
        listed = False  # whether a test began the list of commands
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
                if char == "\n" and words and words[-1].text in JOINS and self._in_condition(words):
                    continue
                listed = listed and char == "\n" and not words
                if words:
                    result.append(words)
                words = []
                if char == "\n" and heredoc:
                    first, quote = self.line, ShellWord(heredoc["quote"], self.line)
                    lines = ShellWord(self._heredoc(heredoc["end"]), first)
                    if head:
                        result.append([ShellWord(HEREDOC, first), head[0], self.target, lines, quote])
                    heredoc, head = None, []
                if not heredoc:
                    self.target = ShellWord("", self.line)
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text.startswith(JOINS, self.at):
                sign = ShellWord(self.text[self.at : self.at + 2], self.line)
                self.at += 2
                if self._in_test(words) or (self._in_condition(words) and _TESTS_ON.match(self.text, self.at)):
                    words.append(sign)
                    continue
                listed = listed or is_test(words) or [word.text for word in words] == ["}"]
                if words:
                    result.append([*words, sign] if listed else words)
                words = []
            elif char in "|&" and not self.text.startswith(("&>", "|&"), self.at):
                self.at += 1
                if words:  # of a pipe all commands run, or none
                    result.append([*words, ShellWord("&&", self.line)] if listed and char == "|" else words)
                listed = listed and char == "|"
                words = []
            elif self.text.startswith(HERE, self.at):
                self._handed_text(words)
            elif char == "<" and (blank := _BLANK.match(self.text, self.at)):
                words.append(ShellWord(blank[0], self.line))
                self.at = blank.end()
            elif char in "<>&":
                found = _HEREDOC.match(self.text, self.at)
                if found:
                    heredoc, head = found, words
                    self.at = found.end()
                    continue
                self._redirected(words)
            elif char == "(" and (found := _CALCULATED.match(self.text, self.at)):
                words.append(ShellWord(found[0], self.line))
                self.at = found.end()
            elif char in "()":
                words.append(ShellWord(char, self.line))
                self.at += 1
            else:
                words.append(self._word())
        if words:
            result.append(words)
        return result

    def _handed_text(self, words: list[ShellWord]) -> None:
        """`<<< "$TEXT"`, which is no argument; of `read` it is what variables get."""
        line = self.line
        self.at += len(HERE)
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        if self.text[self.at : self.at + 1] in ("", "\n"):
            return
        word = self._word()
        if any(one.text == "read" for one in words):
            words += [ShellWord(HERE, line), word]

    def _redirected(self, words: list[ShellWord]) -> None:
        """Past `> FILE`, `2>&1`, `&>> FILE` and `< FILE`, which are no arguments."""
        found = _REDIRECTION.match(self.text, self.at)
        if found is None or self._in_test(words) or any(word.text == "(" for word in words):
            self.at += 1
            return
        if words and words[-1].text.isdecimal() and self.text[self.at - 1].isdecimal():
            words.pop()
        self.at = found.end()
        if found["descriptor"] is None and self.text[self.at : self.at + 1] not in ("", "\n", "("):
            word = self._word()
            if found[0].strip().startswith(">"):
                self.target = word

    @staticmethod
    def _in_test(words: list[ShellWord]) -> bool:
        opened = sum(word.text == "[[" for word in words)
        return opened > sum(word.text == "]]" for word in words)

    @staticmethod
    def _in_condition(words: list[ShellWord]) -> bool:
        """Whether words are the condition of an `if`."""
        return bool(words) and words[0].text in ("if", "elif") and all(word.text != "then" for word in words)

    def _heredoc(self, end: str) -> str:
        """The lines up to the one that ends them."""
        start = before = self.at
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[self.at : stop].strip()
            before = self.at
            self.at = min(stop + 1, len(self.text))
            self.line += 1
            if line == end:
                return self.text[start:before]
        return self.text[start : self.at]

    def _word(self) -> ShellWord:
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
                    return ShellWord(before, line, tuple(self._array()))
                if before.endswith("$"):
                    self._nested("(", ")")
                else:
                    break
            elif char in "{[" and self.text[self.at - 1 : self.at] == "$":
                self._nested(char, "}" if char == "{" else "]")
            elif char == "'":
                self._until("'")
            elif char == '"':
                self._double()
            elif char == "`":
                self._until("`")
            elif char == "<" and (found := _TO_FILL_IN.match(self.text, self.at)) and self.text[self.at - 1] in "=/_-":
                self.at = found.end()
            elif char in " \t\r\n;|&<>)":
                break
            else:
                self.at += 1
        if self.text.startswith("\\\n", self.at):
            self.line -= 1  # counted when it is skipped
        if self.at == start:
            self.at += 1  # a sign that begins no word: it stands for itself
        return ShellWord(self.text[start : self.at], line)

    def _array(self) -> list[ShellWord]:
        items: list[ShellWord] = []
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
            if self.text[self.at] == "`":
                self._until("`")
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
