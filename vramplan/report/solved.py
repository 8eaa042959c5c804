"""What was solved for, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from vramplan.report.headline import degrees
from vramplan.report.numbers import gib_against, gib_down, text_of
from vramplan.results import TIGHT
from vramplan.results.solved import NODE_DEVICES, Solved

NAMES = {
    "sequence_length": "sequence length",
    "micro_batch_size": "micro-batch",
    "adapter.rank": "rank",
    "model.layers": "number of layers",
    "parallel.data": "number of GPUs",
}


def solved_words(solved: Solved, job: Mapping[str, Any]) -> str:
    """`The largest micro-batch is 8 (--micro-batch 8). With 9 it needs 32.10 of 31.74 GiB: tight.`

    `job` is the echo of the job that was solved: where tensor, pipeline or context parallelism shares a replica, the
    number that is solved for counts replicas.
    """
    name = NAMES[solved.key]
    counts = solved.key == "parallel.data"
    if solved.value is None:
        return f"No {name} fits: {solved.bound}." if counts else f"No {name} fits, not even 1."
    sizes = degrees(job)
    each = prod(size for key, size in sizes.items() if key != "data") if counts else 1
    words = f"The {'smallest' if counts else 'largest'} {name} is {solved.value * each}"
    words += f", {solved.value} times {each}" if each > 1 else ""
    words += ", of whole nodes of 8" if counts and solved.value > NODE_DEVICES else ""
    words += f" ({solved.option})" if solved.option else ""
    words += "." if solved.certain else ": likely, but not certain."
    if solved.next_device_bytes is None or solved.next_usable_bytes is None:
        bound = solved.bound or ""
        return f"{words} {bound[:1].upper()}{bound[1:]}." if counts else f"{words} There is no next one: {bound}."
    needs = text_of(gib_against(solved.next_device_bytes, solved.next_usable_bytes))
    usable = text_of(gib_down(solved.next_usable_bytes))
    verdict = (solved.next_verdict or "").replace("-", " ")
    if solved.next_verdict == TIGHT and solved.next_device_bytes > solved.next_usable_bytes:
        verdict = "more likely than not it does not fit"
    following = (solved.next_value or 0) * each
    return f"{words} With {following} it needs {needs} of {usable} GiB: {verdict}."
