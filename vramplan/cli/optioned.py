"""The options of a command line, each as one of the command: other names, shortcuts, values behind them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from vramplan.cli import named
from vramplan.cli.typed import COMPARING, FILE, HELP_ALL, NODES, TypedOption, is_file, names_of, other_names, shortcuts
from vramplan.errors import near_matches

TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class OptionReader:
    """The words of a command line, of which an option takes those that belong to it."""

    def __init__(self, command: Any, context: Any, words: Sequence[str]) -> None:
        self.command, self.context, self.words = command, context, list(words)
        self.is_quiet = not {"-q", "--quiet"}.isdisjoint(words)
        self.declared = names_of(command)
        self.idle: list[str] = []  # options that change nothing, as they were typed
        self.told: list[str] = []  # how something is read

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
                        self._no_value(parameter, spelling)
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

    def _no_value(self, parameter: Any, spelling: str) -> None:
        """The error for an option without its value, with the values that there are."""
        row = named("vramplan.options.table:parameters")().get(parameter.name)
        known = getattr(row, "words", ()) if row is not None else ()
        hint = f" ({', '.join(known)})" if known else ""
        as_format = named("vramplan.options.shortcuts:FORMATS").get(spelling)
        if as_format is not None:  # of a command that writes a file of it
            hint = f" ({' '.join(as_format)} prints it)"
        self.context.fail(f"Option {spelling!r} requires an argument{hint}.")

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
