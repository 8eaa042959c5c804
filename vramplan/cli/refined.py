"""Two options that say one thing together: 4 bits and their double quantization, GaLore and states of 8 bits."""

from __future__ import annotations

from vramplan.cli import named
from vramplan.cli.typed import TypedOption, is_quiet
from vramplan.options.option import WORD

TOGETHER = {
    "adapter": {frozenset(("lora", "dora")): "dora"},
    "quantization": {frozenset(("nf4", "nf4-double")): "nf4-double"},
    "optimizer": {frozenset(("galore-adamw", "adamw-8bit")): "galore-adamw-8bit"},
}
"""Of an option: two of its values, and the one that they mean where both are given."""


def refined(found: list[TypedOption]) -> list[TypedOption]:
    """The options, with two that say one thing as one, in the place of the first."""
    result = _agreeing(found)
    for name, pairs in TOGETHER.items():
        several = [one for one in result if one.parameter is not None and one.parameter.name == name]
        meant = pairs.get(frozenset(_word_of(name, one) for one in several))
        is_open = name == "adapter" and not all(one.is_shortcut for one in several)  # --adapter names the one
        if meant is None or is_open or len(several) != 2 or several[0].spelling == several[1].spelling:
            continue
        first, second = several
        rank = "".join(colon + rank for _, colon, rank in (str(one.value).partition(":") for one in several))
        both = first._replace(
            spelling=f"{first.spelling} {second.spelling}", value=f"{meant}{rank}", name=first.name or first.spelling
        )
        if not is_quiet(found):
            option = both.name if both.name.startswith("--") else f"--{name}"
            said = f"note: {first.shown} and {second.shown} are read as {option} {both.value}"
            named("vramplan.cli.output:say")(said)
        result[result.index(first)] = both
        result.remove(second)
    return result


def _agreeing(found: list[TypedOption]) -> list[TypedOption]:
    """The options without what another one says already, in other words: `--use_fsdp --fsdp full_shard`."""
    rows = named("vramplan.options.table:parameters")()
    result: list[TypedOption] = []
    said: dict[tuple[str, str], TypedOption] = {}
    for one in found:
        row = None if one.parameter is None else rows.get(one.parameter.name)
        if row is None or row.kind != WORD or one.value is None or one.parameter is None:
            result.append(one)
            continue
        same = (one.parameter.name, _whole_word_of(one.parameter.name, one))
        first = said.setdefault(same, one)
        if first is one:
            result.append(one)
        elif first.is_weak and not one.is_weak:
            result[result.index(first)] = said[same] = one
        elif first.spelling == one.spelling:
            result.append(one)  # the same option twice, of which one may be another option mistyped
    return result


def _whole_word_of(name: str, one: TypedOption) -> str:
    """The value in the words of the job format, with all that it sets."""
    row = named("vramplan.options.table:parameters")()[name]
    found = named("vramplan.options.spellings:meaning")(str(one.value), row.words, row.spellings)
    return f"{one.value} ()" if found is None else f"{found.word} {found.also}"


def _word_of(name: str, one: TypedOption) -> str:
    """The value in the words of the job format, without a rank behind it."""
    row = named("vramplan.options.table:parameters")()[name]
    found = named("vramplan.options.spellings:meaning")(str(one.value), row.words, row.spellings)
    return str(one.value if found is None else found.word).partition(":")[0]
