"""Which traced rows everybody runs: some of each file, with every technique of it, and of all every two that meet.

A technique is a word that a row says: its optimizer, a kind of checkpoints, that it accumulates. Of a number counts
whether it is 0 or 1, and else what 2 and 8 leave of it, by which tensors are aligned. What the rows say of their models
(tied embeddings, grouped queries) meets each type of model, and not every technique.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).parent
ENGINES = HERE.parent / "engines"
T = TypeVar("T")

NO_WORDS = {"name", "gpu", "measured", "trace", "use", "parameters", "max_positions"}
BLOCKS = re.compile(r"(?<=\D)\.\d+(-\d+)?\b")  # which of them a name is of
STACKS = ("layers", "decoder_layers", "vision_layers")


def path_of(file: str) -> Path:
    """Where the rows of a file lie: beside the tests of a training program, if they are of one, else here."""
    return next(ENGINES.glob(f"*/{file}.json"), HERE / f"{file}.json")


@cache
def row_files() -> tuple[Path, ...]:
    """All files with traced rows that are jobs."""
    found = [*HERE.glob("*.json"), *ENGINES.glob("*/*.json")]
    return tuple(sorted(path for path in found if path.read_text("utf-8").startswith('{"version":')))


@cache
def written(path: Path) -> tuple[dict[str, Any], ...]:
    """The rows of a file as they stand there, with what the file says of all."""
    document = json.loads(path.read_text("utf-8"))
    return tuple(document.get("defaults", {}) | row for row in document["jobs"])


@cache
def chosen() -> dict[str, tuple[dict[str, Any], ...]]:
    """Those of each file that everybody runs, as they stand there."""
    every = [(path.stem, row) for path in row_files() for row in written(path)]
    numbers: dict[str, int] = {}
    says = [_says(file, row, lambda word: numbers.setdefault(word, len(numbers))) for file, row in every]
    taken = {*cover(says, [_price(row) for _, row in every])}
    found: dict[str, list[dict[str, Any]]] = {path.stem: [] for path in row_files()}
    for at, (file, row) in enumerate(every):
        if at in taken:
            found[file].append(row)
    return {file: tuple(rows) for file, rows in found.items()}


def cover(sets: Sequence[Set[Hashable]], prices: Sequence[float]) -> Iterator[int]:
    """Places of sets that have together what all have, taken one by one: the lowest price for each new element.

    What a set adds never grows while others are taken, so the first of the heap that is up to date is the best.
    """
    heap = [(price / len(has), at) for at, (price, has) in enumerate(zip(prices, sets, strict=True))]
    heapify(heap)
    seen: set[Hashable] = set()
    while heap:
        price, at = heappop(heap)
        new = sets[at] - seen
        if not new:
            continue
        now = prices[at] / len(new)
        if now > price:
            heappush(heap, (now, at))
            continue
        seen |= new
        yield at


def _says(file: str, row: dict[str, Any], number: Callable[[str], int]) -> set[int]:
    """What a row has, as numbers: techniques of its file, words of its type of model, and each two techniques."""
    model = row["model"] if isinstance(row["model"], dict) else {"family": row["model"]}
    kind = number(f"type {model.get('transformers_model_type', model.get('family'))}")
    techniques = sorted({number(word) for word in _words(row | {"model": {}}, "")})
    words = {*techniques, *(number(word) for word in _words(model, "model"))}
    own = number(f"file {file}")
    meet = (*combinations(techniques, 2), *((own, one) for one in techniques), *((kind, word) for word in words))
    return {one << 16 | other for one, other in meet}


def _words(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, below in value.items():
            if name not in NO_WORDS:
                yield from _words(below, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for one in value:
            yield from _words(one, key)
    elif isinstance(value, str):
        yield f"{key}={BLOCKS.sub('', value.partition(':')[0])}"
    elif isinstance(value, bool) or value is None or value in (0, 1):
        yield f"{key}={value}"
    else:
        yield f"{key}={'odd' if value % 2 else 'ragged' if value % 8 else 'even'}"


def _price(row: dict[str, Any]) -> float:
    """What a replay costs: each block, and what is around them."""
    model = row["model"]
    return 2 + sum(model.get(name) or 0 for name in STACKS) if isinstance(model, dict) else 20
