"""Statements one after the other: what they set, which branches they take, and the command that they run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from vramplan.configs.shell import loops, queued
from vramplan.configs.shell.branches import Branches, decided_by
from vramplan.configs.shell.commands import LAUNCHERS, is_training, named_by_caller, without_redirections
from vramplan.configs.shell.conditions import OF_FILES, CommandList, holds, without_join
from vramplan.configs.shell.expanding import (
    Argument,
    Expansion,
    shown,
    split_of,
    unknowns,
    without_unknowns,
)
from vramplan.configs.shell.numbers import condition
from vramplan.configs.shell.scanning import HERE, HEREDOC, ShellWord, inside_calculated, is_test, statements_of

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
_PLACES = re.compile(r"=\"?\$\{?\d|\$[@*]")
YES = "y"
"""What a person is taken to answer whom a script asks whether to go on, `read -p "Go on? (y/n)" ANSWER`."""

OF_PROCESSES = ("mpirun", "mpiexec", "srun")
_PROGRAM = re.compile(r"(^|/)[\w.\-]+\.py$")
_SUBSTITUTED = re.compile(r"\"?\$\((?P<inner>[^()].*)\)\"?", re.DOTALL)
"""A command whose output a variable keeps; a sum is `$((...))`."""

_GIVEN_OPTIONS = re.compile(r"\.py[\s\\]+[^)]*(--|\$)")
_OPTIONS = re.compile(r"--([a-z][\w-]*)")
_NODES = ("--num_nodes", "--num-nodes", "--nodes", "--nnodes")
_GPUS = ("--gpus", "--num_gpus", "--num-gpus", "--gpus_per_node", "--gpus-per-node")
_MODULES = ("torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch")


@dataclass
class Script:
    """What a script runs."""

    launcher: list[Argument] = field(default_factory=list)
    program: Argument | None = None
    arguments: list[Argument] = field(default_factory=list)
    values: dict[str, list[Argument]] = field(default_factory=dict)
    """Variables as they are where the program starts; as the script leaves them where it starts none."""

    runs: dict[int, str] = field(default_factory=dict)
    """Programs with many arguments or with a file of them that the script starts, by their line."""

    loops: dict[str, list[str]] = field(default_factory=dict)
    """Variables of loops, and the values that they take, of which the first is read."""

    notes: list[str] = field(default_factory=list)
    commands: list[list[Argument]] = field(default_factory=list)
    """All that the script runs, in its order."""

    held: list[dict[str, list[Argument]]] = field(default_factory=list)
    """Variables as they are where each of these runs."""

    empty: list[str] = field(default_factory=list)
    """Variables that nothing sets, where arguments were expected."""

    files: dict[str, str] = field(default_factory=dict)
    """Files that the script writes, with their text."""

    skipped: dict[str, set[str]] = field(default_factory=dict)
    """Options in variables that branches set which are not taken."""

    supposed: set[tuple[str, str]] = field(default_factory=set)
    """Variables of the command that a branch sets, each with one that its test needs and that nothing sets."""

    cut_off: list[Argument] = field(default_factory=list)
    """Options behind the command that begin a command of their own: a comment or a line's end stands before them."""

    @property
    def undecided(self) -> list[str]:
        """Options that only the caller decides: of variables that nothing sets but a branch that is not taken."""
        return sorted({option for name in self.empty for option in self.skipped.get(name, ())})


SHELLS = ("bash", "sh", "zsh")
QUEUES = ("sbatch", "qsub", "bsub")
OF_THE_SHELL = ("activate", "conda.sh", "setvars.sh", ".bashrc", ".bash_profile", ".profile", ".zshrc")
"""Scripts that set up a shell, as of virtual environments and of a login, and set no variable of a run."""


MANY = 3  # a program with more flags than these may train


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
            reader.run_all([[_placed(word, line) for word in words] for words in statements_of(inner)])
    if script.program is None:
        reader.gather()
    return script


def _before_and(item: Argument) -> list[Argument]:
    """A word `&&NAME` of another shell as the two that they are there."""
    joined = item.text.startswith("&&") and item.text != "&&"
    return [item._replace(text="&&"), item._replace(text=item.text[2:])] if joined else [item]


def words_of(text: str) -> list[Argument]:
    """The words of a command line that stands alone."""
    reader = _StatementReader(lambda path: None)
    result: list[Argument] = []
    for statement in statements_of(text):
        for word in statement:
            result += reader.expand(word)
    return result


