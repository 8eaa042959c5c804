"""A statement alone: what it sets, reads and writes, the files that it takes in, and the functions that it calls."""

from __future__ import annotations

import re
from collections.abc import Callable

from vramplan.configs.shell.expanding import CLOSE, OPEN, Argument, split_of, unknowns
from vramplan.configs.shell.scanning import HERE, HEREDOC, ShellWord
from vramplan.configs.shell.script import whole
from vramplan.configs.shell.starting import QUEUES, SHELLS, StartedCommands

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
YES = "y"
"""What a person is taken to answer whom a script asks whether to go on, `read -p "Go on? (y/n)" ANSWER`."""

FILLED = ("mapfile", "readarray")
"""Commands that fill an array with the lines of a file or of another command's output, which nobody runs."""

_SUBSTITUTED = re.compile(r"\"?\$\((?P<inner>[^()].*)\)\"?", re.DOTALL)
"""A command whose output a variable keeps; a sum is `$((...))`."""

_GIVEN_OPTIONS = re.compile(r"\.py[\s\\]+[^)]*(--|\$)")


class Statements(StartedCommands):
    """Runs one statement."""

    def __init__(self, sourced: Callable[[str], str | None]) -> None:
        super().__init__(sourced)
        self.functions: dict[str, list[list[ShellWord]]] = {}
        self.starting: set[str] = set()
        """Functions that started the program, of which the first call counts."""
        self.repeats = 0
        """How many loops over the arguments of a call are run."""
        self.left = False
        """Whether such a loop was left by `break`."""
        self.in_values: list[tuple[str, int]] = []
        """Commands whose output variables keep, and their lines: one of them trains where no other command does."""

    def shift(self, count: int) -> None:
        """Leave out the first arguments of a call, of which the next is then `$1`."""
        left = self.values["@"][count:]
        self.values = {name: held for name, held in self.values.items() if not name.isdecimal() or name == "0"}
        self.values |= {str(place): [item] for place, item in enumerate(left, 1)} | {"@": left}

    def statement(self, words: list[ShellWord]) -> None:
        """An assignment, a sourced file, or a command."""
        while words and words[0].text in ("export", "declare", "local", "readonly", "do", "{", "}", "then", "time"):
            words = words[1:]
            while words and re.fullmatch(r"-[aAgilrx]+", words[0].text):
                words = words[1:]
        self.branches.sets(whole(word) for word in words)
        assigned = 0
        for word in words:
            matched = ASSIGNMENT.match(word.text)
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
        if words[0].text in FILLED:
            name = next((word.text for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word.text)), "MAPFILE")
            self.values[name] = [Argument(f"{OPEN}{name}{CLOSE}", words[0].line)]
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
        """Set a variable, or add to it."""
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
