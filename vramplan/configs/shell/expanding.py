"""What a word becomes as the shell hands it on: variables replaced, quotes taken away, unquoted results split."""

from __future__ import annotations

import re
from itertools import pairwise

from vramplan.configs.shell.numbers import arithmetic
from vramplan.configs.shell.outputs import changed, keeps_words, output_of
from vramplan.configs.shell.scanning import ShellWord, statements_of
from vramplan.tuples import NamedTuple

OPEN, CLOSE = "\ue000", "\ue001"  # around the name of an unknown, inside an expanded text
MAX_TEXT = 200_000  # characters of one expanded word

_UNKNOWN = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
_BLANKS = re.compile(f"[ \\t\\n]+(?![^{OPEN}]*{CLOSE})")  # not those inside an unknown
_ECHO = re.compile(
    r"\s*(?:(?P<test>\[\[?\s.*?\s\]\]?|test\s.*?)\s*&&\s*)?echo\s+(?P<text>[^|;&]*?)(?:\|\|\s*echo\s+(?P<other>[^|;&]*))?\s*",
    re.DOTALL,
)


_FOLDER = re.compile(
    r"""\s*(cd\s+(--\s+)?"?\$\(\s*dirname\s+(--\s+)?"?\$(0|\{?BASH_SOURCE(\[0\])?\}?)"?\s*\)"?\s*(&?>\s*/dev/null\s*)?"""
    r"""(&&|;)\s*pwd(\s+-P)?|dirname\s+(--\s+)?"?\$(0|\{?BASH_SOURCE(\[0\])?\}?)"?)\s*"""
)
"""The command that tells a script in which folder it is."""


_COUNTED = re.compile(
    r"""\s*echo\s+(?P<text>[^|;&]*?)\s*\|\s*(awk\s+-F\s*['"]?,['"]?\s+['"]\{\s*print\s+NF;?\s*\}['"]"""
    r"""|tr\s+['"]?,['"]?\s+['"]\\n['"]\s*\|\s*wc\s+-l)\s*"""
)
"""A command that counts what stands between commas, as the devices of `CUDA_VISIBLE_DEVICES`."""

_OF_SHELL = re.compile(r"\(|[\w@*#?$!-]+(\[[\w@*]+\])?([:#%/^,].*)?$")
"""What stands behind `$`: a name, with what is done to it, or a command."""


class Argument(NamedTuple):
    """One expanded word of the command, and where it stands."""

    text: str
    line: int


def unknowns(text: str) -> list[str]:
    """The names of what only the caller knows in an expanded text."""
    return _UNKNOWN.findall(text)


def without_unknowns(text: str, unset: str = "") -> str:
    """An expanded text as the shell has it where nothing sets them: empty, and zero in an expression of numbers."""
    return _UNKNOWN.sub(unset, text)


def shown(text: str) -> str:
    """An expanded text with its unknowns as variables; an expression of Python stays as it is."""
    return _UNKNOWN.sub(lambda found: f"${found[1]}" if _OF_SHELL.match(found[1]) else found[1], text)


