"""What somebody means by an option or a command that there is not: only a mistake reads this."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, takewhile
from typing import Any

from vramplan.catalog.locate import Kind, aliases_by_name, shipped_called, slug
from vramplan.catalog.unfound import SIZES_OF_ONE_FAMILY
from vramplan.cli import named
from vramplan.cli.hints import ALWAYS_SO, COMMANDS, NO_EFFECT, OF_EFFECT, OPTIONS, SAID_BY_A_VALUE, SWITCHES
from vramplan.cli.reader import TIMES, WordsReader
from vramplan.cli.typed import LEFT_OPEN, names_of, other_names, shortcuts
from vramplan.configs.programs.trainer import ARGUMENTS
from vramplan.errors import UsageError
from vramplan.options.flags import quoted
from vramplan.options.option import COUNT, WORD, Option
from vramplan.options.shortcuts import FORMATS
from vramplan.options.spellings import OTHER_RUNTIMES, bare
from vramplan.options.table import TABLE, has_the_word, parameters

MOST_VALUES = 3  # named instead of an option that is a value
MOST_COMMANDS = 6  # named instead of an option that they have and this one has not

KINDS = ("gpus", "models", "runtimes", "profiles")
"""Commands that list what there is."""

OF_GATES = ("check", "validate")
SUBJECT = ("m", "g", "model", "gpu")
OF_FILES = (
    "a file has the jobs; `vramplan fit FILE#NAME -g G` judges one of them on another GPU, and "
    "`vramplan fit -m M -g G --strict` is a gate for one job without a file"
)


def option(name: str, command: Any) -> str | None:
    """What to do instead of an option that the command does not have; None where nothing better is known."""
    word = name.lstrip("-")
    declared = {one for parameter in command.params for one in parameter.opts}
    takes_files = "--model" not in declared and any(one.param_type_name == "argument" for one in command.params)
    if takes_files and command.name in OF_GATES and (word in SUBJECT or _has_it("fit", f"--{word}")):
        return OF_FILES
    if command.name == "scale" and word in FIRST_ROW:
        return NUMBERS
    for meant, words in OPTIONS.items():
        if word in words:
            first = meant.partition(" ")[0]
            if not first.startswith("--") or first in declared:
                return meant
    if "--runtime" in declared and (runtime := _runtime(word)) is not None:
        return f"--runtime {runtime}"
    if "--runtime" in declared and word.removeprefix("use-") in OTHER_RUNTIMES:
        return OTHER_RUNTIMES[word.removeprefix("use-")]
    if command.name in OF_GATES and word.startswith(LIMITS):
        return next(meant for meant, words in OPTIONS.items() if "threshold" in words)
    return _value(word, declared)


FIRST_ROW = ("min-gpus", "start", "begin", "from-gpus", "min-devices")
NUMBERS = "it begins with as few GPUs as hold the run; --gpus 8,16,32 names the numbers"
LIMITS = ("max-", "min-", "limit", "fail", "warn")
"""What the option of a gate begins with that sets a limit."""


def _has_it(called: str, name: str) -> bool:
    """Whether a command has an option, under any name."""
    found = named("vramplan.cli.commands:build")(called)
    return name in {**names_of(found), **other_names(found), **shortcuts(found)}


def refuse_several(parameter: Any, spelling: str, given: str) -> None:
    """Refuse a list of numbers for an option that takes one. Raises UsageError."""
    row = parameters().get(parameter.name)
    if row is not None and row.kind == COUNT:
        raise UsageError(
            f"takes one number, and {given} is a list", key=spelling, hint="`vramplan compare` takes a list"
        )


def one_setting(name: str, command: Any) -> tuple[str, str] | None:
    """The option and the value that an option without a value can only mean: `--dpo` is `--loss dpo`.

    None where it may mean several things, or needs a value.
    """
    word, declared = name.lstrip("-"), {one for parameter in command.params for one in parameter.opts}
    if (command.name == "scale" and word in FIRST_ROW) or word in NO_EFFECT:
        return None
    for meant, words in OPTIONS.items():
        if word in words:
            setting = meant.split(" ")
            is_one = len(setting) == 2 and setting[0] in declared and setting[1].islower()
            return (setting[0], setting[1]) if is_one else None
    if "--runtime" in declared and (runtime := _runtime(word)) is not None:
        return "--runtime", runtime
    word = word.removeprefix("use-")
    found = [row for row, one in _valued(word, declared) if bare(word) == one]
    if len(found) != 1 or not found[0].everyday or found[0].kind != WORD:
        return None
    return found[0].option, bare(word)


def without_value(parameter: Any, spelling: str) -> str:
    """The error for an option without its value, with the values that there are."""
    row = parameters().get(parameter.name)
    known = getattr(row, "words", ()) if row is not None else ()
    hint = f" ({', '.join(known)})" if known else ""
    as_format = FORMATS.get(spelling)
    if as_format is not None:  # of a command that writes a file of it
        hint = f" ({' '.join(as_format)} prints it)"
    return f"Option {spelling!r} requires an argument{hint}."


def without_effect(name: str, behind: str | None) -> tuple[str, bool] | None:
    """What is said of an option that changes nothing, and whether the word `behind` it is its value.

    None where it may change something. What is said of those that change neither memory nor time is empty: they are
    told of together.
    """
    word = name.lstrip("-")
    if word in ALWAYS_SO:
        takes = behind is not None and (word in SAID_BY_A_VALUE or behind.lower() in TRUTHS)
        return ALWAYS_SO[word], takes
    if word in OF_EFFECT or not (word in NO_EFFECT or word.replace("-", "_") in ARGUMENTS or _is_idle_in_a_file(word)):
        return None
    if any(word in words for words in OPTIONS.values()):
        return None
    if behind is None or re.match(r"-\D", behind):
        return "", False
    return "", behind.lower() in TRUTHS or word not in SWITCHES


def without_section(reader: Any, word: str) -> str:
    """The option of a setting that has the section of its file in front: --training.seq_len is --seq_len.

    A name of one word, as in --training.steps, may be another thing in each section. Raises UsageError.
    """
    name, equals, value = word.lstrip("-").partition("=")
    section, _, last = name.rpartition(".")
    for one in (f"--{section.rpartition('.')[2]}-{last}", f"--{last}"):
        plain = one.lower().replace("_", "-")
        is_known = (
            plain in reader.declared or plain in other_names(reader.command) or plain in shortcuts(reader.command)
        )
        is_one_word = "-" not in plain.lstrip("-") or plain in LEFT_OPEN
        if not is_one_word and (is_known or without_effect(plain, "1") is not None):
            reader.tell(f"--{name} is read as {one}")
            return f"{one}{equals}{value}"
    hint = "give a section's setting as an option of this command, or the whole command that has it behind --"
    raise UsageError(f"what is {word!r}?", hint=hint)


KEYS_OF_FILES = (
    "vramplan.configs.programs.arguments.keys:WITHOUT_EFFECT",
    "vramplan.configs.programs.llama_factory.keys:WITHOUT_EFFECT",
    "vramplan.configs.programs.axolotl.keys:WITHOUT_EFFECT",
    "vramplan.configs.programs.ms_swift.keys:WITHOUT_EFFECT",
    "vramplan.configs.programs.megatron.keys:WITHOUT_EFFECT",
)
"""Keys that change nothing in the files of programs whose command lines have the same names."""


def _is_idle_in_a_file(word: str) -> bool:
    """Whether the files of a training program have a key of this name, of several words, that changes nothing."""
    keys = (word, word.replace("-", "_"))
    return "-" in word and any(key in named(table) for table in KEYS_OF_FILES for key in keys)


TRUTHS = ("true", "false", "yes", "no", "on", "off", "1", "0")


def elsewhere(name: str, above: Any) -> str | None:
    """The commands that have an option, of the group `above` them; None where none has it."""
    if above is None:
        return None
    group = above.command
    having = [
        one
        for one in group.list_commands(above)
        for parameter in group.get_command(above, one).params
        if name in (*parameter.opts, *parameter.secondary_opts)
    ]
    if not having or len(having) > MOST_COMMANDS:
        return None
    *most, last = having
    return f"vramplan {', '.join(most) + ' and ' if most else ''}{last} {'have' if most else 'has'} it"


def _value(word: str, declared: set[str]) -> str | None:
    """The options that have the word among their values, be it as another spelling or as the beginning of one.

    Where everyday options have it, the rest are not named.
    """
    found = _valued(word, declared)
    named = [one for one in found if one[0].everyday] or found
    return " or ".join(f"{row.option} {one}" for row, one in named[:MOST_VALUES]) or None


def _valued(word: str, declared: set[str]) -> list[tuple[Option, str]]:
    """The options that have the word among their values, and the value."""
    word = bare(word)
    rows = [row for row in TABLE if row.option in declared and row.words]
    return (
        [(row, word) for row in rows if word in row.words]
        or [(row, word) for row in rows if word in (row.spellings or {})]
        or [(row, one) for row in rows for one in row.words if one.startswith((f"{word}-", f"{word}:"))]
    )


def _runtime(word: str) -> str | None:
    """The program that is called so."""
    return shipped_called("runtimes", word.removeprefix("use-"))


LISTED = ("list", "ls", "show", "info", "describe", "search", "find", "get")
"""What people write before what they want to see."""


ASKED = (
    (r"how many .*gpus?|gpus? .*(need|required)", "`vramplan fit -m M -g G --gpus auto` finds the fewest GPUs"),
    (r"(longest|max\w*|how long).*(seq|context|ctx|tokens)", "`vramplan fit -m M -g G --max sequence`"),
    (r"batch", "`vramplan fit -m M -g G --max micro-batch`"),
    (r"(which|largest|biggest) .*(model|fits?)", "`vramplan compare -m A,B,C -g G` says which of several models fit"),
    (r"cheap|cost|price", "`vramplan compare -m M -g all` finds the cheapest GPU that fits"),
    (r"fast|best", "`vramplan plan -m M -g G` searches for the fastest way"),
)
"""What the words of a question are about, and the command that answers it."""
BEGINS_A_QUESTION = re.compile(
    r"(how|what|which|can|could|will|would|does|do|is|i|should|longest|largest|biggest|cheapest|fastest|best)\s"
)


def _question(text: str) -> str | None:
    """The command that answers what was asked in plain words, where they say what it is about."""
    if BEGINS_A_QUESTION.match(text) is None:
        return None
    return next((meant for about, meant in ASKED if re.search(about, text)), None)


TIES = ("and", "vs", "vs.", "versus", "or")
"""Words between two that are compared, which no model and no GPU is called."""


def second_word(model: str, word: str, behind: list[str], command_name: str) -> str | None:
    """What a second word may be, with others `behind` it, as more of the model's name; None where it is a GPU's."""
    if word.lower() in TIES and shipped_called("models", behind[0] if behind else "") is not None:
        return f"one run is judged; vramplan compare -m {model},{behind[0]} -g G has several"
    if word.lower() in TIES:
        return f"leave {word!r} out: vramplan {command_name} MODEL GPU, with 8xh100 for eight of them"
    several: tuple[tuple[Kind, str], ...] = (("models", f"-m {model},{word} -g G"), ("gpus", f"-m {model} -g G,{word}"))
    for kind, options in several:
        if shipped_called(kind, word) is not None:
            return f"one model and one GPU are judged; vramplan compare {options} has several"
    words = [model, word]
    words += takewhile(lambda one: not one.startswith("-"), behind)
    for count in range(len(words), 1, -1):
        joined = "-".join(words[:count]).lower()
        if shipped_called("models", joined) is not None:
            return f"a model is one word: {joined}"
    if re.fullmatch(r"\d+(-|\.\.)\d+", word) and command_name == "scale":
        return f"it begins with as few GPUs as hold the run, and --to {re.split('[-.]+', word)[1]} is where it ends"
    if re.fullmatch(r"\d+(,\d+)+", word):
        return f"numbers of GPUs are --gpus {word}, and batches --micro-batch {word}"
    if word.isdecimal():
        return f"a number belongs to an option, such as --gpus {word} or --micro-batch {word}"
    counted = f"{word}{behind[0]}" if word.lower() in TIMES and behind else word
    times = re.fullmatch(r"[x*\u00d7]([1-9]\d*)|([1-9]\d*)x", counted.lower())
    if times is not None:
        return f"how many GPUs there are is --gpus {times[1] or times[2]}"
    other = has_the_word(word)
    if other is not None and other.options:
        return f"it is a value of {other.option}"
    return None


def at_the_top(words: Sequence[str]) -> str | None:
    """What to do with an option before the command; None where no command has it."""
    all_commands = named("vramplan.cli.commands:COMMANDS")  # whose module reads this one for a mistake alone
    first = words[0].partition("=")[0]
    if first in ("-V", "-v", "--v"):
        return "--version prints it"
    called = next((word for word in words if word in all_commands), "fit")
    found = named("vramplan.cli.commands:build")(called)
    if first not in {**names_of(found), **other_names(found), **shortcuts(found)}:
        return None
    rest = list(words)
    if called in rest:
        rest.remove(called)
    return f"options stand behind the command: vramplan {' '.join(map(quoted, (called, *rest)))}"


def _begins_a_model(name: str) -> bool:
    """Whether a word is the beginning of a name of models, as `llama3` is, or one of the Hugging Face hub."""
    names = aliases_by_name("models", ())
    begun = any(one.startswith(slug(name)) for one in chain(names, *names.values()))
    return "/" in name or (len(name) > 2 and begun)


OF_MODELS = "`vramplan compare -m A,B,C -g G` says which of several models fit"


def command(name: str, behind: Sequence[str] = ()) -> str | None:
    """What to do instead of a command that there is not; `behind` are the words that follow it."""
    word = name.lower().replace("_", "-")
    if word in LISTED and behind and behind[0].lower() in KINDS:
        return f"did you mean {behind[0].lower()}?"
    kinds: tuple[Kind, ...] = ("gpus", "models")
    for kind in kinds:
        if word in LISTED and behind and shipped_called(kind, behind[0]) is not None:
            return f"did you mean vramplan {kind} {behind[0]}?"
    asked = _question(" ".join((name, *behind)).lower())
    if asked is not None:
        return asked
    if shipped_called("models", name) is not None:
        gpu = behind[0] if behind and not behind[0].startswith("-") else "GPU"
        return f"did you mean vramplan fit -m {name} -g {gpu}?"
    if word in COMMANDS[OF_MODELS] and behind and WordsReader.names_a_gpu(behind[0], behind=True):
        shown = " ".join(map(quoted, behind))
        return f"`vramplan compare {','.join(SIZES_OF_ONE_FAMILY)} {shown}` says which of one family fit"
    for meant, words in COMMANDS.items():
        if word in words:
            return meant if " " in meant else f"did you mean {meant}?"
    if behind and _begins_a_model(name) and WordsReader.names_a_gpu(behind[0], behind=True):
        return f"did you mean vramplan fit {' '.join(map(quoted, (name, *behind)))}?"
    if BEGINS_A_QUESTION.match(" ".join((word, *behind))):
        return "`vramplan fit -m M -g G` says whether it fits: a model and a GPU"
    return None
