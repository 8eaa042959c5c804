"""The name of a GPU or of a model that was typed as several words: `RTX 4090`, `8x A100 80GB`, `Qwen2.5 7B`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from vramplan.catalog.fields import shown
from vramplan.catalog.locate import LABELS, Kind, is_path, shipped_called
from vramplan.catalog.scope import out_of
from vramplan.cli import named
from vramplan.cli.meant import second_word
from vramplan.cli.reader import A_LENGTH, NO_SIZE, TIMES, WordsReader
from vramplan.cli.typed import TypedOption
from vramplan.errors import InputError, UsageError
from vramplan.job.given.keyed import size_in
from vramplan.job.given.spelled import counted
from vramplan.options.flags import quoted


def joined(word: str, behind: Sequence[str], *, is_model_named: bool) -> tuple[int, str]:
    """How many of the words behind belong to the name that begins with the word, and that name."""
    if not is_model_named and shipped_called("models", word) is not None:  # no GPU's name begins with a model's
        return 0, word
    if word.isdecimal() and shipped_called("gpus", word) is None:
        _refuse_a_length(word, behind)  # `8 h100`, `8 x h100`
        start = int(behind[:1] != [] and behind[0].lower() in TIMES)
        for count in range(len(behind), start, -1):
            gpu = " ".join(behind[start:count])
            if WordsReader.names_a_gpu(gpu, behind=False):
                return count, f"{word}x{gpu}"
            is_size = size_in(gpu) is not None and not NO_SIZE.fullmatch(gpu)
            if is_size and is_model_named and " ".join(behind[count : count + 1]).lower() in CARDS:
                return count + 1, f"{word}x{gpu}"
            other = _in_other_order(behind[start:count]) if count - start > 1 else ""
            if other:
                return count, f"{word}x{other}"
    times = re.fullmatch(r"([1-9]\d{0,4})[xX\u00d7]", word)
    for count in range(len(behind), 1, -1) if times is not None else ():
        other = _in_other_order(behind[:count])  # 8x 80GB A100
        if times is not None and other:
            return count, f"{times[1]}x{other}"
    for count in range(len(behind), 0, -1):
        words = (word, *behind[:count])
        gpu = " ".join(words)
        if WordsReader.names_a_gpu(gpu, behind=is_model_named) or (is_model_named and _is_out_of(words)):
            return count, gpu
        model = "-".join(words)
        if not is_model_named and shipped_called("models", model) is not None:
            return count, model
        gpu = _in_other_order(words)
        if gpu:
            return count, gpu
    for count in () if is_model_named else range(len(behind), 0, -1):
        model = named("vramplan.cli.near:same")("models", "-".join((word, *behind[:count])))
        if model is not None:
            return count, model
    return 0, word


def _refuse_a_length(word: str, behind: Sequence[str]) -> None:
    """Raise UsageError for a number before a GPU that is rather a length than a number of GPUs: `4096 h100`."""
    is_counted = behind[:1] != [] and behind[0].lower() in TIMES
    number = int(word) if len(word) < MOST_DIGITS else 0
    if is_counted or number < A_LENGTH or not WordsReader.names_a_gpu(behind[0] if behind else "", behind=False):
        return
    hint = f"{word}x{behind[0]} counts GPUs, and --seq {word} is the length of a sequence"
    raise UsageError(f"what is {word!r}?", hint=hint)


VARIANT = re.compile(r"instruct|chat|it|base|hf|pt|sft|thinking|v\d(\.\d)?", re.IGNORECASE)
"""What stands behind the name of a model for another training of it."""

OF_A_KEY = "it is a value of"  # the least that is said of a word
OF_A_MODEL = re.compile(r"\d+(\.\d+)?b", re.IGNORECASE)  # parameters, and no size of a GPU

CARDS = ("gpu", "gpus", "card", "cards")
MOST_DIGITS = 9  # of a number of GPUs


def _is_out_of(words: Sequence[str]) -> bool:
    """Whether words are the name of a device that is not modelled: `M3 Max`, and no instance with more behind it."""
    return "." not in words[0] and out_of("gpus", " ".join(words)) is not None


def _in_other_order(words: Sequence[str]) -> str:
    """The GPU that words name in another order, or behind its size: `laptop 4080`, `8gb 3070`; else nothing."""
    size, *rest = words
    name = " ".join(rest)
    if size_in(size) is not None and not NO_SIZE.fullmatch(size):
        plain = re.sub(r"(?<=\d)s$", "", name, flags=re.IGNORECASE)  # 40GB A100s
        if shipped_called("gpus", plain) is not None:
            return f"{plain} {size}"
    with_dashes = named("vramplan.cli.near:same")("gpus", " ".join(words)) if size_in(words[-1]) is None else None
    if with_dashes is not None:
        return str(with_dashes)
    is_begun = shipped_called("gpus", size) is not None  # whose name goes on in its own order
    if is_begun or not any(letter.isdigit() for letter in "".join(words)):
        return ""
    of_words = named("vramplan.cli.near:of_words")
    if len(words) > 2 and size_in(words[-1]) is not None and (card := of_words("gpus", words[:-1])) is not None:
        return f"{card} {words[-1]}"
    return of_words("gpus", words) or ""


def a_gpu_it_seems(reader: WordsReader, word: str, found: list[TypedOption]) -> TypedOption | None:
    """A second word that no GPU is called, as the GPU that it can only be: who reads it says what is near.

    None where it belongs to the name of the model, which has it then. Raises UsageError where it may be something else.
    """
    named_so = next(one for one in found if one.parameter and one.parameter.name == "model")
    model = str(named_so.value)
    whole = f"{model}-{word}"
    is_variant = VARIANT.fullmatch(word) and named("vramplan.catalog.model_names:profile_by")(whole) is not None
    is_open = not is_all_named(reader, found) and OF_A_MODEL.fullmatch(word) is not None
    if is_variant or is_open or shipped_called("models", whole) is not None:
        found[found.index(named_so)] = named_so._replace(value=whole)
        return None
    spoken = named("vramplan.cli.spoken:hint_for")(word, reader, is_all_named=is_all_named(reader, found))
    hint = second_word(model, word, reader.words, reader.command.name)
    hint = spoken if hint is None or (spoken is not None and hint.startswith(OF_A_KEY)) else hint
    gpu = reader.declared.get("--gpu")
    is_named = any(one.parameter is gpu for one in found) or any(
        reader.declared.get(one.partition("=")[0], reader.declared.get(one[:2])) is gpu for one in reader.words
    )
    is_phrase = any(letter.isspace() for letter in word) and not any(letter.isdigit() for letter in word)
    is_name = (not is_phrase and not _is_named_behind(reader)) or out_of("gpus", word) is not None
    if hint is None and gpu is not None and not is_named and is_name:
        return TypedOption(gpu, "--gpu", meant_by(reader, "gpus", word))
    raise UsageError(
        f"what is {shown(word)}?", hint=hint or f"the model is named already; a GPU is given as --gpu {quoted(word)}"
    )


def _is_named_behind(reader: WordsReader) -> bool:
    """Whether one of the words that follow is the GPU, so that the word before them is none."""
    words = reader.words
    texts = (" ".join(words[at : at + count]) for at in range(len(words)) for count in (1, 2))
    return any(reader.names_a_gpu(text, behind=size_in(text) is not None) for text in texts)


def is_all_named(reader: WordsReader, found: Sequence[TypedOption]) -> bool:
    """Whether the GPU is named beside the model, so that another word is neither."""
    gpu = reader.declared.get("--gpu")
    return gpu is None or any(one.parameter is gpu for one in found)


def meant_by(reader: WordsReader, kind: Kind, word: str) -> str:
    """A name, or the only one that it can be where nothing is called so, which is said then."""
    count, name = counted(word) or (None, word) if kind == "gpus" else (None, word)
    found = named("vramplan.cli.near:near")(kind, name)
    if found is None:
        return word
    reader.tell(f"there is no {LABELS[kind]} {name!r}, which is read as {found}")
    return found if count is None else f"{count}x{found}"


def a_model(reader: WordsReader, word: str) -> TypedOption:
    """A word as the model: with those behind it that belong to its name, or the only name that it can be.

    Raises UsageError where a model stands behind it.
    """
    behind = reader.behind()
    for count in range(len(behind), 0, -1):
        if not any(reader.names_a_gpu(one, behind=True) for one in behind[:count]):
            whole = "-".join((word, *behind[:count]))
            if shipped_called("models", whole) is not None:
                del reader.words[:count]
                return TypedOption(reader.declared["--model"], "--model", whole)
    if not is_path(word) and "/" not in word and not reader.names_a_model(word) and _is_unknown(word):
        if _begins_a_model(reader, reader.words) and "--profiles" not in reader.words:
            hint = named("vramplan.cli.spoken:hint_for")(word, reader)
            raise UsageError(f"what is {shown(word)}?", hint=hint or _a_fine_tune(reader, word))
        for count in range(len(behind), 0, -1):
            whole = "-".join((word, *behind[:count]))
            is_near = not any(reader.names_a_gpu(one, behind=False) for one in behind[:count])
            if is_near and named("vramplan.cli.near:near")("models", whole) is not None:
                del reader.words[:count]
                return TypedOption(reader.declared["--model"], "--model", meant_by(reader, "models", whole))
        word = meant_by(reader, "models", word)
    return TypedOption(reader.declared["--model"], "--model", word)


def _a_fine_tune(reader: WordsReader, word: str) -> str | None:
    """What to write where words may be the name of a fine-tune: `nous hermes 2 mistral 7b`, in one word."""
    behind = reader.behind()
    for count in range(len(behind), 0, -1):
        whole = "-".join((word, *behind[:count]))
        if named("vramplan.catalog.model_names:profile_by")(whole) is not None:
            return f"the name of a fine-tune is one word, as in {whole}; else leave {word!r} out"
    return None


def _begins_a_model(reader: WordsReader, words: Sequence[str]) -> bool:
    """Whether the name of a model stands somewhere in the words, in one of them or in several."""
    plain = list(takewhile(lambda one: not one.startswith("-"), words))
    names = ("-".join(plain[at : at + count]) for at in range(len(plain)) for count in (1, 2, 3))
    return any(reader.names_a_model(one) for one in names)


def _is_unknown(word: str) -> bool:
    """Whether no model is called so, nor is the shape of one in the name."""
    try:
        named("vramplan.catalog.models:find_model")(word)
    except InputError:
        return True
    return False


def gpus_by_name(reader: WordsReader, one: TypedOption) -> TypedOption:
    """`--gpus h100,h200` is --gpu h100,h200: an option for a number with names of GPUs for a value."""
    names, gpu = str(one.value).split(","), reader.declared.get("--gpu")
    if gpu is None or any(name.isdecimal() or not reader.names_a_gpu(name, behind=False) for name in names):
        return one
    reader.tell(f"{one.shown} is read as --gpu {one.value}")
    return TypedOption(gpu, one.spelling, one.value, "--gpu")
