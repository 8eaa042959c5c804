"""What was typed, in the options that a command has.

Options have other names than ours in other programs, some stand for several of ours, and a model may be named without
`--model`. All that is settled here, word by word, before the command line is parsed; an option that is given twice,
under one name or two, is an error unless it takes several values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from vramplan.cli import named
from vramplan.errors import near_matches
from vramplan.tuples import NamedTuple

HELP_ALL = "--help-all"


class TypedOption(NamedTuple):
    """One option as it was typed, or a word beside the options."""

    parameter: Any | None  # None: a word, or nothing that the command knows
    spelling: str
    value: str | None
    name: str = ""  # of the option in the command, where the spelling is another
    is_shortcut: bool = False
    is_weak: bool = False  # it says nothing where the same is said otherwise
    is_word: bool = False  # it was said in words, which an option behind them replaces

    @property
    def shown(self) -> str:
        """As it was typed."""
        return self.spelling if self.value is None or self.is_shortcut else f"{self.spelling} {self.value}"


def names_of(command: Any) -> dict[str, Any]:
    """Every name of an option that the command declares."""
    return {
        name: one
        for one in command.params
        if one.param_type_name == "option"
        for name in (*one.opts, *one.secondary_opts)
    }


@cache  # every word beside the options asks for them several times
def other_names(command: Any) -> dict[str, str]:
    """Names of other programs for options of the command, and the name that the command has."""
    declared = names_of(command)
    found = dict(OTHERS.get(command.name, {}))
    for row in named("vramplan.options.table:parameters")().values():
        if getattr(declared.get(row.option), "name", None) == row.parameter:
            found |= dict.fromkeys(row.also, row.option)
    taken = NOT_IN.get(command.name, ())
    return {name: option for name, option in found.items() if name not in declared and name not in taken}


@cache
def shortcuts(command: Any) -> dict[str, Any]:
    """The options that stand for others of the command, by their names."""
    declared = names_of(command)
    return {
        name: one
        for one in named("vramplan.options.shortcuts:SHORTCUTS")
        if all(word in declared for word in one.means if word.startswith("--")) and (one.means or "--gpus" in declared)
        for name in one.flags
        if name not in declared
    }


OTHERS = {
    "measure": {"--num-steps": "--iterations", "--max-steps": "--iterations"},
    "scale": {"--max-gpus": "--to", "--up-to": "--to", "--until": "--to", "--max-devices": "--to"},
}
NOT_IN = {"measure": ("--steps",)}  # which would be read as measured steps, and is accumulation in every other command


class NODES:
    """Stands for the option --nodes, which no command declares: it multiplies --gpus."""

    name, multiple, is_flag = "nodes", False, False
    opts: tuple[str, ...] = ("--nodes",)
    secondary_opts: tuple[str, ...] = ()


DATA = "data"


def is_quiet(found: list[TypedOption]) -> bool:
    """Whether nothing is to be said beside the exit code."""
    return any(one.parameter is not None and one.parameter.name == "quiet" for one in found)


def own_words(command: Any, context: Any, words: Sequence[str]) -> list[str]:
    """The words with the names of the command's own options, each option once. Raises UsageError."""
    reader = OptionReader(command, context, words)
    found = reader.read()
    found = _job_of_its_file(found)
    given = {one.parameter.name for one in found if one.parameter is not None}
    if NODES.name in given:
        found = named("vramplan.cli.replicas:of_all_nodes")(found, command)
    elif DATA in given and not given.isdisjoint(named("vramplan.options.words:SPLITS")):
        named("vramplan.cli.replicas:tell")(found)
    if len(given) < sum(one.parameter is not None for one in found) or not given.isdisjoint(SETTLED):
        found = named("vramplan.cli.settled:settled")(found, command)
    for said in reader.told:
        named("vramplan.cli.output:say")(f"note: {said}")
    result, rest = [], []
    for one in found:
        if one.parameter is None and not one.name:
            rest.append(one.spelling)
        elif one.value is None:
            result.append(one.name or one.spelling)
        elif (one.name or one.spelling).startswith("--"):
            result.append(f"{one.name or one.spelling}={one.value}")
        else:
            result += [one.spelling, one.value]
    return [*result, *(("--", *rest) if any(word.startswith("-") and word != "-" for word in rest) else rest)]


