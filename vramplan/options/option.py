"""What the table says of one key of a job."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vramplan.options.spellings import SpellingMeaning
from vramplan.tuples import NamedTuple

# Kinds of values.
TEXT = "text"
WORD = "word"  # one of `words`; a word such as `every:K` takes a number in the place of its last part
FLAG = "flag"
COUNT = "count"  # a whole number
NUMBER = "number"
SIZE = "size"  # bytes, written with a unit
TEXTS = "texts"  # a list; on the command line separated by commas
PARAMETERS = "parameters"  # a whole number that may be written as 2.8B
MAPPING = "mapping"  # a text or a mapping of keys of its own

NONE: Mapping[str, SpellingMeaning] = MappingProxyType({})

MAX_COUNT = 2**40  # of batches, steps, devices: beyond it something was pasted wrongly
MAX_RATE = 1e6  # of learning rates and gradient norms: beyond it something was pasted wrongly


class Option(NamedTuple):
    """One key of a job. What is not here is where the key acts."""

    key: str
    """As in a job file; `parallel.data` is the key `data` inside `parallel`."""

    kind: str
    help: str
    """One sentence for `--help`, the reference page and the schema. The words are added to it."""

    words: tuple[str, ...] = ()
    """All that the key takes, in the order of the help."""

    examples: tuple[str, ...] = ()
    """Some of what the key takes, where the rest depends on the model."""

    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None
    zero: str | None = None
    """Why 0 is wrong, where only 0 is: said as a problem."""

    rounding: str = "up"
    """Of a size: demand is rounded up, capacity down."""

    default: Any = None
    """What is the same as leaving the key out; None where the default depends on something."""

    usual: str = ""
    """What is taken where the key is left out, in words for the reference page, if `default` does not say it."""

    note: str = ""
    """More for the reference page than `help` says, in Markdown."""

    flags: tuple[str, ...] | None = None
    """The options of the command line, the short everyday form first. None: the key with dashes; (): no option."""

    off: str | None = None
    """The option that sets a flag to false. None: `--no-` and the key."""

    metavar: str | None = None
    slot: str | None = None
    """The attribute of draft and job. None: the last part of the key. Empty: it is part of another value."""

    absent: Any = None
    """What the draft has where the key is left out."""

    any_case: bool = False
    """Words are taken in capitals too, as environment variables of other programs have them."""

    hint: str | None = None
    """What to write instead of a word that is unknown; None: the nearest known words."""

    nullable: bool = False
    """An explicit null is a choice of its own, and no runtime's default replaces it."""

    profile: tuple[str, ...] = ()
    """Fields of a runtime profile that hold a default for this key, with the same words."""

    profile_words: tuple[str, ...] = ()
    """Words that only the profile field takes, beside those of the key."""

    sharding: tuple[str, ...] = ()
    """Ways to share the states that the key belongs to."""

    textbook: bool | tuple[str, ...] = False
    """Whether the equations of the runtime `textbook` look at the key; a tuple has those words that they know."""

    only: str | None = None
    """The one runtime that the key belongs to."""

    section: str = ""
    """Heading of the reference page."""

    panel: str = ""
    """Heading of the help. Empty: that of the section."""

    everyday: bool = False
    """Whether `--help` shows it; `--help-all` shows the rest."""

    also: tuple[str, ...] = ()
    """Names of other programs for the option. They are taken, completed and documented, and no help lists them."""

    spellings: Mapping[str, SpellingMeaning] = NONE
    """Other spellings of `words`, by what each means."""

    thousands: int | None = None
    """What the k of `8k` stands for, where the key is written so."""

    @property
    def name(self) -> str:
        """The last part of the key: its name inside `parallel`, `adapter` or `qat`."""
        return self.key.rpartition(".")[2]

    @property
    def group(self) -> str:
        """`parallel`, `adapter`, `qat`, or nothing."""
        return self.key.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        """The attribute of the draft; empty where the reader puts the value elsewhere."""
        return self.name if self.slot is None else self.slot

    @property
    def options(self) -> tuple[str, ...]:
        """All names on the command line but that for false."""
        return ("--" + self.name.replace("_", "-"),) if self.flags is None else self.flags

    @property
    def option(self) -> str:
        """The first long name, which remedies and examples show; empty if there is none."""
        return next((flag for flag in self.options if flag.startswith("--")), "")

    @property
    def negation(self) -> str:
        """The option that sets a flag to false."""
        return self.off or "--no-" + self.option[2:]

    @property
    def parameter(self) -> str:
        """The name among all options of a command line; empty if there is no option."""
        if not self.options or self.flags is None or "--" + self.name.replace("_", "-") in self.flags:
            return self.name if self.options else ""
        return self.option[2:].replace("-", "_")

    @property
    def shown(self) -> str:
        """What stands for the value in the help."""
        return self.metavar or METAVARS[self.kind]

    @property
    def description(self) -> str:
        """The help with all words."""
        if not (self.words or self.examples):
            return self.help
        listed = ", ".join(self.words or (*self.examples, "..."))
        return f"{self.help.removesuffix('.')}: {listed}." if self.words else f"{self.help.removesuffix('.')}: {listed}"


METAVARS = {
    TEXT: "TEXT",
    WORD: "NAME",
    FLAG: "",
    COUNT: "N",
    PARAMETERS: "COUNT",
    NUMBER: "X",
    SIZE: "SIZE",
    TEXTS: "A,B",
    MAPPING: "NAME",
}
