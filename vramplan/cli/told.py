"""Words beside the options that one command has for itself, and words that are two in one.

`budget 16gb` of checkpoints, `1 2 4 8` of scale, `to trl` of convert; `with and without checkpointing`, `4张3090`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import takewhile

from vramplan.cli import named
from vramplan.cli.reader import WordsReader
from vramplan.cli.spoken import setting_of
from vramplan.cli.typed import COMPARING, FILE, SCALE, STDIN, TypedOption
from vramplan.cli.vocabulary import NUMBERS, OF_UNIT
from vramplan.errors import UsageError
from vramplan.job.given.keyed import size_in
from vramplan.options.option import WORD
from vramplan.options.spellings import meaning
from vramplan.options.table import parameters

SAID = ("--budget", "--svg", "--exclude", "--emit", "--emit-to", "--format", "--print")
"""Options of a command whose value is a word, and whose name says nothing else."""
EXPLAIN, CONVERT, CHECKPOINTS = "explain", "convert", "checkpoints"
BUDGET = "--budget"  # of allocated memory in checkpoints, of money elsewhere
MONEY = re.compile(r"(usd|\$)?\d[\d.,]*[km]?(\$|usd)?", re.IGNORECASE)
SIZE_IN_A_LIST = re.compile(r"\d+(gi?b|g),(?=\S)", re.IGNORECASE)
UNITS = re.compile(r"[kmgt]i?b|usd|dollars?", re.IGNORECASE)
WITH_OR_WITHOUT = re.compile(r"(with|w/) (and|or|vs\.?) (without|w/o)", re.IGNORECASE)
NUMBERS_OF_GPUS = rf"{NUMBERS}[xX\u00d7]?"
OF_NODES = ("node", "nodes", "machines", "servers")
A_NUMBER = r"\d+(\.\d+)?[kKmMbB]?"
JOINING = ("or", "and", "vs", "vs.", "versus")
WRITERS = "vramplan.configs.writers:MODULES"

RANGE = (("from", ("to", "-")), ("between", ("and",)))
"""Words around the first and the last number of GPUs of `scale`."""
MOST_GPUS = 2**20
COUNTED_AGAIN = re.compile(r"[1-9]\d?[xX\u00d7]([A-Za-z]\w*)?")
SETTING = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)+=", re.IGNORECASE)
"""A setting with its section, as torchtune and Hydra take it behind a command."""
SO_MANY_TIMES = re.compile(r"([1-9]\d?)[xX\u00d7]")
COUNTED_NODES = re.compile(r"(?P<nodes>[1-9]\d*|[一单两二双三四八])[机台](?P<rest>.*)")
"""A number of nodes as Chinese has it, before that of all GPUs: 单机8卡, 两机16卡."""

DIGITS = {"一": 1, "单": 1, "两": 2, "二": 2, "双": 2, "三": 3, "四": 4, "八": 8}
"""Numbers before a word that counts."""
COUNTED = re.compile(
    rf"(?P<before>.*?)[xX×]?(?P<count>[1-9]\d*|[{''.join(DIGITS)}])[张卡块个枚](卡|显卡|GPU|gpu)?(?P<behind>.*)"
)
"""A number of GPUs as Chinese has it: 4张3090, 8卡, a100x8卡."""

Spoken = tuple[list[str], list[str]]  # the words, of which the first is read already, and what they stand for


def own_word(reader: WordsReader, word: str) -> Spoken | None:
    """The option that a word is of this command alone, with its value behind it. Raises UsageError."""
    behind = reader.behind()
    if not behind:
        return None
    for count in (1, 2):
        size = " ".join((word, *behind[: count - 1]))
        if size_in(size) is not None and behind[count - 1 : count] == [BUDGET[2:]]:  # 20 GiB budget
            option = BUDGET if reader.command.name == CHECKPOINTS else "--gpu"
            return [word, *behind[:count]], [f"{option}={size}"]
    small, first = word.lower(), behind[0]
    both = WITH_OR_WITHOUT.fullmatch(" ".join((word, *behind[:2])))
    if both is not None:
        return _both(reader, both[0], behind[2:])
    option = f"--{small}"
    money = option != BUDGET or reader.command.name == CHECKPOINTS or MONEY.fullmatch(first) is not None
    if (
        option in reader.declared
        and money
        and (option in SAID or (option == "--tensor" and reader.command.name == EXPLAIN))
    ):
        words = [word, first]
        value = first
        if option == "--exclude" and len(choice := setting_of(first.lower(), reader)) == 2:
            value = f"{choice[0].lstrip('-')}={choice[1]}"
        if first.isdecimal() and len(behind) > 1 and UNITS.fullmatch(behind[1]):
            words, value = [word, *behind[:2]], f"{first} {behind[1]}"
        return words, [f"{option}={value}"]
    if reader.command.name == SCALE and (small, first) == ("from", "1"):
        return [word, first], []
    return _from_to(small, word, behind) if reader.command.name == SCALE else None


def _from_to(small: str, word: str, behind: list[str]) -> Spoken | None:
    """Numbers of GPUs from one to another, each twice the one before it."""
    up = [at for at, one in enumerate(behind[:3]) if one.lower() == "up"]  # from 8 up to 64
    behind = [one for at, one in enumerate(behind) if at not in up]
    if len(behind) < 3 or not all(re.fullmatch(NUMBERS, one) and one.isdecimal() for one in (behind[0], behind[2])):
        return None
    first, last = int(behind[0]), int(behind[2])
    if not any(small == begin and behind[1].lower() in ties for begin, ties in RANGE) or not first < last <= MOST_GPUS:
        return None
    counts = [first]
    while counts[-1] * 2 < last:
        counts.append(counts[-1] * 2)
    return [word, *behind[:3], *("up" for _ in up)], [f"--gpus={','.join(map(str, (*counts, last)))}"]


def with_more(reader: WordsReader, words: Sequence[str], found: list[str]) -> tuple[list[str], list[str]]:
    """The words of a setting with those behind them that are other values of it: `rank 8 16 64`, `zero 2 or 3`.

    The words are taken from the reader; a number that counts what follows it, or a GPU, is none of them.
    """
    if len(found) == 1:
        return _with_more_numbers(reader, list(words), found)
    option, first = found
    row = parameters().get(getattr(reader.declared.get(option), "name", None) or "")
    is_number = re.fullmatch(A_NUMBER, first) is not None
    said, values = list(words), [first]
    while reader.behind():
        behind = reader.behind()
        at = int(behind[0].lower() in JOINING and len(behind) > 1)
        value, after = behind[at], behind[at : at + 2]
        if is_number:
            counted = len(after) > 1 and OF_UNIT.get(after[1].lower()) not in (None, option)
            is_one = re.fullmatch(A_NUMBER, value) is not None and not counted
            is_one = is_one and not any(reader.names_a_gpu(" ".join(after[:end]), behind=False) for end in (1, 2))
        elif row is not None and row.kind == WORD:
            text = value.lower().replace("_", "-")
            is_one = text in row.words or meaning(text, row.words, row.spellings) is not None
        else:
            is_one = False
        if not is_one:
            break
        said += reader.words[: at + 1]
        values.append(value)
        del reader.words[: at + 1]
    return said, [option, ",".join(values)]


def _with_more_numbers(reader: WordsReader, said: list[str], found: list[str]) -> tuple[list[str], list[str]]:
    """The same where the number is a part of the name: `zero 2 or 3` are --sharding zero2,zero3."""
    first = setting_of("-".join(said).lower(), reader)
    if len(first) != 2 or not said[-1].isdecimal():
        return said, found
    head, values = said[:-1], [first[1]]
    while behind := reader.behind():
        at = int(behind[0].lower() in JOINING and len(behind) > 1)
        other = setting_of("-".join((*head, behind[at])).lower(), reader) if behind[at].isdecimal() else []
        if len(other) != 2 or other[0] != first[0]:
            break
        said += reader.words[: at + 1]
        values.append(other[1])
        del reader.words[: at + 1]
    return (said, [first[0], ",".join(values)]) if len(values) > 1 else (said, found)


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
    if re.fullmatch(NUMBERS_OF_GPUS, word) is None:
        return None
    more = list(takewhile(lambda one: re.fullmatch(NUMBERS_OF_GPUS, one) is not None, reader.words))
    if reader.words[len(more) : len(more) + 1] and reader.words[len(more)].lower() in OF_NODES:
        raise UsageError(
            f"what is '{' '.join((word, *more, reader.words[len(more)]))}'?",
            hint="scale counts GPUs: nodes of 8 are --gpus 8,16,32",
        )
    del reader.words[: len(more)]
    listed = re.sub("[xX\u00d7]", "", ",".join((word, *more)))
    reader.note_reading(" ".join((word, *more)), f"--gpus {listed}")
    return listed


def beside_files(reader: WordsReader, word: str) -> TypedOption:
    """A word of a command that takes files, which may be one of its switches or a GPU where no file is called so."""
    if FILE.search(word) is None and word not in STDIN and not os.path.exists(word):
        own = reader.declared.get(f"--{word.lower()}")
        gpu = reader.declared.get("--gpu")
        if own is not None and own.is_flag:
            reader.note_reading(word, f"--{word.lower()}")
            return TypedOption(own, f"--{word.lower()}", None)
        if gpu is not None and reader.names_a_gpu(word, behind=True):
            reader.note_reading(word, f"--gpu {word}")
            return TypedOption(gpu, "--gpu", word)
    return TypedOption(None, word, None)


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


def with_thousands(words: list[str]) -> list[str]:
    """Words with the `k` of a number in it: `seq 4 k`."""
    found: list[str] = []
    for word in words:
        if word.lower() == "k" and found and found[-1].isdecimal():
            found[-1] += word
        else:
            found.append(word)
    return found


def parted(reader: WordsReader, word: str, *, is_model_named: bool) -> list[str] | None:
    """The words that stand in one: a model and a GPU with a slash between, or a number of GPUs in Chinese."""
    behind = reader.behind()
    times = SO_MANY_TIMES.fullmatch(word)
    if times and reader.command.name != SCALE and behind and COUNTED_AGAIN.fullmatch(behind[0]):
        reader.note_reading(word, f"--nodes {times[1]}")
        return [f"--nodes={times[1]}"]
    if SETTING.match(word):
        return [f"--{word}"]
    if word.isascii():
        model, slash, gpu = word.rpartition("/")
        is_one = not slash or is_model_named or reader.names_a_model(word)
        return (
            None
            if is_one or not (reader.names_a_model(model) and reader.names_a_gpu(gpu, behind=True))
            else [model, gpu]
        )
    nodes = COUNTED_NODES.fullmatch(word)
    if nodes is not None:
        count = int(DIGITS.get(nodes["nodes"], nodes["nodes"]))
        of_nodes = [f"--nodes={count}"] if count > 1 else []
        rest = COUNTED.fullmatch(nodes["rest"])
        all_gpus = int(DIGITS.get(rest["count"], rest["count"])) if rest is not None else 0
        if not nodes["rest"] or all_gpus % count:
            return of_nodes or None
        word = f"{all_gpus // count}卡{rest['behind']}" if rest is not None else nodes["rest"]
        reader.note_reading(nodes[0], f"{count} x {all_gpus // count} GPUs")
        return [*of_nodes, word]
    found = COUNTED.fullmatch(word)
    if found is None:
        return None
    said = str(found["count"])
    number = DIGITS.get(said, said)
    gpu = f"{found['before']} {found['behind']}".strip()
    if gpu:
        return [f"{number}x{gpu}"] if gpu.isascii() else None
    is_before = any(reader.names_a_gpu(" ".join(behind[:end]), behind=False) for end in range(1, len(behind) + 1))
    return [str(number), *(() if is_before else ("gpus",))]
