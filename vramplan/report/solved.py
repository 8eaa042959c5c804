"""What was solved for, in a sentence."""

from __future__ import annotations

from vramplan.report.numbers import gib_against, gib_down, text_of
from vramplan.results.solved import Solved

NAMES = {
    "sequence_length": "sequence length",
    "micro_batch_size": "micro-batch",
    "adapter.rank": "rank",
    "model.layers": "number of layers",
    "parallel.data": "number of GPUs",
}


def solved_words(solved: Solved) -> str:
    """`The largest micro-batch is 8 (--micro-batch 8). With 9 it needs 32.10 of 31.74 GiB: tight.`"""
    name = NAMES[solved.key]
    extreme = "smallest" if solved.key == "parallel.data" else "largest"
    if solved.value is None:
        return f"No {name} fits, not even {'the largest' if extreme == 'smallest' else '1'}."
    words = f"The {extreme} {name} is {solved.value}"
    words += f" ({solved.option})" if solved.option else ""
    words += "." if solved.certain else ": likely, but not certain."
    if solved.next_device_bytes is None or solved.next_usable_bytes is None:
        return f"{words} There is no next one: {solved.bound}."
    needs = text_of(gib_against(solved.next_device_bytes, solved.next_usable_bytes))
    usable = text_of(gib_down(solved.next_usable_bytes))
    verdict = (solved.next_verdict or "").replace("-", " ")
    return f"{words} With {solved.next_value} it needs {needs} of {usable} GiB: {verdict}."
