"""Training less than every weight: frozen parts, and what it means for the walk over the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from vramplan.replay.models.part_names import LAYERS
from vramplan.replay.observers import Trained
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import DType, Shape


class Frozen(Trained):
    """Some parts of a model are not trained: `requires_grad_(False)` on them.

    A frozen weight has no gradient and no optimizer state. What its operators save for backward follows from
    autograd's rule, tensor by tensor: see the rules of the operators.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        """Whether a weight that is made now is trained."""
        path = path_of(tape.part, name)
        return trainable and not any(matches(word, path) for word in self.words)

    def block(self, number: int) -> object:
        """Which words say something about the block."""
        return words_of_block(self.words, number)


def words_of_block(words: Sequence[str], number: int) -> tuple[str, ...]:
    """Those that say something about the block of a number, in whichever stack."""
    return tuple(word for word in words if matches(_of_layers(word), (LAYERS, str(number))))


def are_whole_blocks(words: Sequence[str]) -> bool:
    """Whether the words name whole blocks, and nothing else: `layers.0-3`, `encoder.layers.0`."""
    return all(word.endswith(_of_layers(word)) for word in words)


class BlocksAlone(Frozen):
    """Nothing outside of the blocks is trained, and of the blocks those that no word names."""

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        """Whether a weight that is made now is trained."""
        return LAYERS in path_of(tape.part, name) and super().making(tape, name, shape, dtype, trainable)


def _of_layers(word: str) -> str:
    """The blocks that a word names: `layers.3-5.mlp` -> `layers.3-5`; another word says the same of every block."""
    parts = word.split(".")
    after = parts.index(LAYERS) + 1 if LAYERS in parts else len(parts)
    return f"{LAYERS}.{parts[after]}" if after < len(parts) else LAYERS


def path_of(part: Sequence[str], name: str) -> tuple[str, ...]:
    """The parts of a weight's name, from the outer to the inner; that it is a weight or a bias is no part of it."""
    path = ".".join((*part, name)).split(".")
    return tuple(path[:-1] if path[-1] in ("weight", "bias") else path)


@lru_cache(maxsize=100_000)
def matches(word: str, path: tuple[str, ...]) -> bool:
    """Whether a word names a part: neighbouring parts of the path, where a number may be a range of blocks."""
    wanted = word.split(".")
    return any(
        all(_is(one, part) for one, part in zip(wanted, path[start:], strict=False))
        for start in range(len(path) - len(wanted) + 1)
    )


def _is(wanted: str, part: str) -> bool:
    first, dash, last = wanted.partition("-")
    if dash and first.isdecimal() and last.isdecimal() and part.isdecimal():
        return int(first) <= int(part) <= int(last)
    return wanted == part
