"""What a traced tape notes: weights, operators, the tensors that they keep, and storages with their births and deaths.

Notes hold no tensors: they name storages by their index and weights by their identity.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.recorder import Path
from vramplan.replay.tensors import DType, Parameter, Shape, Tensor
from vramplan.results.explain import Blocks

BUFFERS = "buffer.0"
Ref = int | str  # a storage, or a state: `#` and the id of a weight, or the name of an input or buffer


class NotedWeight:
    """What is known of one parameter; its name is complete once the module that holds it was seen at work."""

    __slots__ = ("blocks", "name", "parameter", "trainable")

    def __init__(self, parameter: Parameter, blocks: Blocks | None) -> None:
        self.parameter = parameter
        self.trainable = parameter.node is not None
        self.blocks = blocks
        self.name = parameter.name


class OperatorRun:
    """One operator in one direction: a forward operator, its recomputation, or the run of its node in backward."""

    __slots__ = (
        "births",
        "blocks",
        "direction",
        "edges",
        "frame",
        "frees",
        "inputs",
        "kept",
        "label",
        "of",
        "operator",
        "parts",
        "phase",
        "rules",
        "saves",
    )

    def __init__(self, operator: str, direction: str, phase: str, blocks: Blocks | None) -> None:
        self.operator = operator
        self.direction = direction  # forward | recompute | backward | step
        self.phase = phase
        self.blocks = blocks
        self.rules: tuple[str, ...] = ()  # from the inner to the outer
        self.parts: tuple[str, ...] = ()  # of the module, below the block
        self.frame = 0  # the running function of the rule
        self.inputs: list[Ref] = []
        self.edges: list[tuple[int, int]] = []
        self.saves: list[Keep] = []
        self.births: list[int] = []
        self.frees: list[int] = []  # storages that died from its beginning to that of the next
        self.of: OperatorRun | None = None  # backward: the forward operator
        self.kept = False  # whether it was recorded for backward at all
        self.label = ""  # its name, once all names are known


KEPT = "kept"  # the role of a result that a selective checkpoint keeps


class Keep:
    """A tensor that an operator keeps for its backward."""

    __slots__ = ("dtype", "owner", "recomputed", "ref", "roles", "shape")

    def __init__(self, ref: Ref, roles: Sequence[str], tensor: Tensor, recomputed: bool, owner: OperatorRun) -> None:
        self.ref = ref
        self.roles = tuple(roles)  # what the running rule calls it; a tensor may have several names there
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.recomputed = recomputed  # kept by running the segment again, not from forward on
        self.owner = owner  # the forward operator whose backward wants it


class Birth:
    """What is known of one storage."""

    __slots__ = (
        "blocks",
        "born_at",
        "continues",
        "copies",
        "death",
        "death_after",
        "death_direction",
        "died_at",
        "died_path",
        "died_phase",
        "dtype",
        "gradient_of",
        "index",
        "keeps",
        "label",
        "operator",
        "path",
        "rules",
        "shape",
        "source",
        "step",
    )

    def __init__(self, index: int, operator: str, step: OperatorRun, born_at: int, path: Path) -> None:
        self.index = index
        self.path = path  # the repeated units around its birth
        self.operator = operator
        self.step = step
        self.blocks = step.blocks
        self.born_at = born_at
        self.rules: tuple[str, ...] = ()
        self.shape: Shape | None = None
        self.dtype: DType | None = None
        self.copies = 1  # identical tensors that are one storage here (foreach kernels)
        self.continues: int | None = None  # the same memory, counted under another component from here on
        self.gradient_of: Ref | None = None
        self.source: Ref | None = None  # a cast: of this weight; scratch of the step: for this weight
        self.keeps: list[Keep] = []
        self.died_at = -1
        self.died_path: Path = ()
        self.died_phase = ""
        self.death: OperatorRun | None = None  # the node that ran in backward when it died
        self.death_after: OperatorRun | None = None  # the last operator before its death
        self.death_direction = ""
        self.label = ""