class Expansion:
    """What variables hold, and words with them."""

    def __init__(self) -> None:
        self.values: dict[str, list[Argument]] = {}
        self.line = 0  # of the word that is expanded

    def test(self, words: list[ShellWord]) -> bool:
        """Whether a condition holds, as far as it can be known."""
        raise NotImplementedError

    def text_of(self, word: ShellWord) -> str:
        """A word as one text."""
        return " ".join(item.text for item in self.expand(word, split=False))

    def expand(self, word: ShellWord, split: bool = True) -> list[Argument]:
        """A word as the shell hands it on: without quotes, variables replaced, unquoted results split."""
        pieces: list[tuple[str, bool]] = []  # text, and whether it may be split
        text, at = word.text, 0
        self.line = word.line
        places = re.fullmatch(r'"?\$\{!(\w+)\[[@*]\]\}"?', text)
        if places:  # the places of an array
            return [Argument(str(at), word.line) for at in range(len(self.values.get(places[1], ())))]
        whole = re.fullmatch(r'"?\$\{(\w+)\[[@*]\]\}"?', text)
        if whole:
            held = self.values.get(whole[1])
            if held is None:
                return []
            return list(held) if text.startswith('"') else [part for item in held for part in split_of(item)]
        if "@" in self.values and re.fullmatch(r'"?\$\{?[@*]\}?"?', text):
            return list(self.values["@"])
        whole = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", text)
        if whole and split and whole[1] in self.values:
            return [part for item in self.values[whole[1]] for part in split_of(item)]
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
        """What stands in double quotes that begin at a place, and where they end."""
        out = ""
        while at < len(text) and text[at] != '"':
            if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
                out += "" if text[at + 1] == "\n" else text[at + 1]
                at += 2
            elif text[at] == "$":
                value, at = self.dollar(text, at)
                out += value
            elif text[at] == "`":
                end = text.find("`", at + 1)
                end = len(text) if end < 0 else end
                out += f"{OPEN}{text[at : end + 1]}{CLOSE}"
                at = end + 1
            else:
                out += text[at]
                at += 1
        return out, at + 1

    def lines_of(self, word: ShellWord) -> str:
        """Lines that are handed on, with their variables replaced; a quote is a letter in them."""
        text, at, out = word.text, 0, ""
        self.line = word.line
        while at < len(text):
            if text[at] == "\\" and text[at + 1 : at + 2] in ("$", "`", "\\"):
                out += text[at + 1]
                at += 2
            elif text[at] == "$":
                value, at = self.dollar(text, at)
                out += value
            else:
                out += text[at]
                at += 1
        return out[:MAX_TEXT]

    def dollar(self, text: str, at: int) -> tuple[str, int]:
        """What `$...` at a place stands for, and where it ends."""
        if text.startswith("$((", at):
            end = _closing(text, at + 1, "(", ")")
            return self.arithmetic(text[at + 3 : end - 1]), end + 1
        if text.startswith("$[", at):  # an older spelling of `$((...))`
            end = _closing(text, at + 1, "[", "]")
            return self.arithmetic(text[at + 2 : end]), end + 1
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
        """`$([ TEST ] && echo TEXT || echo OTHER)`, and the folder of the script; any other command is unknown."""
        if _FOLDER.fullmatch(inside):
            return "."
        counted = _COUNTED.fullmatch(inside)
        if counted is not None:
            text = " ".join(self.text_of(word) for line in statements_of(counted["text"]) for word in line)
            return f"{OPEN}$({inside}){CLOSE}" if unknowns(text) else str(text.count(",") + 1)
        found = _ECHO.fullmatch(inside)
        if found is None or (found["other"] is not None and found["test"] is None):
            printed = output_of(inside, self.commands_of)
            hidden = printed is None or (unknowns(printed) and not keeps_words(inside))
            return f"{OPEN}$({inside}){CLOSE}" if hidden or printed is None else printed
        holds = found["test"] is None or self.test([word for words in statements_of(found["test"]) for word in words])
        words = [word for line in statements_of((found["text"] if holds else found["other"]) or "") for word in line]
        return " ".join(self.text_of(word) for word in words)

    def commands_of(self, text: str) -> list[list[str]]:
        """The words of each command of a text, with their variables replaced."""
        return [[item.text for word in words for item in self.expand(word)] for words in statements_of(text)]

    def braced(self, inside: str) -> str:
        """What `${...}` stands for: a variable, its default, or what is known of neither."""
        matched = re.fullmatch(r"(?P<name>\w+)(\[(?P<at>[@*]|[^\]]+)\])?(?P<rest>.*)", inside, re.DOTALL)
        if matched is None:
            return f"{OPEN}{inside}{CLOSE}"
        name, rest = matched["name"], matched["rest"]
        if matched["at"] not in (None, "@", "*") and not rest:
            return self.item(name, matched["at"])
        sign = re.match(r":?[-=]", rest)
        if sign:
            default, line = rest[sign.end() :], self.line
            held = self.values.get(name)
            if held is not None and (not rest.startswith(":") or any(item.text for item in held)):
                return self.value(name)
            text = self.text_of(ShellWord(default, line)) if default else ""
            if sign[0].endswith("="):
                self.values[name] = [Argument(text, line)]
            return text
        if rest.startswith((":+", "+")):
            held = self.values.get(name)
            return self.text_of(ShellWord(rest.lstrip(":+"), 0)) if held and any(item.text for item in held) else ""
        value = self.value(name)
        if rest.startswith((":?", "?")):  # the script ends there unless its caller sets the variable
            return value or f"{OPEN}{name}{CLOSE}"
        if rest.startswith(("%", "#", "/", ":", ",", "^")):
            new = None if unknowns(value) else changed(value, rest)
            return value if unknowns(value) else f"{OPEN}{inside}{CLOSE}" if new is None else new
        return value

    def item(self, name: str, place: str) -> str:
        """What an array holds at a place, which may be a sum; an unknown where nothing says it."""
        held, at = self.values.get(name), self.arithmetic(place.strip("\"'"))
        if held is None or not re.fullmatch(r"-?\d+", at) or not -len(held) <= int(at) < len(held):
            return f"{OPEN}{name}[{place}]{CLOSE}"
        return held[int(at)].text

    def value(self, name: str) -> str:
        """What a variable holds as one text; an unknown of its name where nothing sets it."""
        held = self.values.get(name)
        if held is None:
            return f"{OPEN}{name}{CLOSE}"
        return " ".join(item.text for item in held)

    def arithmetic(self, text: str) -> str:
        """The value of `$((...))`, or the unknown in it."""
        inner = re.sub(r"\$\[([^\[\]]*)\]", lambda found: self.arithmetic(found[1]), text)
        if unknowns(inner):
            return f"{OPEN}{unknowns(inner)[0]}{CLOSE}"
        names = self.with_values(inner)
        if unknowns(names):
            return f"{OPEN}{unknowns(names)[0]}{CLOSE}"
        value = arithmetic(names)
        return f"{OPEN}{text.strip()}{CLOSE}" if value is None else str(int(value))

    def with_values(self, text: str) -> str:
        """An expression of numbers with what its variables hold, which need no `$` in it."""
        names = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: self.value(found[1]), text)
        return re.sub(r"\$\{?(\d+)\}?", lambda found: self.value(found[1]), names)


def commands_among(words: list[Argument]) -> tuple[str, ...]:
    """The commands whose output stands where arguments do, and which nobody runs."""
    behind = (word.text for before, word in pairwise(words) if not before.text.startswith("-"))
    whole = filter(None, (_UNKNOWN.fullmatch(text.strip()) for text in behind))
    return tuple(found[1] for found in whole if found[1].startswith(("$(", "`")))


def split_of(item: Argument) -> list[Argument]:
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
