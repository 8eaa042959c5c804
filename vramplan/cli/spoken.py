"""Words beside the options, as people say them: `lora`, `seq 4096`, `bs8`, `8 gpus`, `flash attn 2`, `zero 3 offload`.

A word is the option of that name without its dashes, a value that one option has, or a number beside the name of what
it counts. What an option takes is so taken here, and no spelling stands twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vramplan.catalog.model_names import profile_by
from vramplan.cli import named
from vramplan.cli.hints import ALWAYS_SO
from vramplan.cli.meant import one_setting, option, without_effect
from vramplan.cli.reader import A_LENGTH, WordsReader
from vramplan.cli.typed import A_RUN, COMPARING, RUNS, SCALE, YES, TypedOption, other_names, shortcuts
from vramplan.cli.vocabulary import (
    BEFORE,
    BIASES,
    BY_DASHES,
    DIGITS,
    FILLERS,
    JOINS,
    NUMBERS,
    OF_OTHER_LANGUAGES,
    OF_PHRASE,
    OF_UNIT,
    SAID_OF,
)
from vramplan.errors import UsageError, near_matches
from vramplan.job.given.keyed import size_in
from vramplan.options.option import COUNT, NUMBER, PARAMETERS, TEXTS, WORD, Option
from vramplan.options.spellings import NULL, OPEN, meaning
from vramplan.options.table import has_the_word, parameters
from vramplan.options.words import PRECISIONS

MOST = 6  # words of one setting: `per device train batch size 4`

UNCLEAR = {
    "offload": "--offload optimizer,gradients or parameters,gradients,optimizer",
    "nvlink": "leave NVLink out: how a GPU is linked is link_bandwidth in its profile, and of another one in its file",
    "quantized": "--qlora, or --quantization nf4, int8 or gptq-int4",
    "checkpoint": "--checkpointing full recomputes activations",
    "16bit": "--precision bf16 computes in 16 bits, --weight-dtype bf16 loads the weights so",
}
"""Words that leave one thing open, and what says it."""

NEVER = frozenset(
    ("no", "yes", "on", "off", "all", "true", "false", "auto", "none", "null", "model", "max", "half", "x")
)
"""Values of an option that a word beside it does not say alone."""

_NUMBER = re.compile(r"\d+(?:[.,_]\d+)*(?:[kKmMbB]|e-?\d+)?(?:,\d+(?:\.\d+)?[kKmMbB]?)*")  # or a list: 2k,4k,8k
_GLUED = re.compile(
    r"([a-z][a-z_-]*?)[-_:=]?(\d+(?:[.,_]\d+)*k?)|(\d+(?:[.,_]\d+)*k?)[-_]?([a-z][a-z_-]+)", re.IGNORECASE
)
SIXTEEN = "16bit"
UNSAID = ("model", "max", "x")  # which no value is
_LAYERS = re.compile(r"all-linear|[a-z]+_\w+(?:,[a-z]+_\w+)*")  # what an adapter goes to
_BITS = re.compile(r"(?<=\d)-bits?\b")
IN_LETTERS = {word: digit for word, digit in DIGITS.items() if word not in ("single", "dual", "quad")}
NEAR, LONGEST = 0.8, 40  # of words that are near, as difflib counts, and the letters of a word that has such
TIES = ("=", ":", "is", "of", "to", "at")
OF_A_RUN = re.compile(r".*[mMbB]|\d{7,}")  # tokens of a run, not of a sequence


def parts(reader: WordsReader, word: str) -> list[str]:
    """The words of a text in quotes that is no name by itself; none where nothing in it is understood."""
    found = [one for one in (part.strip(",;:?!()\"'") for part in re.sub(r"(?<=\S)\(", " (", word).split()) if one]
    found = [one.removesuffix(".") for one in found]
    whole = "-".join(found)
    if profile_by(whole) is not None and not any(reader.names_a_gpu(one, behind=True) for one in found[1:]):
        return [whole]
    known = any(
        reader.names_a_model(one)
        or reader.names_a_gpu(one, behind=False)
        or _switch(_phrase([one]), reader) is not None
        or _amount(found[at:], reader) is not None
        for at, one in enumerate(found)
    )
    return found if known else []


def technique(reader: WordsReader, word: str) -> list[str] | None:
    """The options that a word stands for, with those behind it; [] if it says nothing, None if it is not understood.

    The words behind it are taken from the reader. Raises UsageError.
    """
    own = named("vramplan.cli.told:own_word")(reader, word)
    if own is not None:
        return _taken(reader, *own)
    words = [word, *reader.behind()]
    unclear = next((one for one in (_phrase(words[:2]), _phrase(words[:1])) if one == SIXTEEN), None)
    if unclear is not None:
        raise UsageError("what is '16 bit'?", hint=UNCLEAR[unclear])
    for count in range(len(words), 0, -1):
        found = _switch(_phrase(words[:count]), reader)
        if found is None:
            found = _valued(words[:count], reader)
        if found is None:
            continue
        counted = _amount(words, reader)
        is_number = count < len(words) and _NUMBER.fullmatch(words[count]) is not None  # max_seq_len 4096
        is_alone = counted is None or counted[0] <= count or (not is_number and _amount(words[count:], reader))
        return _taken(reader, words[:count], found) if is_alone else None
    small = word.lower()
    if small not in DIGITS or len(words) < 2:
        return None
    is_size = size_in(words[1]) is not None or (words[1].isdecimal() and size_in(" ".join(words[1:3])) is not None)
    return [f"{DIGITS[small]}x" if is_size else DIGITS[small]]  # two 24gb cards


def amount(reader: WordsReader, word: str, found: Sequence[TypedOption]) -> list[str] | None:
    """The same of a number and what it counts."""
    given = {one.parameter.name for one in found if one.parameter is not None}
    if "model" not in given and re.match(r"[a-z]\d", word, re.IGNORECASE):
        return None  # which may be a model, as r1
    words = [word, *reader.behind()]
    meant = _amount(words, reader)
    return None if meant is None else _taken(reader, words[: meant[0]], meant[1])


def counts(reader: WordsReader, word: str) -> bool:
    """Whether a number behind `lora` is of what follows it, and no rank: `lora 4 gpus`, but `lora 16 seq 2048`."""
    words = [word, *reader.behind()]
    for count, name, value in _numbered(words):
        found = _counts(name, value, reader) if count > 1 and value == word else None
        if found is not None:
            after = words[count] if count < len(words) and _NUMBER.fullmatch(words[count]) else None
            is_gpu = after is not None and reader.names_a_gpu(after, behind=False)  # lora 2 gpus 4090
            return after is None or is_gpu or (found[0] in BEFORE[1:] and _a_length(after, reader) is not None)
    return reader.command.name == SCALE and re.fullmatch(NUMBERS, words[1] if len(words) > 1 else "") is not None


def filler(reader: WordsReader, word: str) -> bool:
    """Whether a word says nothing of a run. Raises UsageError for one that leaves something open."""
    small = word.lower().strip(",;?!")
    if not word.strip():
        return False
    hint = UNCLEAR.get(small)
    if hint is not None:
        raise UsageError(f"what is {word!r}?", hint=hint)
    behind = reader.behind()[:1]
    if small in JOINS and behind and (reader.names_a_model(behind[0]) or reader.names_a_gpu(behind[0], behind=False)):
        return False  # two that may be compared
    if small == JOINS[1] and behind and _NUMBER.fullmatch(behind[0]):  # rank 16 or 32
        raise UsageError(
            f"what is '{word} {behind[0]}'?", hint="one run has one value; compare takes a list, as in --rank 16,32"
        )
    if small in ("vs", "vs.", "versus", "against"):
        return reader.command.name in COMPARING
    if small in OF_OTHER_LANGUAGES:
        return True
    return small in FILLERS or small in SAID_OF.get(reader.command.name, ()) or not small.strip("+&-/.,|@;:()")


def hint_for(word: str, reader: WordsReader, *, is_all_named: bool = False) -> str | None:
    """What to do instead of a word that nothing takes: the option that it is a name of, or near words."""
    phrase, behind = _phrase([word]), reader.behind()
    counts = _counts(phrase, "N", reader) if len(phrase) > 1 else None
    if counts is not None:
        return f"a number belongs to it, as in {' '.join(counts)}"
    is_known = f"--{phrase}" in shortcuts(reader.command)
    for count in (3, 2, 1) if is_all_named and not is_known and 1 < len(phrase) < LONGEST else ():
        near = (
            near_matches(_phrase([word, *behind][:count]), _known(reader), NEAR) if count <= len(behind) + 1 else None
        )
        if near is not None:
            return near
    is_open = next((OPEN[one] for one in (_phrase([word, *behind][:2]), phrase) if one in OPEN), None)
    said = is_open or option(f"--{phrase}", reader.command)
    if said is not None:
        return str(said)
    called = f"vramplan {reader.command.name} --help"
    return f"the model and the GPU are named already; {called} has the options" if is_all_named else None


def _known(reader: WordsReader) -> list[str]:
    """The words of one piece that mean a technique."""
    rows = [row for row in parameters().values() if row.kind == WORD and row.option in reader.declared]
    values = [one for row in rows for one in (*row.words, *row.spellings) if one not in NEVER and not one.isdecimal()]
    names = (name.removeprefix("--") for name in shortcuts(reader.command))
    return [*(one for one in names if not one.startswith(("no-", "use-", "enable-"))), *values, *OF_UNIT]


def _taken(reader: WordsReader, words: Sequence[str], found: list[str]) -> list[str]:
    del reader.words[: len(words) - 1]
    if reader.command.name in COMPARING and len(found) in (1, 2):
        words, found = named("vramplan.cli.told:with_more")(reader, words, found)
    said, meant = " ".join(words), " ".join(found).removesuffix("=true")
    is_plain = found[1:] == [_phrase(words)] and not said[:1].isdigit()  # `fsdp` is --sharding fsdp
    if found and meant.lstrip("-") != _phrase(words) and not is_plain:
        reader.note_reading(said, meant)
    return found


def _phrase(words: Sequence[str]) -> str:
    """Words as the name of an option has them."""
    plain = re.sub(r"[\s_]+", "-", "-".join(words).lower()).strip("-,;?!")
    plain = re.sub(r"^(without|w/o|ohne|sans|sin|без|不用)-", "no-", plain)
    plain = re.sub(r"^ds-", "deepspeed-", re.sub(r"\bz(?=[123]\b)", "zero", plain))
    return _BITS.sub("bit", plain)


def _switch(phrase: str, reader: WordsReader) -> list[str] | None:
    """The setting that a phrase is by itself; [] for what is planned anyway."""
    if (
        (phrase in NEVER)
        or (phrase.startswith("fsdp-") and phrase in PRECISIONS)
        or phrase.isdecimal()
        or phrase in UNCLEAR
        or len(phrase) < 2
    ):
        return None
    if "," in phrase:
        return _several(phrase, reader)
    if phrase in OF_PHRASE and OF_PHRASE[phrase][0].partition("=")[0] in reader.declared:
        return OF_PHRASE[phrase]
    name = f"--{phrase}"
    own = name if name in reader.declared else other_names(reader.command).get(name)
    if own is not None and reader.declared[own].is_flag:
        return [own]
    shortcut = shortcuts(reader.command).get(name)
    if shortcut is not None and shortcut.metavar:
        return None  # which says nothing without its value: `deepspeed` alone
    if shortcut is not None and shortcut.means:
        if "{}" in "".join(shortcut.means):
            return [one.replace("{}", phrase) for one in shortcut.means]
        return [f"{name}=true"] if shortcut.unless else [name]
    setting = one_setting(name, reader.command)
    if setting is not None:
        return list(setting)
    denied = shortcuts(reader.command).get(f"--{phrase[3:]}") if phrase.startswith("no-") else None
    if denied is not None and denied.denied:
        return list(denied.denied)  # no grad ckpt
    if phrase in ALWAYS_SO:
        return []
    row = has_the_word(phrase)
    if row is not None and row.key == BIASES and phrase.endswith("-only"):
        return None  # `lora only` is a technique and no bias
    if row is None and "-" in phrase:
        return _in_other_order(phrase, reader)
    if row is None or row.kind != WORD or row.option not in reader.declared:
        return None
    found = meaning(phrase, row.words, row.spellings)
    return None if found is not None and found.word == NULL else [row.option, phrase]


def _in_other_order(phrase: str, reader: WordsReader) -> list[str] | None:
    """The one value that has the words of a phrase in another order: `8bit paged adamw` is adamw-8bit-paged."""
    wanted = sorted(phrase.split("-"))
    rows = [row for row in parameters().values() if row.kind == WORD and row.option in reader.declared]
    found = {
        (row.option, row.spellings[one].word if one in row.spellings else one)
        for row in rows
        for one in (*row.words, *row.spellings)
        if sorted(one.split("-")) == wanted
    }
    return list(found.pop()) if len(found) == 1 else None


def _several(phrase: str, reader: WordsReader) -> list[str] | None:
    """Values of one option with commas between them, where a list is compared: `lora,qlora`."""
    each = [setting_of(one, reader) for one in phrase.split(",")]
    if reader.command.name not in COMPARING or any(len(one) != 2 for one in each) or len({one[0] for one in each}) > 1:
        return None
    return [each[0][0], ",".join(value for _, value in each)]


def setting_of(phrase: str, reader: WordsReader) -> list[str]:
    """The option and the value that a phrase is; another number of words where it is no setting."""
    found = _switch(phrase, reader) or []
    if len(found) != 1:
        return found
    name, equals, value = found[0].partition("=")
    shortcut = shortcuts(reader.command).get(name)
    if shortcut is None:
        return [name, value] if equals else found
    return list(shortcut.means)


def _valued(words: Sequence[str], reader: WordsReader) -> list[str] | None:
    """A value beside the name of its option: `adafactor optimizer`, `attention flash`, `selective ac`."""
    for at in range(1, len(words)):
        for name, value in ((words[at:], words[:at]), (words[:at], words[at:])):
            row = _row(_phrase(name), reader)
            text = _phrase(value)
            if row is not None and row.kind == TEXTS and _LAYERS.fullmatch(value[0]) and len(value) == 1:
                return [row.option, value[0]]
            if row is None or row.kind != WORD or not row.words or text in UNSAID:
                continue
            if text in row.words or meaning(text, row.words, row.spellings) is not None:
                return [row.option, text]
    return None


def _row(name: str, reader: WordsReader) -> Option | None:
    """The row of the table whose option has a name."""
    others = other_names(reader.command)
    own = next((one for one in (f"--{name}", f"--{name}s") if one in reader.declared or one in others), None)
    return None if own is None else parameters().get(reader.declared[others.get(own, own)].name)


def _counts(name: str, value: str, reader: WordsReader) -> list[str] | None:
    """The option that counts what a name says, with a number."""
    plain = name.strip("-=:")
    unit = OF_UNIT.get(plain)
    if plain == "steps" and value.isdecimal() and len(value) > A_RUN["--steps"]:
        raise UsageError(
            f"what is '{value} steps'?", hint=f"{RUNS}; --steps {value} would be micro-batches of one step"
        )
    if unit == "--seq" and "token" in plain and OF_A_RUN.fullmatch(value):
        unit = "--tokens"
    if unit is not None:
        known = unit in reader.declared or unit in shortcuts(reader.command)
        return [unit, value] if known else None
    own = other_names(reader.command).get(f"--{plain}", f"--{plain}")
    if own in reader.declared and not reader.declared[own].is_flag and reader.declared[own].name not in parameters():
        return [own, value] if len(plain) > 1 and own not in BY_DASHES else None
    row = _row(plain, reader)
    if row is not None and row.kind in (COUNT, NUMBER, PARAMETERS):
        return [row.option, value]
    shortcut = shortcuts(reader.command).get(f"--{plain}")
    if shortcut is not None and shortcut.metavar and re.fullmatch(shortcut.value or r"\d+", value):
        return [f"--{plain}", value]
    idle = without_effect(f"--{plain}", value) if len(plain) > 1 else None
    return [f"--{plain}", value] if idle is not None and idle[1] else None


def _amount(words: Sequence[str], reader: WordsReader) -> tuple[int, list[str]] | None:
    """How many words a number and its name are, and the option."""
    for count, name, value in _numbered(words):
        found = _counts(name, value, reader)
        if found is not None:
            after = words[count : count + 1]
            is_unit = after != [] and OF_UNIT.get(_phrase(after)) == found[0] and words[count - 1].lower() != after[0]
            return count + int(is_unit), found  # `ctx 512 tokens`
    name, equals, value = words[0].partition("=")
    if equals and value and re.fullmatch(r"[A-Za-z][\w-]*", name):
        assigned = _assigned(_phrase([name]), value, reader)
        if assigned is not None:
            return 1, assigned
    times = re.fullmatch(r"([1-9]\d{0,4})[xX\u00d7]|[xX\u00d7]([1-9]\d{0,4})", words[0])
    if times is not None and "--gpus" in reader.declared and not (reader.command.name == SCALE and times[1]):
        return 1, ["--gpus", times[1] or times[2]]
    return _a_length(words[0], reader)


def _assigned(name: str, value: str, reader: WordsReader) -> list[str] | None:
    """`optim=adamw_8bit`: the option of a name, with a value that it may have."""
    row = _row(name, reader)
    if row is not None:
        return [f"{row.option}={value}"]
    if f"--{name}" in shortcuts(reader.command):
        return [f"--{name}={value}"]
    if name in FILLERS:
        return _switch(_phrase([value]), reader)
    if without_effect(f"--{name}", value) is not None:
        return [f"--{name}", value]
    setting = one_setting(f"--{name}", reader.command)
    if setting is not None and value.lower() in (YES, "false"):
        return list(setting) if value.lower() == YES else []
    return None


def _numbered(words: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Every name beside a number at the beginning of the words: how many words, the name, the number."""
    glued = _GLUED.fullmatch(words[0])
    for end in range(min(MOST, len(words) - 1), 0, -1):
        tie = 1 if words[end] in TIES and end + 1 < len(words) else 0
        if end + tie < len(words) and not words[0][0].isdigit():
            said = words[end + tie]
            number = IN_LETTERS.get(said.lower(), said)
            if _NUMBER.fullmatch(number):
                yield end + tie + 1, _phrase(words[:end]), number
        *first, last = words[: end + 1]
        assigned = re.fullmatch(r"([A-Za-z][\w-]*)[=:](\d\S*)", last)
        if assigned is not None and _NUMBER.fullmatch(assigned[2]):
            yield end + 1, _phrase([*first, assigned[1]]), assigned[2]
        is_next = end + 1 < len(words) and _NUMBER.fullmatch(words[end + 1]) is not None  # 224 bs 8: a batch of 8
        if _NUMBER.fullmatch(words[0]) and not (is_next and OF_UNIT.get(_phrase(words[1 : end + 1])) not in BEFORE):
            yield end + 1, _phrase(words[1 : end + 1]), words[0]
    if glued is not None:
        name, number = (glued[1], glued[2]) if glued[1] else (glued[4], glued[3])
        yield 1, _phrase([name]), number


def _a_length(word: str, reader: WordsReader) -> tuple[int, list[str]] | None:
    """A number that can only be the length of a sequence: 8k, or a large power of two."""
    if "--seq" not in reader.declared:
        return None
    if re.fullmatch(r"\d{1,4}[kK](,\d{1,4}[kK])*", word):
        return 1, ["--seq", word]
    number = int(word) if re.fullmatch(r"\d{3,7}", word) else 0
    is_one = number >= A_LENGTH and (number & (number - 1) == 0 or number % 1024 == 0)
    return (1, ["--seq", word]) if is_one else None
