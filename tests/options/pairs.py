"""The table of techniques that no traced row has together, made of the generated rows."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.replay.techniques.evidence import RELIES_ON, TOUCHES, UNITS, rows_of
from vramplan.replay.techniques.vocabulary import RELEASE, key_of

PAGE_WORDS = {
    RELEASE: "`transformers_version` before 5",
    "adapter: over experts": "an adapter over experts",
    "parallel.fsdp_units: ends": "`parallel.fsdp_units` with the embedding or the head",
    "frozen": "`frozen`",
    "loss": "the losses of preferences",
    "weight_dtype": "weights of 16 bits under autocast",
}
"""What stands for all that one key touches, where no word of a job does."""


def table() -> str:
    """A line for each technique that relies on what others change; those of one key that lack the same share a line."""
    lines: dict[tuple[str, str], list[str]] = {}
    for one in RELIES_ON:
        beside = ", ".join(_by_key(one))
        if beside:
            lines.setdefault((key_of(one), beside), []).append(one)
    rows = [f"| {_shown(alike)} | {beside} |" for (_, beside), alike in lines.items()]
    return "\n".join(["| Technique | Never traced together with |", "|---|---|", *rows])


def _shown(alike: list[str]) -> str:
    key, words = key_of(alike[0]), [one.partition(": ")[2] for one in alike]
    return PAGE_WORDS.get(alike[0], f"`{key}: {', '.join(words)}`")


def _by_key(one: str) -> Iterator[str]:
    """The techniques without a row beside one of them, under the keys of a job."""
    kinds = UNITS if one in UNITS else (one,)
    missing: dict[str, list[str]] = {}
    for other, changed in TOUCHES.items():
        reads = changed in RELIES_ON[one] and key_of(other) != key_of(one)
        if reads and not any(rows_of(kind, other).number for kind in kinds):
            missing.setdefault(key_of(other), []).append(other)
    for key, found in missing.items():
        if key == RELEASE:
            yield PAGE_WORDS[key]
            continue
        every = [other for other in TOUCHES if key_of(other) == key]
        words = ", ".join(other.partition(": ")[2] for other in found)
        if found == every and (len(every) > 1 or not words or key in PAGE_WORDS):
            yield PAGE_WORDS.get(key, f"`{key}`")
        else:
            yield f"`{key}: {words}`"