def _job_of_its_file(found: list[TypedOption]) -> list[TypedOption]:
    """`jobs.yaml --job full` is `--job jobs.yaml#full`, as `check` takes it."""
    jobs = [one for one in found if one.parameter is not None and one.parameter.name == "job"]
    files = [one for one in jobs if one.value is not None and is_file(one.value)]
    names = [one for one in jobs if one not in files and "#" not in (one.value or "")]
    if len(files) != 1 or len(names) != 1 or len(jobs) != 2 or getattr(jobs[0].parameter, "multiple", False):
        return found
    whole = files[0]._replace(value=f"{files[0].value}#{names[0].value}")
    return [whole if one is files[0] else one for one in found if one is not names[0]]


_FUNCTION = re.compile(r"((?<=\.py)|(?<=\.ipynb)):\w+$")  # of FILE.py:NAME
FILE = re.compile(r"/|\\|\.(ya?ml|json|toml|sh|bash|slurm|sbatch|py|ipynb|txt|args)$", re.IGNORECASE)
"""What a word has that may be a file: a folder before it, or the ending of a configuration file."""

STDIN = ("-", "/dev/stdin")  # the names in vramplan.catalog.text, which is not loaded for an option


def is_file(word: str) -> bool:
    """Whether a word names a file that is there, or standard input."""
    if word in STDIN:
        return True
    return FILE.search(word) is not None and os.path.isfile(_FUNCTION.sub("", word))


SETTLED = (
    *("offload_optimizer_device", "offload_parameters_device", "adapter", "rank", "alpha", "adapter_dropout"),
    *("targets", "quantization", "epochs"),
)  # what may imply an adapter, or says nothing alone
COMPARING = ("compare", "plan")
"""Commands that take a list for any option of a job."""

TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class OptionReader:
    """The words of a command line, of which an option takes those that belong to it."""

    def __init__(self, command: Any, context: Any, words: Sequence[str]) -> None:
        self.command, self.context, self.words = command, context, list(words)
        self.is_quiet = not {"-q", "--quiet"}.isdisjoint(words)
        self.declared = names_of(command)
        self.idle: list[str] = []  # options that change nothing, as they were typed
        self.told: list[str] = []  # how something is read

    def read(self) -> list[TypedOption]:
        """All options and words. Raises UsageError."""
        found: list[TypedOption] = []
        while self.words and re.match(r"-[^\s#]+$", self.words[0]) is not None and self.words[0] != "--":
            found += self.option(self.words.pop(0))
            if found and found[-1].parameter is self.declared.get("--gpus") and not str(found[-1].value).isdecimal():
                break
        if self.words or (found and found[-1].parameter is self.declared.get("--gpus")):
            found = named("vramplan.cli.reader:WordsReader")(self).read_on(found)
        if self.idle:
            *most, last = self.idle
            said = f"{', '.join(most)} and {last} change" if most else f"{last} changes"
            self.tell(f"{said} neither memory nor the time of a step, and {'are' if most else 'is'} left out")
        return found

    def behind(self) -> list[str]:
        """The next words that are no options, of which a name may have been made."""
        return list(takewhile(lambda one: one.strip() and not one.startswith("-"), self.words[:MOST_PARTS]))

    def tell(self, said: str) -> None:
        """How something is read, where nothing is to be quiet; it is said once nothing is wrong with the words."""
        if not self.is_quiet:
            self.told.append(said)

    def option(self, word: str) -> list[TypedOption]:
        """The options that a word which begins with a dash is, with what it takes of the words behind it."""
        spelling, equals, value = word.partition("=")
        given = value if equals else None
        if spelling in (*HELPS, HELP_ALL):
            return [TypedOption(None, spelling, None, spelling)]
        parameter = self.declared.get(spelling)
        if parameter is not None:
            return [self._of(parameter, spelling, spelling, given)]
        if not word.startswith("--"):
            parameter = self.declared.get(word[:2])
            if parameter is not None and not parameter.is_flag:
                return [TypedOption(parameter, word[:2], word[2:])]
            if parameter is not None and all(f"-{letter}" in self.declared for letter in word[1:]):
                return [piece for letter in word[1:] for piece in self.option(f"-{letter}")]
            if re.fullmatch(r"-[a-z]\w+", word) is None and f"-{spelling}" not in other_names(self.command):
                self._unknown(spelling)
            return self.option(f"-{word}")  # -batch-size, as programs with one dash have it
        plain = spelling.lower().replace("_", "-")
        if "." in plain:
            return self.option(named("vramplan.cli.meant:without_section")(self, word))
        if plain in self.declared and plain != spelling:
            return [self._of(self.declared[plain], spelling, plain, given)]
        if plain in WITH_A_FILE and "--config" in self.declared:
            file = given if given is not None else next(iter(self.words), "")
            if is_file(file):
                self.words = self.words if given is not None else self.words[1:]
                return [TypedOption(self.declared["--config"], spelling, file, "--config")]
            if FILE.search(file):
                said = named("vramplan.cli.written:sharding_in")(file)
                instead = f"; or {said}, which its name says" if said else ""
                self.context.fail(f"{spelling}: there is no file {file!r} (name it with its folder{instead})")
        other = other_names(self.command).get(plain)
        if other is not None:
            read = self._of(self.declared[other], spelling, other, given)
            if plain in LEFT_OPEN:
                self.tell(f"{spelling} is read as {other}, {LEFT_OPEN[plain]}")
            elif plain in A_RUN and len(read.value or "") > A_RUN[plain]:
                self.tell(f"{read.shown} is read as {other} {read.value}, the micro-batches of one step; {RUNS}")
            return [read]
        shortcut = shortcuts(self.command).get(plain)
        if shortcut is not None:
            return self._shortcut(shortcut, spelling, given)
        truth = TRUTH.get((given if given is not None else next(iter(self.words), "")).lower())
        said = given is not None or (truth is not None and not self.words[0].isdecimal())
        setting = None if said and truth is None else named("vramplan.cli.meant:one_setting")(plain, self.command)
        if setting is None and self._is_idle(spelling, plain, given):
            return []
        behind = given if given is not None else next(iter(self.words), "")
        if (
            behind.lstrip().startswith("{")
            and (inside := named("vramplan.cli.written:settings_in")(behind, plain)) is not None
        ):
            self.words = [*inside, *(self.words if given is not None else self.words[1:])]
            return []
        if setting is None:
            self._unknown(spelling)
            raise AssertionError
        if said and given is None:
            self.words.pop(0)
        if said and not truth:
            self.tell(f"{spelling} false is left out, as nothing turns it on")
            return []
        option, value = setting
        self.tell(f"{spelling} is read as {option} {value}")
        return [TypedOption(self.declared[option], spelling, value, option, is_shortcut=True)]

    def _is_idle(self, spelling: str, plain: str, given: str | None) -> bool:
        """Whether an option changes nothing; it is told of, and its value is taken away."""
        behind = given if given is not None or not self.words else self.words[0]
        found = named("vramplan.cli.meant:without_effect")(plain, behind)
        if found is None or "--model" not in self.declared:
            return False
        said, is_value = found
        if is_value and given is None:
            self.words.pop(0)
        shown = f"{spelling} {behind}" if is_value else spelling
        if said:
            self.tell(f"{shown} {said}")
        else:
            self.idle.append(shown)
        return True

    def _of(self, parameter: Any, spelling: str, name: str, given: str | None) -> TypedOption:
        if not parameter.is_flag:
            if given is None:
                if not self.words or self._is_option(self.words[0]):
                    if not self._may_be_bare(parameter):
                        self.context.fail(named("vramplan.cli.meant:without_value")(parameter, spelling))
                    given = YES
                else:
                    given = self.words.pop(0)
            if SEVERAL.fullmatch(given) and self.command.name not in (*COMPARING, SCALE):
                named("vramplan.cli.meant:refuse_several")(parameter, spelling, given)
            return TypedOption(parameter, spelling, given, name)
        said = given if given is not None else (self.words[0] if self.words else "")
        truth = TRUTH.get(said.lower()) if given is not None or said.lower() in ("true", "false") else None
        if given is not None and (truth is None or (not truth and not parameter.secondary_opts)):
            self.context.fail(f"Option {spelling!r} does not take a value.")
        if truth is None:
            return TypedOption(parameter, spelling, None, name)
        if given is None:
            self.words.pop(0)
        if not truth:
            name = (parameter.opts if name in parameter.secondary_opts else parameter.secondary_opts or [name])[0]
        return TypedOption(parameter, spelling, None, name)

    def _is_option(self, word: str) -> bool:
        """Whether a word is an option of the command, under any name: no value of another begins so."""
        name = word.partition("=")[0].lower().replace("_", "-")
        if not name.startswith("--"):
            return name in self.declared and name != "-"
        return name in self.declared or name in other_names(self.command) or name in shortcuts(self.command)

    @staticmethod
    def _may_be_bare(parameter: Any) -> bool:
        """Whether the option has a word for a plain yes, as `--recompute` without a value."""
        row = named("vramplan.options.table:parameters")().get(parameter.name)
        return row is not None and YES in row.spellings

    def _shortcut(self, shortcut: Any, spelling: str, given: str | None) -> list[TypedOption]:
        value = given
        if shortcut.metavar and value is None:
            if not self.words and shortcut.value:
                self._unknown(spelling)
            if not self.words:
                self.context.fail(f"Option {spelling!r} requires an argument.")
            value = self.words.pop(0)
        if shortcut.metavar and shortcut.value and re.fullmatch(shortcut.value, str(value).lower()) is None:
            self._unknown(spelling)
        if shortcut.metavar and shortcut.unless and re.fullmatch(shortcut.unless, str(value).lower()) is not None:
            return []
        if value is None and self.words and shortcut.value:
            both = f"{shortcut.value}|{shortcut.unless}" if shortcut.unless else shortcut.value
            if re.fullmatch(both, self.words[0].partition(" ")[0].lower()) and self.words[0] not in ("0", "1"):
                value = self.words.pop(0)
        if value is not None and not shortcut.metavar:
            said = value.partition(" ")[0].lower()  # `full_shard auto_wrap`
            if shortcut.unless and re.fullmatch(shortcut.unless, said):
                return self._meaning(shortcut.denied, spelling, "", is_weak=True)
            if not shortcut.value or re.fullmatch(shortcut.value, said) is None:
                self.context.fail(f"Option {spelling!r} does not take the value {value!r}.")
            beside = named("vramplan.cli.written:beside")(value) if " " in value else []
            if beside is None:
                self.context.fail(f"Option {spelling!r} does not take the value {value!r}.")
            self.words = [*beside, *self.words]
            value = said
        if not shortcut.means:
            return [TypedOption(NODES, spelling, value)]
        if shortcut.metavar:
            return self._meaning(shortcut.means, f"{spelling} {value}", str(value).lower(), is_weak=shortcut.is_weak)
        return self._meaning(shortcut.means, spelling, (value or spelling.lstrip("-")).lower())

    def _meaning(self, means: Sequence[str], spelling: str, value: str, *, is_weak: bool = False) -> list[TypedOption]:
        """The options that a shortcut stands for."""
        return [
            TypedOption(self.declared[option], spelling, _each(meaning, value), option, True, is_weak)
            for option, meaning in zip(means[::2], means[1::2], strict=True)
        ]

    def _unknown(self, name: str) -> None:
        hint = self._hint(name)
        self.context.fail(f"No such option: {name}" + (f" ({hint})" if hint else ""))

    def _hint(self, name: str) -> str | None:
        plain = name.lower().replace("_", "-")
        meant = named("vramplan.cli.meant:option")(plain, self.command)
        elsewhere = named("vramplan.cli.meant:elsewhere")
        found = meant or elsewhere(plain, self.context.parent)
        if found is not None:
            return str(found)
        others = {**other_names(self.command), **{name: name for name in shortcuts(self.command)}}
        known = [*self.declared, HELP_ALL, *others]
        close = near_matches(plain, known)
        if close is None:
            return None
        names = [others.get(one, one) for one in close.removeprefix("did you mean ").removesuffix("?").split(" or ")]
        return f"did you mean {' or '.join(dict.fromkeys(names))}?"


