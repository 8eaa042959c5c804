"""What is trained of a model: everything, all but frozen parts, or an adapter beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vramplan.memory.inputs import inputs_of, make_inputs
from vramplan.memory.precision import Precision
from vramplan.models import family
from vramplan.models.modules import CAUSAL_LM_FP32, LAYERS, Recipe, Segment
from vramplan.models.trained import Frozen, path_of
from vramplan.spec import ModelShape
from vramplan.tape.tape import Tape, Trained
from vramplan.tape.tensors import FP32, DType, Shape

if TYPE_CHECKING:
    from vramplan.memory.iteration import Setup


def trained_of(setup: Setup, precision: Precision) -> Trained:
    """The policy of an iteration that trains less than every weight."""
    if setup.adapter is None:
        return Frozen(setup.frozen)
    from vramplan.models.adapters import Adapted

    return Adapted(setup.adapter, setup.quantization, precision.weights, precision.autocast)


class Names(NamedTuple):
    """What the weights and the linear layers of a model are called."""

    paths: tuple[tuple[str, ...], ...]  # of each weight, from the outer part to the inner, without repetitions
    linears: tuple[str, ...]
    table: tuple[str, ...]  # the first weight: the table of the token embeddings

    def parts(self, layers: int) -> tuple[str, ...]:
        """Words that name a part: parts of every family, ranges of blocks, and single modules."""
        outer = [path[0] for path in self.paths if path[0] != LAYERS]
        inner = [part for path in self.paths for part in path[1:] if not part.isdecimal()]
        blocks = [LAYERS, f"{LAYERS}.0-{layers - 1}"] if any(path[0] == LAYERS for path in self.paths) else []
        return tuple(dict.fromkeys((*outer, *blocks, *inner)))


class _Collector:
    """Trains nothing, and notes what the model makes."""

    def __init__(self) -> None:
        self.paths: dict[tuple[str, ...], None] = {}
        self.linears: dict[str, None] = {}

    def parameter(self, tape: Tape, name: str, shape: Shape, dtype: DType) -> bool:
        self.paths[path_of(tape.part, name)] = None
        return False

    def linear(self, tape: Tape, module: Any, name: str) -> None:
        self.linears[name] = None

    def block(self, number: int) -> object:
        return None

    def shared_bytes(self) -> int:
        return 0


def names_of(model: ModelShape) -> Names:
    """Build the model once, on a sequence of one token, to learn how its parts are called."""
    tape, collector = Tape(1), _Collector()
    tape.trained = collector
    segments = (Segment(1, model.layers, False),)
    recipe = Recipe(model, FP32, 1, "eager", segments, CAUSAL_LM_FP32, 0.0, 0.0, 0.0)
    network = family(model.family)(tape, recipe)
    arguments, _ = make_inputs(tape, inputs_of(network, recipe))
    network(*arguments)
    paths = tuple(collector.paths)
    return Names(paths, tuple(collector.linears), paths[0])
