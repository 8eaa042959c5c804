"""A traced replay, with a readable name for every tensor and operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from vramplan.answers.explanation.copies import Copies, neighbour_of
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.parts import takes_samples_apart
from vramplan.replay.notes import Birth, NotedWeight, OperatorRun, Ref
from vramplan.replay.observers import Accumulation
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.traced import TracedTape
from vramplan.results.explain import Blocks

BLOCK = "block"


class Trace:
    """The notes of one replay at one micro-batch; `direct` plays every block, as tests do to compare.

    Where samples are taken one by one, each has tensors of its own, so every one is played.
    """

    def __init__(self, setup: Setup, batch: int, *, direct: bool = False) -> None:
        self.setup, self.batch = setup, batch
        direct = direct or takes_samples_apart(setup.model.family)
        self.tape = TracedTape(batch, direct=direct)  # sizes follow from 2, shapes are asked for
        self.record: Record = replay(setup, tape=self.tape)
        self.sizes = self.record.sizes(self.batch)
        self.births: list[Birth] = self.tape.births
        self.steps: list[OperatorRun] = self.tape.steps
        self.weights: list[NotedWeight] = list(self.tape.weights.values())
        self.layers = setup.model.numbered_blocks
        self._name()
        self.copies = Copies(self.tape, self.record)
        self.phase, self.moment = self.record.worst(self.batch)

    # ---------------------------------------------------------------------------------------------------- sizes
    def bytes_of(self, birth: Birth) -> int:
        """Bytes of one copy, in allocator blocks."""
        return self.sizes[birth.index] // birth.copies

    def component(self, birth: Birth) -> str:
        """The component that a storage counts under."""
        return self.record.categories[birth.index]

    def is_kept(self, birth: Birth) -> bool:
        """Whether the end of forward still holds it."""
        return bool(self.sizes[birth.index]) and birth.born_at < self.record.saved_at <= birth.died_at

    def is_at_peak(self, birth: Birth, block: int) -> bool:
        """Whether the tensor is alive at the peak: the copy in this block, if it is one of a block."""
        number = self.number_of(birth, block)
        return any(self.copies.is_alive(part, number, self.phase, self.moment) for part in self.chain(birth))

    def number_of(self, birth: Birth, block: int) -> int | None:
        """The block, if the storage is there; else the first that it stands for."""
        if birth.blocks is None:
            return None
        return block if block in birth.blocks.numbers() else birth.blocks.first

    @cached_property
    def alive(self) -> dict[str, list[int]]:
        """Copies and bytes by the name of the group, of all that is alive at the peak."""
        return self.grouped(self.record.alive(self.phase, self.moment))

    @cached_property
    def kept(self) -> dict[str, list[int]]:
        """The same at the end of forward."""
        return self.grouped(self.record.kept())

    def grouped(self, copies: dict[int, int]) -> dict[str, list[int]]:
        """Copies and bytes of storages, summed over the blocks."""
        groups: dict[str, list[int]] = {}
        for index, times in self.sums(copies).items():
            group = groups.setdefault(self.group_of(self.births[index]), [0, 0])
            group[0] += times * self.births[index].copies
            group[1] += times * self.sizes[index]
        return groups

    def sums(self, copies: dict[int, int]) -> dict[int, int]:
        """Copies of storages, where a sum that goes from block to block is one tensor.

        The gradient of what several blocks take is added to in each of them. What the first of them in backward made
        dies once in each copy of the next, and its group has fewer than none: there its sum takes its place.
        """
        found = dict(copies)
        while True:  # what an heir has left may be fewer than none in its own group
            totals: dict[str, int] = {}
            for index, times in found.items():
                group = self.group_of(self.births[index])
                totals[group] = totals.get(group, 0) + times * self.births[index].copies
            moved = False
            for index, times in list(found.items()):
                if times < 0 and totals[self.group_of(self.births[index])] < 0:
                    heir = self._heir(index, copies)
                    if heir != index:
                        del found[index]
                        found[heir] = found.get(heir, 0) + times
                        moved = True
            if not moved:
                return found

    def _heir(self, index: int, copies: dict[int, int]) -> int:
        """The storage in which a sum goes on: each is made when the one before it dies, until one that is alive."""
        events, at, size = self.record.events, index, self.bytes_of(self.births[index])
        while copies.get(at, 0) <= 0:
            after = self.births[at].died_at + 1
            at = events[after] if after < len(events) else -1
            if at < 0 or self.bytes_of(self.births[at]) != size:
                return index
        return at

    # ---------------------------------------------------------------------------------------------------- names
    def group_of(self, birth: Birth) -> str:
        """`block.attn.softmax`, or the name itself outside of the blocks."""
        return group_name(birth.blocks, birth.label)

    def name_of(self, birth: Birth, block: int | None = None) -> str:
        """`block.17.attn.softmax`: in this block, or in the first that it stands for."""
        return full_name(birth.blocks, birth.label, block)

    def step_name(self, step: OperatorRun, block: int | None = None) -> str:
        """The name of an operator."""
        return full_name(step.blocks, step.label, block)

    def weight_of(self, ref: Ref) -> NotedWeight:
        """The weight that a reference names."""
        assert isinstance(ref, str)
        number = int(ref[1:])
        return self.tape.weights.get(number) or self.tape.leaf_notes[number]

    def ref_name(self, ref: Ref, block: int, taken_by: Blocks | None = None) -> str:
        """The name of what an operator in a block takes: a storage, a weight, or an input."""
        if isinstance(ref, int):
            birth = self.births[ref]
            if birth.blocks is None or taken_by is None:
                return self.name_of(birth)
            return f"{BLOCK}.{neighbour_of(birth.blocks, taken_by, block)}.{birth.label}"
        if ref.startswith("#"):
            weight = self.weight_of(ref)
            return full_name(weight.blocks, weight.name, block)
        return ref

    def _name(self) -> None:
        model = self.setup.model
        if len(model.stacks) > 1 or model.stored_blocks:  # blocks of one stack are called like those of another
            for weight in self.weights:
                outer = [part for part in weight.parameter.part[:1] if part != EMBEDDINGS]
                weight.name = ".".join((*outer, weight.name))
        taken: Counter[tuple[Blocks | None, bool, str]] = Counter()

        def unique(blocks: Blocks | None, direction: str, label: str) -> str:
            again = direction == "recompute"
            taken[blocks, again, label] += 1
            number = taken[blocks, again, label]
            label = label if number == 1 else f"{label}.{number}"
            return label + ".recomputed" * again

        for step in self.steps:
            if step.direction == "backward":
                step.label = f"{step.of.label}.backward" if step.of else "loss.backward"
                continue
            label = self._step_label(step)
            step.label = unique(step.blocks, step.direction, label)
            extras = {keep.ref: keep.roles[0] for keep in step.saves if keep.roles}
            for number, index in enumerate(step.births):
                birth = self.births[index]
                if number == 0:
                    birth.label = step.label
                else:
                    stem = step.label.removesuffix(".recomputed")
                    birth.label = unique(step.blocks, step.direction, f"{stem}.{extras.get(index, 'extra')}")
        for birth in self.births:
            if birth.continues is not None:
                birth.label = self.births[birth.continues].label
            elif birth.step.direction == "backward":
                birth.label = unique(birth.blocks, "backward", self._backward_label(birth))

    def _step_label(self, step: OperatorRun) -> str:
        first = self.births[step.births[0]] if step.births else None
        if first is not None and first.source is not None:
            weight = self.weight_of(first.source)
            operator = step.operator.removeprefix("_foreach_")
            if step.direction == "step":
                return f"{weight.name}.step.{operator}"
            if weight.blocks == step.blocks or weight.blocks is None or step.direction == "recompute":
                return f"{weight.name}.{operator}"
        return ".".join((*step.parts, step.operator.lstrip("_")))

    @cached_property
    def _shared(self) -> set[int]:
        """Storages whose gradient more than one run of blocks adds to: what a stack shares, or gives to another."""
        runs: dict[int, set[Blocks | None]] = {}
        for birth in self.births:
            if isinstance(birth.gradient_of, int) and birth.blocks is not None:
                runs.setdefault(birth.gradient_of, set()).add(birth.blocks)
        return {ref for ref, blocks in runs.items() if len(blocks) > 1 and blocks != {self.births[ref].blocks}}

    def _backward_label(self, birth: Birth) -> str:
        ref, step = birth.gradient_of, birth.step
        if isinstance(ref, int):
            owner = self.births[ref]
            if owner.blocks == birth.blocks or ref in self._shared:
                return f"{owner.label}.grad"
            return "input.grad" if birth.blocks is not None else f"{self.name_of(owner)}.grad"
        if ref is not None and ref.startswith("#"):  # what else has no storage is a view of a weight
            resident = self.tape.role(Accumulation).resident
            fresh = ".fresh_grad" if resident else ".grad"  # `.grad` is then the resident one
            return self.weight_of(ref).name + fresh
        if step.of is None:
            return "loss.grad"
        return f"{step.of.label}.backward." + ("workspace" if birth.dtype is None else birth.operator.lstrip("_"))

    # ----------------------------------------------------------------------------------------------------- life
    def chain(self, birth: Birth) -> list[Birth]:
        """A tensor under all components that it is counted under, one after the other."""
        found = [birth]
        while (later := self._continued.get(found[-1].index)) is not None:
            found.append(later)
        return found

    @cached_property
    def _continued(self) -> dict[int, Birth]:
        return {birth.continues: birth for birth in self.births if birth.continues is not None}

    def heads(self) -> Iterator[Birth]:
        """Every tensor once, at its birth."""
        return (birth for birth in self.births if birth.continues is None)


def group_name(blocks: Blocks | None, label: str) -> str:
    """The name of a tensor in all blocks."""
    return label if blocks is None else f"{BLOCK}.{label}"


def full_name(blocks: Blocks | None, label: str, block: int | None = None) -> str:
    """The name of a tensor in one block: this one, if the tensor is there, or the first that it stands for."""
    if blocks is None:
        return label
    number = block if block is not None and block in blocks.numbers() else blocks.first
    return f"{BLOCK}.{number}.{label}"