def _each(meaning: str, value: str) -> str:
    """The meaning of a value, or of each of a list: of `--zero 2,3` it is zero2,zero3."""
    return ",".join(meaning.replace("{}", one) for one in value.split(",")) if "{}" in meaning else meaning


SEVERAL = re.compile(r"(?!\d{1,3}(,\d{3})+$)\d+[kK]?(,\d+[kK]?)+")  # numbers, and not the digits of one in groups
HELPS = ("--help", "-h")
WITH_A_FILE = ("--deepspeed", "--deepspeed-config", "--ds-config", "--config-file", "--accelerate-config", "--yaml")
"""Options of training programs whose value may be a file, which stands for itself here."""
YES = "true"
SCALE = "scale"  # which takes several numbers of GPUs, and says itself what else it takes none of
A_RUN = {"--steps": 2}  # digits: with more of them it may be meant as the length of a run
RUNS = "the length of a run is --tokens, --samples or --epochs"

LEFT_OPEN = {
    **dict.fromkeys(
        ("--batch-size", "--batchsize", "--batch", "--bs", "--bsz", "--b", "--train-batch-size"),
        "the batch of one GPU and forward pass",
    ),
    **dict.fromkeys(("--pretrain", "--pretraining"), "weights that are made, not loaded"),
    "--dtype": "which leaves the weights in the type that the program loads; that is --weight-dtype",
}
"""Names that mean other things in other programs, and how they are read."""
MOST_PARTS = 5  # words behind the first one of a name: `NVIDIA GeForce RTX 4070 Ti`
