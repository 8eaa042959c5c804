"""The walk over the blocks of a model: which are checkpoints, and which are played on their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from vramplan.replay.autograd import checkpoint
from vramplan.replay.models.modules import Segment, as_is
from vramplan.replay.models.part_names import LAYERS
from vramplan.replay.models.rows import StackRow
from vramplan.replay.observers import HiddenStates, Sharding, Trained
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor

Block = Callable[[Any], Any]
NOTHING: Mapping[str, Any] = {}
Handed = Mapping[str, "Tensor | None"] | Callable[[int], Mapping[str, "Tensor | None"]]  # by the number of the block
FLOATS = ("cos", "sin")  # attributes of a block that FSDP2 casts on their way to it
Carried = TypeVar("Carried", bound="Tensor | tuple[Any, ...]")  # the hidden state, or a tuple that begins with it


@overload
def run_blocks(
    tape: Tape,
    segments: Sequence[Segment],
    make: Callable[[int], Block],
    hidden: list[Tensor],
    *,
    kind: Callable[[int], object] | None = None,
    alike: bool = True,
    make_up: Callable[[int], object] | None = None,
    outputs: list[Any] | None = None,
    kept: list[Tensor] | None = None,
    start: int = 0,
    numbered_from: int = 0,
    carries: bool = False,
    handed: Handed = NOTHING,
    hands_to_all: bool = False,
    every: bool = False,
    switched: bool | None = None,
) -> Tensor: ...


@overload
def run_blocks(
    tape: Tape,
    segments: Sequence[Segment],
    make: Callable[[int], Block],
    hidden: Carried,
    *,
    kind: Callable[[int], object] | None = None,
    alike: bool = True,
    make_up: Callable[[int], object] | None = None,
    outputs: list[Any] | None = None,
    kept: list[Tensor] | None = None,
    start: int = 0,
    numbered_from: int = 0,
    carries: bool = False,
    handed: Handed = NOTHING,
    hands_to_all: bool = False,
    every: bool = False,
    switched: bool | None = None,
) -> Carried: ...


def run_blocks(
    tape: Tape,
    segments: Sequence[Segment],
    make: Callable[[int], Block],
    hidden: Any,
    *,
    kind: Callable[[int], object] | None = None,
    make_up: Callable[[int], object] | None = None,
    alike: bool = True,
    outputs: list[Any] | None = None,
    kept: list[Tensor] | None = None,
    start: int = 0,
    numbered_from: int = 0,
    carries: bool = False,
    handed: Handed = NOTHING,
    hands_to_all: bool = False,
    every: bool = False,
    switched: bool | None = None,
) -> Any:
    """Send the hidden state through all blocks, checkpointing the segments that ask for it.

    `make(i)` builds block i; a block that stands for several identical ones is built once, inside its repeated unit, so
    that its parameters are counted for all of them. Blocks may be of several kinds, `kind(i)`, which differ only in the
    tensors that they share with all of their kind, or, if they are not `alike`, in what they compute too; or of several
    make-ups, `make_up(i)`, which differ in their modules and share nothing that the others do not. Blocks may return a
    tuple that begins with the hidden state; where the original keeps it in a variable until the next block has
    returned, `outputs` is that variable; where it keeps the hidden states of all, `kept` is that list. `handed` are
    tensors that the original hands to a block as positional arguments, by the attributes that blocks have them in, or a
    function that gives those of a block. Where each block is a checkpoint, as a switch of Transformers makes it, that
    keeps them like its input, and with `hands_to_all` so does one of several blocks.

    `switched` says that the switch of Transformers makes the checkpoints; None: where each block of these is one. In a
    model of several stacks it is where those of all are.

    With `every` each block of a checkpoint is played, as one of them keeps what all before it have saved again.

    `start` is the number of the first block in the answer, where other blocks ran before, and `numbered_from` that in
    its own stack, where a stack runs in several parts. With `carries` a block is
    given all that the block before it returned, and so is the caller: the hidden state is a tuple then.

    A hidden state in a list is taken out of it: the caller then keeps none, as an original whose variable is bound to
    what the blocks return.
    """
    if type(hidden) is list:
        hidden = hidden.pop()
    hand: Callable[[Any], Any] = all_of if carries else hidden_of
    firsts = [] if kind is None else first_of_each(segments, kind)
    if Trained in tape.roles:
        make = in_its_part(tape, make, numbered_from)
        block = tape.role(Trained).block
        firsts += blocks_apart(segments, lambda i: block(numbered_from + i), kind, make_up)
    if switched is None:
        switched = each_is_a_checkpoint(segments)
    hands = hands_to_all or switched
    sharding = tape.role(Sharding)
    # whether a checkpoint is inside of the hooks of what shares the states
    inside = sharding.hooks_stay_outside and bool(tape.told.checkpointed) and switched
    handed_to = handed if callable(handed) else lambda _: handed
    if inside:
        make = sharding.around_checkpoints(make, tuple(name for name, one in handed_to(0).items() if one is not None))
    make = keeping(tape, sharding.units(make), hidden)
    firsts += sharding.apart()
    row = StackRow(tape, firsts, None if alike else kind, make_up)
    at = 0
    for i, (times, size, checkpointed, selects) in enumerate(segments):
        if not checkpointed or inside:
            for first in row.items(at, times * size, start=start + at):
                result = make(at + first)(hidden)
                hidden = hand(result)
                if outputs is not None:
                    outputs[:] = (result,)
                if kept is not None:
                    kept.append(hidden)
        else:
            # runs of checkpoints of different sizes hand over nothing but the hidden state, as neighbours in a run do,
            # unless the loop keeps what a single block returned
            opens = outputs is not None or i == 0 or not segments[i - 1].checkpointed
            closes = outputs is not None or i + 1 == len(segments) or not segments[i + 1].checkpointed
            for first in row.items(at, times, size, start=start + at, opens=opens, closes=closes):
                beside = handed_to(at + first * size) if hands else NOTHING
                given = {name: sharding.taken(one) for name, one in beside.items() if one is not None}
                names = tuple(given)
                segment = segment_of(row, size, make, at + first * size, carries=carries, names=names, every=every)
                entering = sharding.taken(hidden) if switched and isinstance(hidden, Tensor) else hidden
                result = checkpoint(tape, segment, entering, *given.values(), keeps=selects)
                del segment, given, entering
                hidden = hand(result)
                if outputs is not None:
                    outputs[:] = (result,)
                if kept is not None:
                    kept.append(hidden)
        at += times * size
    return hidden


def keeping(tape: Tape, make: Callable[[int], Any], hidden: Any) -> Callable[[int], Any]:
    """The same blocks, and what the first one is given and each one gives is kept where somebody asks for it.

    Hooks of Transformers do that while the model runs, and not where a checkpoint runs a block again.
    Source: transformers 5.23, utils/output_capturing.py, capture_outputs.
    """
    kept = tape.role(HiddenStates).asked()
    if kept is None:
        return make
    kept.append(hidden_of(hidden))

    def made(number: int) -> Any:
        block = make(number)

        def run(given: Any) -> Any:
            result = block(given)
            asked = tape.role(HiddenStates).asked()
            if asked is not None:
                asked.append(hidden_of(result))
            return result

        run.block = block  # type: ignore[attr-defined]  # whose attributes are what is handed to it
        return run

    return made


class GivenFloats:
    """Tensors in fp32, on their way to blocks that have them as attributes of these names.

    Hooks that cast them stand outside of the checkpoint of a block, which then holds its own copies.
    """

    def __init__(
        self, tape: Tape, segments: Sequence[Segment], names: Sequence[str], tensors: Sequence[Tensor]
    ) -> None:
        casts = tape.role(Sharding).inputs_dtype is not None and each_is_a_checkpoint(segments)
        self.handed: Mapping[str, Tensor] = dict(zip(names, tensors, strict=True)) if casts else {}
        self.to_block = not (casts and not tape.told.checkpointed)  # else blocks hand on what they have


class GivenRotary(GivenFloats):
    """Cosines and sines: blocks have them as `cos` and `sin`."""

    def __init__(self, tape: Tape, segments: Sequence[Segment], rotary: tuple[Tensor, Tensor]) -> None:
        super().__init__(tape, segments, FLOATS, rotary)
        self.own = rotary if self.to_block else None


def with_attributes(block: Any, names: Sequence[str], values: Sequence[Tensor], hidden: Any) -> Any:
    """What a block gives that has these attributes while it runs, and holds none of them afterwards."""
    inner = getattr(block, "block", block)  # that a unit of what is shared has
    for name, one in zip(names, values, strict=True):
        setattr(inner, name, one)
        del one
    try:
        return block(hidden)
    finally:
        for name in names:
            setattr(inner, name, None)


def each_is_a_checkpoint(segments: Sequence[Segment]) -> bool:
    """Whether every block is a checkpoint of its own."""
    return all(checkpointed and size == 1 for _, size, checkpointed, _ in segments)


def all_of(result: Any) -> Any:
    """What a block returns, as it is."""
    return result


def hidden_of(result: Any) -> Tensor:
    """The hidden state in what a block returns."""
    hidden: Tensor = result[0] if type(result) is tuple else result
    return hidden


def first_of_each(segments: Sequence[Segment], kind: Callable[[int], object]) -> list[int]:
    """The first stored and the first checkpointed block of each kind: with them goes what their kind shares."""
    found: dict[tuple[object, bool], int] = {}
    at = 0
    for times, size, checkpointed, _ in segments:
        for i in range(at, at + times * size):
            found.setdefault((kind(i), checkpointed), i)
        at += times * size
    return list(found.values())


class Segmented:
    """The function of a checkpoint, and the blocks that it runs."""

    def __init__(self, run: Callable[..., Any], blocks: Mapping[int, Any]) -> None:
        self.run, self.blocks = run, blocks

    def __call__(self, *given: Any) -> Any:
        """What it gives."""
        return self.run(*given)

    def holds(self) -> Iterator[Tensor]:
        """What the blocks have beside their own: tensors that an original hands to a block by name."""
        for block in self.blocks.values():
            for one in vars(getattr(block, "block", block)).values():
                yield from (each for each in (one if type(one) is tuple else (one,)) if type(each) is Tensor)


def segment_of(
    row: StackRow,
    size: int,
    make: Callable[[int], Block],
    at: int,
    *,
    carries: bool = False,
    names: Sequence[str] = (),
    every: bool = False,
) -> Callable[..., Any]:
    """The function of one checkpoint. It runs twice, over the same blocks, and holds no more than they do.

    A checkpoint of a single block returns the values of the block. One of several blocks returns the hidden state
    alone, or with `carries` the values of its last block. It does not hold what is handed to it, which blocks have in
    attributes of these names.
    """
    blocks: dict[int, Any] = {}
    makes = [make]
    sharding = row.tape.role(Sharding)
    every = every or sharding.every_block_of_a_checkpoint
    alone = [*range(max(0, size - sharding.last_in_checkpoint), size)]
    if sharding.last_in_checkpoint and at == 0 and size > 1:
        alone.append(1)  # the first block of all may have a weight more, and the next one frees its buffer
    hand: Callable[[Any], Any] = as_is if carries else hidden_of

    def run(hidden: Any, *handed: Tensor) -> Any:
        result = None
        for first in row.items(at, size, every=every, alone=alone):
            block: Any = blocks.get(first)
            if block is None:
                block = blocks[first] = makes[0](at + first)
            result = with_attributes(block, names, handed, hidden)
            hidden = hand(result)
        makes.clear()
        return result if size == 1 else hidden

    return Segmented(run, blocks)


def in_its_part(tape: Tape, make: Callable[[int], Any], first: int = 0) -> Callable[[int], Any]:
    """A block is made as a part of the model that has its number; `first` is that of the first one."""

    def made(number: int) -> Any:
        with tape.building(f"{LAYERS}.{first + number}"):
            return make(number)

    return made


def blocks_apart(
    segments: Sequence[Segment],
    trained: Callable[[int], object],
    kind: Callable[[int], object] | None,
    make_up: Callable[[int], object] | None,
) -> list[int]:
    """Blocks that are played on their own, because they are not like their neighbours.

    Blocks in a row that are trained alike form a run. Its first block of some modules may get an input that needs no
    gradient, as what is trained may be in other modules alone, and the second be the first that keeps what all of a
    kind share; the last of the run hands its output to another one.
    """
    found: dict[tuple[int, object, object, bool], int] = {}
    apart: list[int] = []
    run, before, at = 0, None, 0
    for times, size, checkpointed, _ in segments:
        for i in range(at, at + times * size):
            now = trained(i)
            if i and now != before:
                run += 1
                apart.append(i - 1)
            before = now
            key = (run, kind and kind(i), make_up and make_up(i), checkpointed)
            found[key] = found.get(key, 0) + 1
            if found[key] <= 2:
                apart.append(i)
        at += times * size
    return apart
