"""Two options that say one thing together: 4 bits and their double quantization, GaLore and states of 8 bits."""

from __future__ import annotations

from vramplan.cli import named
from vramplan.cli.typed import TypedOption, is_quiet

TOGETHER = {
    "quantization": {frozenset(("nf4", "nf4-double")): "nf4-double"},
    "optimizer": {frozenset(("galore-adamw", "adamw-8bit")): "galore-adamw-8bit"},
}
"""Of an option: two of its values, and the one that they mean where both are given."""


def refined(found: list[TypedOption]) -> list[TypedOption]:
    """The options, with two that say one thing as one, in the place of the first."""
    result = list(found)
    for name, pairs in TOGETHER.items():
        several = [one for one in result if one.parameter is not None and one.parameter.name == name]
        meant = pairs.get(frozenset(_word_of(name, one) for one in several))
        if meant is None or len(several) != 2 or several[0].spelling == several[1].spelling:
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


def _word_of(name: str, one: TypedOption) -> str:
    """The value in the words of the job format, without a rank behind it."""
    row = named("vramplan.options.table:parameters")()[name]
    found = named("vramplan.options.spellings:meaning")(str(one.value), row.words, row.spellings)
    return str(one.value if found is None else found.word).partition(":")[0]
