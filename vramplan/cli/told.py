"""Words beside the options that one command has for itself, and words that are two in one.

`budget 16gb` of checkpoints, `1 2 4 8` of scale, `to trl` of convert; `with and without checkpointing`, `4张3090`.
"""

from __future__ import annotations

import re
from itertools import takewhile

from vramplan.cli import named
from vramplan.cli.reader import WordsReader
from vramplan.cli.spoken import setting_of
from vramplan.cli.typed import COMPARING, SCALE, TypedOption
from vramplan.cli.vocabulary import NUMBERS
from vramplan.errors import UsageError

SAID = ("--budget", "--svg", "--exclude", "--emit", "--emit-to", "--format", "--print")
"""Options of a command whose value is a word, and whose name says nothing else."""
EXPLAIN, CONVERT = "explain", "convert"
SIZE_IN_A_LIST = re.compile(r"\d+(gi?b|g),(?=\S)", re.IGNORECASE)
UNITS = re.compile(r"[kmgt]i?b|usd|dollars?", re.IGNORECASE)
WITH_OR_WITHOUT = re.compile(r"(with|w/) (and|or|vs\.?) (without|w/o)", re.IGNORECASE)
WRITERS = "vramplan.configs.writers:MODULES"

DIGITS = {"一": 1, "单": 1, "两": 2, "二": 2, "双": 2, "三": 3, "四": 4, "八": 8}
"""Numbers before a word that counts."""
COUNTED = re.compile(
    rf"(?P<before>.*?)[xX×]?(?P<count>[1-9]\d*|[{''.join(DIGITS)}])[张卡块个](卡|显卡|GPU|gpu)?(?P<behind>.*)"
)
"""A number of GPUs as Chinese has it: 4张3090, 8卡, a100x8卡."""

Spoken = tuple[list[str], list[str]]  # the words, of which the first is read already, and what they stand for


def own_word(reader: WordsReader, word: str) -> Spoken | None:
    """The option that a word is of this command alone, with its value behind it. Raises UsageError."""
    behind = reader.behind()
    if not behind:
        return None
    small, first = word.lower(), behind[0]
    both = WITH_OR_WITHOUT.fullmatch(" ".join((word, *behind[:2])))
    if both is not None:
        return _both(reader, both[0], behind[2:])
    option = f"--{small}"
    if option in reader.declared and (option in SAID or (option == "--tensor" and reader.command.name == EXPLAIN)):
        words = [word, first]
        value = first
        if first.isdecimal() and len(behind) > 1 and UNITS.fullmatch(behind[1]):
            words, value = [word, *behind[:2]], f"{first} {behind[1]}"
        return words, [f"{option}={value}"]
    if reader.command.name == SCALE and (small, first) == ("from", "1"):
        return [word, first], []
    return None


def _both(reader: WordsReader, said: str, behind: list[str]) -> Spoken:
    """A technique that is turned on in one run and off in another."""
    for count in range(len(behind), 0, -1):
        name = "-".join(behind[:count]).lower().replace("_", "-")
        on, off = setting_of(name, reader), setting_of(f"no-{name}", reader)
        if len(on) == len(off) == 2 and on[0] == off[0] and reader.command.name in COMPARING:
            return [*said.split(), *behind[:count]], [on[0], f"{off[1]},{on[1]}"]
    hint = "one run has one setting: say which"
    if reader.command.name not in COMPARING:
        hint += "; vramplan compare takes both, where an option has two words for it"
    raise UsageError(f"what is {said!r}?", hint=hint)


def numbers(reader: WordsReader, word: str) -> str | None:
    """The numbers of GPUs of `scale`, with those behind the first one; None where it is no number."""
    if re.fullmatch(NUMBERS, word) is None:
        return None
    more = list(takewhile(lambda one: re.fullmatch(NUMBERS, one) is not None, reader.words))
    del reader.words[: len(more)]
    listed = ",".join((word, *more))
    reader.read_so.append(f"{' '.join((word, *more))!r} {'' if reader.read_so else 'is read '}as --gpus {listed}")
    return listed


def program(reader: WordsReader, word: str, found: list[TypedOption]) -> list[str] | None:
    """The program that a file is written for, or is of, where a word of `convert` names one."""
    behind = reader.behind()[:1]
    option = f"--{word.lower()}"
    if option in ("--to", "--from") and behind and behind[0].lower() in named(WRITERS):
        return [f"{option}={reader.words.pop(0).lower()}"]
    given = {one.name or one.spelling.partition("=")[0] for one in found}
    return [f"--to={word.lower()}"] if word.lower() in named(WRITERS) and "--to" not in given else None


def with_sizes_apart(words: list[str]) -> list[str]:
    """Words with a size by itself that ends the name of a GPU before it: `a100 40gb,h100` are two."""
    found: list[str] = []
    for word in words:
        is_value = not found or found[-1].startswith("-")
        parts = None if is_value else SIZE_IN_A_LIST.match(word)
        found += [word] if parts is None else [parts[0], word[parts.end() :]]
    return found


def parted(reader: WordsReader, word: str, *, is_model_named: bool) -> list[str] | None:
    """The words that stand in one: a model and a GPU with a slash between, or a number of GPUs in Chinese."""
    if word.isascii():
        model, slash, gpu = word.rpartition("/")
        is_one = not slash or is_model_named or reader.names_a_model(word)
        return (
            None
            if is_one or not (reader.names_a_model(model) and reader.names_a_gpu(gpu, behind=True))
            else [model, gpu]
        )
    found = COUNTED.fullmatch(word)
    if found is None:
        return None
    count = DIGITS.get(found["count"], found["count"])
    gpu = f"{found['before']} {found['behind']}".strip()
    if gpu:
        return [f"{count}x{gpu}"] if gpu.isascii() else None
    behind = reader.behind()
    is_before = any(reader.names_a_gpu(" ".join(behind[:end]), behind=False) for end in range(1, len(behind) + 1))
    return [str(count), *(() if is_before else ("gpus",))]