def _functions(statements: list[list[ShellWord]]) -> tuple[list[list[ShellWord]], dict[str, list[list[ShellWord]]]]:
    """The statements without the functions that some of them call with arguments, and those functions."""
    found: dict[str, list[list[ShellWord]]] = {}
    kept: list[tuple[list[ShellWord], str]] = []
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
    called = {words[0].text for words, _ in kept if len(words) > 1 and words[0].text in found and words[1].text != "("}
    left = [words for words, inside in kept if inside not in called]
    return left, {at: [words for words in found[at] if words and words[0].text not in "{}"] for at in called}


def _whole(word: ShellWord) -> str:
    """A word as it stands, with the items of an array."""
    return word.text if word.items is None else word.text + " ".join(map(_whole, word.items))


def _placed(word: ShellWord, line: int) -> ShellWord:
    """A word of another script, at the line that calls it."""
    items = None if word.items is None else tuple(_placed(item, line) for item in word.items)
    return word._replace(line=line, items=items)


class _StatementReader(Expansion):
    """Goes through the statements once, keeps what variables hold, and finds the command."""

    def __init__(self, sourced: Callable[[str], str | None]) -> None:
        super().__init__()
        self.script = Script()
        self.sourced = sourced
        self.depth = 0
        self.functions: dict[str, list[list[ShellWord]]] = {}
        self.starting: set[str] = set()
        """Functions that started the program, of which the first call counts."""
        self.looked_for: set[str] = set()
        """Files of which the script asks whether they are there: `[ -f FILE ] && source FILE`."""
        self.branches = Branches()
        self.list = CommandList()
        self.goes_on = False
        """Whether the last command is that of the program: an option that begins the next one is cut off from it."""
        self.repeats = 0
        """How many loops over the arguments of a call are run."""
        self.left = False
        """Whether such a loop was left by `break`."""
        self.in_values: list[tuple[str, int]] = []
        """Commands whose output variables keep, and their lines: one of them trains where no other command does."""

    # ---- control flow

    def run_all(self, statements: list[list[ShellWord]]) -> None:
        """Statements in their order, and functions that are called with arguments where that is done first."""
        kept, functions = _functions(statements)
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

    def shift(self, count: int) -> None:
        """Leave out the first arguments of a call, of which the next is then `$1`."""
        left = self.values["@"][count:]
        self.values = {name: held for name, held in self.values.items() if not name.isdecimal() or name == "0"}
        self.values |= {str(place): [item] for place, item in enumerate(left, 1)} | {"@": left}

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
        self.branches.sets(_whole(word) for word in words)
        for word in words:
            matched = _ASSIGNMENT.match(word.text)
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

    # ---- statements

    def statement(self, words: list[ShellWord]) -> None:
        """An assignment, a sourced file, or a command."""
        while words and words[0].text in ("export", "declare", "local", "readonly", "do", "{", "}", "then", "time"):
            words = words[1:]
            while words and re.fullmatch(r"-[aAgilrx]+", words[0].text):
                words = words[1:]
        self.branches.sets(_whole(word) for word in words)
        assigned = 0
        for word in words:
            matched = _ASSIGNMENT.match(word.text)
            if matched is None or matched["name"] == "":
                break
            self.assign(word, matched)
            assigned += 1
        before, words = words[:assigned], words[assigned:]
        if not words:
            return
        if words[0].text == HEREDOC:
            self.handed(*words[1:])
            return
        if words[0].text == ":":  # which does nothing but to expand, as `: "${BATCH:=4}"`
            for word in words[1:]:
                self.expand(word)
            return
        if words[0].text in ("[", "[[", "test") and len(words) > 2 and words[1].text in ("-f", "-e", "-s", "-r"):
            self.looked_for.add(self.text_of(words[2]))
            return
        if words[0].text in (".", "source") and len(words) > 1:
            self.source(self.text_of(words[1]))
            return
        if words[0].text in self.functions:
            given = [argument for word in words[1:] for argument in self.expand(word)]
            program = self.script.program
            self.called(self.functions.pop(words[0].text), given)
            if self.script.program is not program:
                self.starting.add(words[0].text)
            return
        if words[0].text in self.starting and self.script.program is not None:
            self.script.runs[words[0].line] = words[0].text
            self.script.runs.setdefault(self.script.program.line, self.script.program.text)
            return
        if words[0].text == "break" and self.repeats:
            self.left = True
            return
        if words[0].text == "shift" and "@" in self.values:
            self.shift(int(words[1].text) if len(words) > 1 and words[1].text.isdecimal() else 1)
            return
        if words[0].text == "read" and len(words) > 2 and words[-2].text == HERE:
            self.fields(words[1:-2], words[-1], any(word.text.startswith("IFS=") for word in before))
            return
        if words[0].text == "read" and words[-1].text not in (HERE, "read") and any(w.text == "-p" for w in words):
            self.values[words[-1].text] = [Argument(YES, words[-1].line)]
            return
        if words[0].text == "for" and len(words) > 3 and words[2].text == "in":
            self.loop(words[1].text, [part for word in words[3:] for part in self.parts_of(word)])
            return
        if words[0].text in ("for", "while", "until", "function", "echo", "printf", "mkdir", "cd", "set", "unset"):
            return
        self.command(words)

    def assign(self, word: ShellWord, matched: re.Match[str]) -> None:
        name = matched["name"]
        inner = _SUBSTITUTED.fullmatch(matched["value"])
        if inner is not None and _GIVEN_OPTIONS.search(inner["inner"]):
            self.in_values.append((inner["inner"], word.line))
        if word.items is not None:
            value = [item for part in word.items for item in self.expand(part)]
        else:
            value = [Argument(self.text_of(ShellWord(matched["value"], word.line)), word.line)]
        if matched["more"] and name in self.values:
            old = self.values[name]
            if word.items is None and len(old) == 1:
                value = [Argument(old[0].text + value[0].text, old[0].line)]
            else:
                value = [*old, *value]
        self.values[name] = value

    def parts_of(self, word: ShellWord) -> list[Argument]:
        """What a loop takes one after the other of a word: an item of `"${ITEMS[@]}"` may have blanks."""
        found = self.expand(word)
        return found if word.text.startswith('"') else [part for item in found for part in split_of(item)]

    def loop(self, name: str, parts: list[Argument]) -> None:
        """Take the first of the values over which a loop goes, where the text says them."""
        if parts and not unknowns(parts[0].text) and re.fullmatch(r"[\w./+,: -]+", parts[0].text):
            self.values[name] = [parts[0]]
            if len(parts) > 1:
                self.script.loops.setdefault(name, [part.text for part in parts])

    def fields(self, names: list[ShellWord], line: ShellWord, apart: bool) -> None:
        """`IFS=',' read -r TP PP <<< "$SIZES"`: the parts of a text; the last name takes what is left.

        `apart`: the statement says at what the text is cut; else it is at blanks.
        """
        text = self.text_of(line)
        if unknowns(text):
            return
        cut = self.values["IFS"][0].text if apart else ""
        held = [word.text for word in names if not word.text.startswith("-")]
        parts = re.split(f"[{re.escape(cut)}]" if cut.strip() else r"\s+", text.strip(), maxsplit=max(0, len(held) - 1))
        for name, part in zip(held, parts, strict=False):
            self.values[name] = [Argument(part, line.line)]

    def handed(self, by: ShellWord, target: ShellWord, lines: ShellWord, quote: ShellWord) -> None:
        """Lines that a command writes to a file, or that a shell or a queue runs."""
        text = lines.text if quote.text else self.lines_of(lines)
        if by.text in ("cat", "tee") and target.text:
            self.script.files[self.text_of(target)] = text
        elif by.text.rsplit("/", 1)[-1] in (*SHELLS, *QUEUES):
            self.inner(text, lines.line)

    def inner(self, text: str, line: int) -> bool:
        """Run a script within this one; whether there was room for it."""
        if self.depth >= 5:
            return False
        self.depth += 1
        self.run_all([[_placed(word, line) for word in words] for words in statements_of(text)])
        self.depth -= 1
        return True

    def written(self, arguments: list[Argument]) -> bool:
        """Run a script that this one has written, `bash run.sh`, `sbatch run.sh` or `./run.sh`."""
        for place, item in enumerate(arguments):
            text = self.script.files.get(item.text, self.script.files.get(item.text.removeprefix("./")))
            before = arguments[place - 1].text.rsplit("/", 1)[-1] if place else ""
            if text is not None and (not place or before in (*SHELLS, *QUEUES) or before.startswith("-")):
                starts = arguments[0].text.rsplit("/", 1)[-1]
                return (not place or starts in (*SHELLS, *QUEUES, "srun")) and self.inner(text, arguments[0].line)
        return False

    def source(self, path: str) -> None:
        text = self.sourced(shown(path)) if self.depth < 5 else None
        if text is None:
            last = shown(path).rsplit("/", 1)[-1]
            if last in OF_THE_SHELL or path in self.looked_for:
                return
            self.script.notes.append(f"it sources {last}, which is not here")
            return
        self.depth += 1
        self.run_all(statements_of(text))
        self.depth -= 1

    def command(self, words: list[ShellWord]) -> None:
        self.goes_on = False
        arguments = [argument for word in words for argument in self.expand(word)]
        if not arguments:
            return
        if self.another(arguments) or self.shell_of(arguments) or self.written(arguments):
            return
        first = arguments[0].text.rsplit("/", 1)[-1]
        if first in ("bash", "sh", "eval", "nohup", "run_cmd", "exec"):
            arguments = [part for item in arguments[1:] for part in split_of(item)]
        arguments = self.inside(without_redirections(arguments))
        self.script.commands.append(arguments)
        self.script.held.append(dict(self.values))
        at = next((index for index, item in enumerate(arguments) if _PROGRAM.search(item.text)), None)
        if at is None:
            at = named_by_caller(arguments)
        if at is None:
            module = next((i for i, item in enumerate(arguments) if item.text == "-m"), None)
            if module is None or module + 1 >= len(arguments) or arguments[module + 1].text in _MODULES:
                return
            at = module + 1
        flags = [item for item in arguments[at + 1 :] if item.text.startswith("-")]
        if len(flags) > MANY or any(item.text.partition("=")[0] == "--config" for item in flags):
            self.script.runs[arguments[at].line] = arguments[at].text
        if self.script.program is not None and len(arguments) - at < len(self.script.arguments):
            return  # a helper beside the training
        held = self.script.program
        prepared = held is not None and not is_training(held.text, self.script.launcher)
        if held is None or len(flags) > MANY or (prepared and is_training(arguments[at].text, arguments[:at])):
            self.script.launcher = arguments[:at]
            self.script.program = arguments[at]
            self.script.arguments = arguments[at + 1 :]
            self.script.values = dict(self.values)
            self.script.supposed = self.branches.needed(_whole(word) for word in words)
            self.script.cut_off, self.goes_on = [], True

    def shell_of(self, arguments: list[Argument]) -> bool:
        """`srun ... bash -c '$LAUNCHER $CMD'`: what that shell runs, which knows the variables that are exported.

        A text in double quotes has their values already.
        """
        for place in range(len(arguments) - 2):
            shell, flag, text = (item.text for item in arguments[place : place + 3])
            if (
                shell.rsplit("/", 1)[-1] in ("bash", "sh")
                and re.fullmatch(r"-\w*c", flag)
                and re.search(r"\$|\S\s+\S", text)
            ):
                break
        else:
            return False
        return self.inner(text, arguments[place + 2].line)

    def another(self, arguments: list[Argument]) -> bool:
        """`bash run.sh a b`: run the script of that name with these arguments, where it reads them by their place.

        A launcher of processes may stand before it: `mpirun -np 8 run.sh a b`.
        """
        starts = [at for at, item in enumerate(arguments) if item.text.endswith(".sh")]
        by_launcher = starts and arguments[0].text.rsplit("/", 1)[-1] in OF_PROCESSES
        outer = arguments[: starts[0]] if by_launcher else []
        given = arguments[len(outer) :]
        given = given[1:] if given[0].text in ("bash", "sh", "exec", "nohup") else given
        if not given or not given[0].text.endswith(".sh") or len(given) < 2 or self.depth >= 5:
            return False
        text = self.sourced(given[0].text.rsplit("/", 1)[-1])
        if text is None or not _PLACES.search(text) or re.search(r"\bgetopts\b", text):
            return False
        self.depth, before = self.depth + 1, self.script.program
        self.called([[_placed(word, given[0].line) for word in words] for words in statements_of(text)], given[1:])
        self.depth -= 1
        if self.script.program is not before:
            self.script.launcher = [*outer, *self.script.launcher]
        return True

    def inside(self, arguments: list[Argument]) -> list[Argument]:
        """The command behind `--` of a program that starts others on a cluster, with the processes that it starts."""
        texts = [item.text for item in arguments]
        if "--" not in texts:
            return arguments
        at = texts.index("--")
        outer, inner = texts[:at], [part for item in arguments[at + 1 :] for part in _before_and(item)]
        while "&&" in (item.text for item in inner):  # handed on as a word, for the shell of the cluster
            inner = inner[[item.text for item in inner].index("&&") + 1 :]
        starts = inner[0].text.rsplit("/", 1)[-1] in LAUNCHERS if inner else False
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
            parts = [part for item in value for part in split_of(item)]
            if not any(part.text.startswith("--") for part in parts):
                continue
            text = " ".join(part.text for part in parts)
            if text not in seen:
                seen.add(text)
                self.script.arguments += parts
