"""The name of a GPU or of a model that was typed as several words: `RTX 4090`, `8x A100 80GB`, `Qwen2.5 7B`."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.catalog.locate import shipped_called
from vramplan.catalog.scope import out_of
from vramplan.cli.meant import second_word
from vramplan.cli.reader import TIMES, WordsReader
from vramplan.cli.typed import TypedOption
from vramplan.errors import UsageError
from vramplan.options.flags import quoted


def joined(word: str, behind: Sequence[str], *, is_model_named: bool) -> tuple[int, str]:
    """How many of the words behind belong to the name that begins with the word, and that name."""
    if not is_model_named and shipped_called("models", word) is not None:  # no GPU's name begins with a model's
        return 0, word
    if word.isdecimal() and shipped_called("gpus", word) is None:  # `8 h100`, `8 x h100`
        start = int(behind[:1] != [] and behind[0].lower() in TIMES)
        for count in range(len(behind), start, -1):
            gpu = " ".join(behind[start:count])
            if WordsReader.names_a_gpu(gpu, behind=False):
                return count, f"{word}x{gpu}"
    for count in range(len(behind), 0, -1):
        words = (word, *behind[:count])
        gpu = " ".join(words)
        if WordsReader.names_a_gpu(gpu, behind=is_model_named) or (is_model_named and out_of("gpus", gpu) is not None):
            return count, gpu
        model = "-".join(words)
        if not is_model_named and shipped_called("models", model) is not None:
            return count, model
    return 0, word


def a_gpu_it_seems(reader: WordsReader, word: str, found: Sequence[TypedOption]) -> TypedOption:
    """A second word that no GPU is called, as the GPU that it can only be: who reads it says what is near.

    Raises UsageError where it may be something else.
    """
    model = next(str(one.value) for one in found if one.parameter and one.parameter.name == "model")
    hint = second_word(model, word, reader.words, reader.command.name)
    gpu = reader.declared.get("--gpu")
    is_named = any(one.parameter is gpu for one in found) or any(
        reader.declared.get(one.partition("=")[0], reader.declared.get(one[:2])) is gpu for one in reader.words
    )
    is_phrase = any(letter.isspace() for letter in word) and not any(letter.isdigit() for letter in word)
    is_name = not is_phrase or out_of("gpus", word) is not None
    if hint is None and gpu is not None and not is_named and is_name:
        return TypedOption(gpu, "--gpu", word)
    raise UsageError(
        f"what is {word!r}?", hint=hint or f"the model is named already; a GPU is given as --gpu {quoted(word)}"
    )


def gpus_by_name(reader: WordsReader, one: TypedOption) -> TypedOption:
    """`--gpus h100,h200` is --gpu h100,h200: an option for a number with names of GPUs for a value."""
    names, gpu = str(one.value).split(","), reader.declared.get("--gpu")
    if gpu is None or any(name.isdecimal() or not reader.names_a_gpu(name, behind=False) for name in names):
        return one
    reader.tell(f"{one.shown} is read as --gpu {one.value}")
    return TypedOption(gpu, one.spelling, one.value, "--gpu")
