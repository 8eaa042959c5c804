"""Statements one after the other: which branches are taken, and the command that is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from vramplan.configs.shell import loops, queued
from vramplan.configs.shell.branches import decided_by
from vramplan.configs.shell.conditions import OF_FILES, CommandList, holds, without_join
from vramplan.configs.shell.expanding import Argument, unknowns, without_unknowns
from vramplan.configs.shell.numbers import condition
from vramplan.configs.shell.scanning import ShellWord, inside_calculated, is_test, statements_of
from vramplan.configs.shell.script import Script, apart_from_functions, placed, whole
from vramplan.configs.shell.statements import ASSIGNMENT, Statements

_OPTIONS = re.compile(r"--([a-z][\w-]*)")


def read(text: str, sourced: Callable[[str], str | None] = lambda path: None) -> Script:
    """Read a script. `sourced`: the text of a file that it sources, None if it is not there."""
    reader = _StatementReader(sourced)
    reader.values |= {name: [Argument(value, 1)] for name, value in queued.variables_of(text).items()}
    reader.run_all(statements_of(text))
    script = reader.script
    if script.program is None:
        script.values = reader.values
    for inner, line in reader.in_values:
        if script.program is None:
            reader.run_all([[placed(word, line) for word in words] for words in statements_of(inner)])
    if script.program is None:
        reader.gather()
    return script


def words_of(text: str) -> list[Argument]:
    """The words of a command line that stands alone."""
    reader = _StatementReader(lambda path: None)
    result: list[Argument] = []
    for statement in statements_of(text):
        for word in statement:
            result += reader.expand(word)
    return result


class _StatementReader(Statements):
    """Goes through the statements once, keeps what variables hold, and finds the command."""

    def __init__(self, sourced: Callable[[str], str | None]) -> None:
        super().__init__(sourced)
        self.list = CommandList()

    def run_all(self, statements: list[list[ShellWord]]) -> None:
        """Statements in their order, and functions that are called with arguments where that is done first."""
        kept, functions = apart_from_functions(statements)
        self.functions |= functions
        self.run(kept)
        for name in functions:
            self.run(self.functions.pop(name, []))  # its caller was in a branch that is not taken

    def called(self, statements: list[list[ShellWord]], given: list[Argument]) -> None:
        """Statements with `$1`, `$2` and so on as a caller gives them."""
        numbered = {str(place): [item] for place, item in enumerate(given, 1)}
        before = {name: held for name, held in self.values.items() if name.isdecimal() or name == "@"}
        self.values = {name: held for name, held in self.values.items() if name not in before}
        self.values |= {**numbered, "@": given}
        self.run_all(statements)
        self.values = {name: held for name, held in self.values.items() if not name.isdecimal() and name != "@"}
        self.values |= before

    def run(self, statements: list[list[ShellWord]]) -> None:
        """Statements in their order; branches that are not taken are left out."""
        taken: list[list[bool]] = []  # per open if: is this branch run, was one run
        cases: list[list[Any]] = []
        outside, self.list = self.list, CommandList()
        at = 0
        while at < len(statements) and not self.left:
            words, sign = without_join(statements[at])
            head, at = words[0].text, at + 1
            if self.list.left_out:
                self.skip(words)
                self.list.left_out = head != "}"
                self.list.goes_on(self.list.ended, sign, set())
                continue
            if head in ("if", "elif"):
                if head == "if":
                    taken.append([False, False])
                    self.branches.open.append(set())
                elif not taken:
                    continue
                self.branches.open[-1] |= self.unset_in(words[1:])
                outer = all(entry[0] for entry in taken[:-1])
                run = outer and not taken[-1][1] and self.test(words[1:])
                taken[-1] = [run, taken[-1][1] or run]
                continue
            if head == "else" and taken:
                taken[-1] = [not taken[-1][1], True]
                words = words[1:]
            elif head == "fi" and taken:
                taken.pop()
                self.branches.open.pop()
                continue
            elif head == "then":
                words = words[1:]
            elif head == "case" and len(words) > 1:
                cases.append([self.text_of(words[1]), False, False, []])
                self.branches.open.append(self.unset_in(words[1:2]))
                continue
            elif head == "esac" and cases:
                cases.pop()
                self.branches.open.pop()
                continue
            if cases and words and any(word.text == ")" for word in words):
                words = self.pattern(cases[-1], words)
            if cases and not cases[-1][1]:
                self.skip(words)
                if len(words) == 1:
                    cases[-1][3].append(words[0])  # `a|` of `a|b)`: a bar ends a statement
                continue
            if not words or not all(entry[0] for entry in taken):
                self.skip(words)
                continue
            if "@" in self.values and loops.is_over_arguments(words):
                body, at = loops.body_of(statements, at)
                self.repeat(words, body)
                continue
            if self.goes_on and not cases and _OPTIONS.match(words[0].text):
                self.script.cut_off.append(Argument(words[0].text, words[0].line))
                continue
            self.listed(words, sign)
        self.list = outside

    def repeat(self, words: list[ShellWord], body: list[list[ShellWord]]) -> None:
        """A loop over the arguments of a call: `while [ $# -gt 0 ]` up to the last one, or `for WORD in "$@"`."""
        self.repeats += 1
        if words[0].text == "for":
            for item in list(self.values["@"]):
                self.values[words[1].text] = [item]
                self.run(body)
        else:
            many = None
            while self.values["@"] and len(self.values["@"]) != many and not self.left and self.test(words[1:]):
                many = len(self.values["@"])
                self.run(body)
        self.repeats, self.left = self.repeats - 1, False

    def listed(self, words: list[ShellWord], sign: str) -> None:
        """A command, where the list that it stands in runs it."""
        needs = self.list.needs
        if needs:
            self.branches.open.append(needs)
        if not self.list.runs():
            self.skip(words)
            self.list.left_out = words[0].text == "{" and words[-1].text != "}"
            self.list.goes_on(self.list.ended, sign, set())
        elif sign and is_test(words):
            of_a_file = any(word.text in OF_FILES for word in words)
            if of_a_file:
                self.statement(words)
            self.list.goes_on(None if of_a_file else self.test(words), sign, self.unset_in(words))
        else:
            ended = None if self.list.sign and self.list.ended is None else True
            self.list.goes_on(ended, sign, set())
            self.statement(words)
        if needs:
            self.branches.open.remove(needs)

    def unset_in(self, words: list[ShellWord]) -> set[str]:
        """The variables that a test needs and that nothing sets."""
        expressions = [(inside_calculated(word.text), word) for word in words]
        texts = [self.text_of(word) if inside is None else self.with_values(inside) for inside, word in expressions]
        return decided_by(texts, (name for text in texts for name in unknowns(text)))

    def skip(self, words: list[ShellWord]) -> None:
        """Note what a statement would set, which is not run."""
        self.branches.sets(whole(word) for word in words)
        for word in words:
            matched = ASSIGNMENT.match(word.text)
            if matched is not None:
                self.script.skipped.setdefault(matched["name"], set()).update(_OPTIONS.findall(matched["value"]))

    def pattern(self, case: list[Any], words: list[ShellWord]) -> list[ShellWord]:
        """A pattern of `case`: whether it is the branch; the words behind it."""
        at = next(index for index, word in enumerate(words) if word.text == ")")
        patterns = [part for word in (*case[3], *words[:at]) for part in word.text.strip("()\"'").split("|")]
        case[3] = []
        hit = not case[2] and any(part == "*" or fnmatchcase(case[0], part) for part in patterns)
        case[1], case[2] = hit, case[2] or hit
        return words[at + 1 :]

    def test(self, words: list[ShellWord]) -> bool:
        """Whether a condition holds; a variable that nothing sets is empty in it."""
        texts: list[str] = []
        for word in words if "@" not in self.values else loops.counted(words, len(self.values["@"])):
            if word.text in ("[", "]", "[[", "]]", "then", "test", ";"):
                continue
            expression = inside_calculated(word.text)
            if expression is not None:
                texts.append("true" if condition(without_unknowns(self.with_values(expression), "0")) else "false")
            else:
                texts.append(without_unknowns(self.text_of(word)))
        return holds(texts)
