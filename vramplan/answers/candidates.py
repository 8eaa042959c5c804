"""The candidates of a search among plans: the choices that are open, their combinations, what each asks of a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from vramplan.options.words import SPLITS

PLAIN = "-"  # the value of a choice that leaves the option out
SHARDINGS = ("ddp", "fsdp", "fsdp-grad-op", "zero1", "zero2", "zero3", "distributed-optimizer")
CHECKPOINTS = ("none", "selective-op", "selective", "every:4", "every:2", "sqrt", "full")
ATTENTIONS = ("flash", "efficient", "eager")
LOSSES = (PLAIN, "fused")
OFFLOADS = (PLAIN, "optimizer", "parameters,optimizer")
COMPILED = (PLAIN, "true")
MOST_TENSOR = 8  # tensor parallelism stays inside a node

COMPLEXITY = {
    "sharding": {
        "ddp": 0,
        "fsdp": 1,
        "fsdp-grad-op": 1,
        "zero1": 1,
        "zero2": 1,
        "zero3": 2,
        "distributed-optimizer": 1,
    },
    "checkpointing": {"none": 0, "full": 1, "selective": 1, "selective-op": 2, "sqrt": 2, "every": 2, "optimal": 2},
    "attention": dict.fromkeys(ATTENTIONS, 1),
    "loss": {"fused": 1},
    "offload": {"optimizer": 2, "parameters,optimizer": 3},
    "compile": {"true": 1},
}
"""How much each choice asks of a person: 0 is the plain script, 1 a switch, 2 code or another program, and 3 where the
weights are on the host too. A degree of tensor, context or expert parallelism above 1 counts 2, one of a pipeline 3.
"""
DEGREES = {"tensor": 2, "context": 2, "pipeline": 3, "expert": 2}
EXPERT = "expert"  # within the replicas


def open_axes(
    devices: int, *, splits: bool, experts: int = 0, attention: str | None = None
) -> dict[str, tuple[str, ...]]:
    """The choices that are open for so many devices, by option.

    `splits`: the program splits models over devices. `experts`: those of a block of the model. `attention`: what the
    program has without an option.
    """
    powers = [2**power for power in range(devices.bit_length()) if devices % 2**power == 0]
    degrees = tuple(PLAIN if one == 1 else str(one) for one in powers)
    few = tuple(one for one in degrees if one == PLAIN or int(one) <= MOST_TENSOR)
    axes: dict[str, tuple[str, ...]] = {}
    if splits and devices > 1:
        axes |= {"tensor": few, "pipeline": degrees, "context": few}
        if experts:
            axes[EXPERT] = tuple(one for one in degrees if one == PLAIN or experts % int(one) == 0)
    if devices > 1:
        axes["sharding"] = SHARDINGS if not splits else (PLAIN, *SHARDINGS)
    if attention in ATTENTIONS[1:]:  # nothing beats flash, neither in time nor in memory
        axes["attention"] = (PLAIN, *(one for one in ATTENTIONS if one != attention))
    return axes | {"checkpointing": CHECKPOINTS, "loss": LOSSES, "compile": COMPILED, "offload": OFFLOADS}


def complexity(one: Mapping[str, str], axes: Mapping[str, tuple[str, ...]]) -> int:
    """What the choices of a plan ask of a person. Of a list that was given the first value is what they have."""
    points = 0
    for option, value in one.items():
        if option in DEGREES:
            points += DEGREES[option] if value != PLAIN else 0
        elif option in COMPLEXITY:
            points += COMPLEXITY[option].get(value.partition(":")[0], 1) if value != PLAIN else 0
        else:
            points += value != axes[option][0]
    return points


SHARES = ("sharding", "loss", "compile", "offload")  # choices with which a device computes the same products


class Family:
    """The combinations that differ in how states are shared, in the loss and in compiling alone.

    `values` are those of the other choices, `order` is that of all.
    """

    def __init__(
        self, values: Mapping[str, str], shares: Mapping[str, tuple[str, ...]], order: tuple[str, ...]
    ) -> None:
        self.values, self.shares, self.order = values, shares, order

    def __len__(self) -> int:
        return prod(map(len, self.shares.values()))

    def __iter__(self) -> Iterator[dict[str, str]]:
        every = {option: self.values.get(option, PLAIN) for option in self.order}
        for values in product(*self.shares.values()):
            yield {**every, **dict(zip(self.shares, values, strict=True))}


def families_of(axes: Mapping[str, tuple[str, ...]], devices: int) -> Iterator[Family]:
    """All combinations whose degrees divide the devices, in families."""
    shares = {option: values for option, values in axes.items() if option in SHARES}
    others = {option: values for option, values in axes.items() if option not in SHARES}
    for values in product(*others.values()):
        one = dict(zip(others, values, strict=True))
        replica = replica_of(one)
        if devices % replica or devices // replica % _degree(one, EXPERT):
            continue
        own = dict(shares)
        if "sharding" in own:
            own["sharding"] = tuple(value for value in own["sharding"] if (value != PLAIN) is (replica < devices))
        yield Family(one, own, tuple(axes))


def replica_of(one: Mapping[str, str]) -> int:
    """The devices that share one replica of the model."""
    return prod(_degree(one, option) for option in SPLITS)


def _degree(one: Mapping[str, str], option: str) -> int:
    value = one.get(option, PLAIN)
    return 1 if value == PLAIN else int(value)


def is_layout(one: Mapping[str, str], devices: int) -> bool:
    """Whether the degrees divide the devices, and states are shared exactly where there is whom to share them with."""
    replica = replica_of(one)
    if devices % replica or devices // replica % _degree(one, EXPERT):
        return False
    return "sharding" not in one or (one["sharding"] != PLAIN) is (replica < devices)
