"""The answer at the largest value of a key that fits, or at the fewest devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vramplan.answers.fit import FEWEST, MAX, answer
from vramplan.errors import UsageError, near_matches
from vramplan.job import build_any_job
from vramplan.job.echo import model_to_dict
from vramplan.job.typed import Typed
from vramplan.options import table
from vramplan.options.words import UNKNOWNS
from vramplan.planner.decision import ALWAYS
from vramplan.planner.replays import Replays, kept
from vramplan.planner.solve import DEVICES, LAYERS, MICRO_BATCH, RANK, SEQUENCE, solve
from vramplan.results import FitResult
from vramplan.values.machine import Gpu
from vramplan.values.textbook import AnyJob, TextbookJob

WORDS = {
    **dict.fromkeys(
        ("sequence", "seq", "sequence-length", "seq-len", "length", "context", "context-length", "ctx"), SEQUENCE
    ),
    **dict.fromkeys(("micro-batch", "micro-batch-size", "batch", "batch-size", "bs", "mbs"), MICRO_BATCH),
    **dict.fromkeys(("rank", "lora-rank", "lora-r", "r"), RANK),
    "layers": LAYERS,
}
SOME = (1, 2, 8, 64)  # devices: a number of them that goes with the other keys is among these
"""What people call what they solve for."""


def unknown_of(keys: Mapping[str, Any], largest: str | None) -> tuple[dict[str, Any], str | None]:
    """The keys of a job without what is solved for, and its key; None where nothing is.

    `largest` is the word of `--max`. A key may ask for itself: `sequence_length: max`, `parallel: {data: auto}`.
    Raises UsageError for several unknowns, and for one that is given too.
    """
    asked = [] if largest is None else [_key_of(largest)]
    left: dict[str, Any] = {}
    for key, value in keys.items():
        inside = dict(value) if key in table.GROUPS and isinstance(value, Mapping) else None
        if inside is not None:
            for name in [name for name, item in inside.items() if _asks(f"{key}.{name}", item)]:
                asked.append(f"{key}.{name}")
                del inside[name]
            left[key] = inside
        elif _asks(key, value):
            asked.append(key)
        else:
            left[key] = value
    if len(set(asked)) > 1:
        raise UsageError(f"{' and '.join(asked)} are both open: one is solved for at a time", key="--max")
    if not asked:
        return dict(keys), None
    group, _, name = asked[0].rpartition(".")
    place = left.get(group) if group in table.GROUPS else left
    if isinstance(place, Mapping) and place.get(name) is not None and group != "model":
        raise UsageError(f"{asked[0]} is given and solved for", key="--max", hint="leave one of them out")
    return left, asked[0]


def _asks(key: str, value: Any) -> bool:
    """Whether the value of a key asks for the key."""
    if not isinstance(value, str):
        return False
    word = value.strip().lower()
    return word in FEWEST if key == DEVICES else word == MAX and key in (SEQUENCE, MICRO_BATCH, RANK)


def _key_of(word: str) -> str:
    found = WORDS.get(word.strip().lower().replace("_", "-"))
    if found is None:
        hint = near_matches(word, list(WORDS)) or "known: " + ", ".join(UNKNOWNS)
        raise UsageError(f"{word[:60]!r} is nothing to solve for", key="--max", hint=hint)
    return found


def solved_answer(
    job: AnyJob,
    typed: Typed,
    unknown: str,
    larger_gpus: Callable[[], Iterable[Gpu]],
    replays: Replays | None = None,
) -> FitResult:
    """The whole answer with the unknown solved for; where none fits, with its smallest value, or the most devices."""
    if isinstance(job, TextbookJob):
        raise UsageError("the equations of texts are not solved for a key", key="--max", hint="another --runtime")
    replays = kept() if replays is None else replays
    solved, change = solve(unknown, typed, lambda base: model_to_dict(base.model), replays)
    changed = typed.changed(change)
    with_it = changed({})
    assert with_it is not None
    if solved.value is not None and unknown != LAYERS:
        solved = solved._replace(option=typed.option(change))
    return answer(with_it, larger_gpus, replays, lambda: changed, closer_from=ALWAYS)._replace(solved=solved)


def _with_devices(keys: dict[str, Any], profile_dirs: Sequence[Path]) -> dict[str, Any]:
    """The keys with a number of devices that goes with them, as FSDP needs two; with the last where none goes."""
    parallel = keys.get("parallel")
    if not isinstance(parallel, Mapping) or not any(value is not None for value in parallel.values()):
        return keys
    for count in SOME:
        several = {**keys, "parallel": {**parallel, "data": count}}
        if Typed.of_keys(several, profile_dirs)({}) is not None:
            break
    return several


def solved_keys(
    keys: Mapping[str, Any],
    largest: str | None,
    profile_dirs: Sequence[Path],
    larger_gpus: Callable[[], Iterable[Gpu]],
    replays: Replays | None = None,
) -> FitResult:
    """The same of the keys of options or of the API, of which one may ask for itself."""
    keys, unknown = unknown_of(keys, largest)
    if unknown == DEVICES:
        keys = _with_devices(keys, profile_dirs)
    job = build_any_job(keys, profile_dirs=profile_dirs)
    typed = Typed.of_keys(keys, profile_dirs)
    if unknown is None:  # a value only looked as if it asked
        return answer(job, larger_gpus, replays, lambda: typed, closer_from=ALWAYS)
    return solved_answer(job, typed, unknown, larger_gpus, replays)
