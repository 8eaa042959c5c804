"""What is trained of a model: everything, all but frozen parts, or an adapter beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, cast

from vramplan.engines import imported
from vramplan.replay.asked import AsksInputs
from vramplan.replay.checkpoints import ALTERNATE_MATMULS, MATMULS
from vramplan.replay.inputs import inputs_of, make_inputs
from vramplan.replay.models import family
from vramplan.replay.models.capable import looks_up_4bit, no_eager_attention
from vramplan.replay.models.modules import CAUSAL_LM_FP32, Recipe, Segment
from vramplan.replay.models.part_names import HEAD_LAYER, LAYERS, is_of_tokens
from vramplan.replay.models.parts import asks_no_inputs, block_lists
from vramplan.replay.observers import Trained, train
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.techniques.adapted import Adapted, AdaptedInTurns
from vramplan.replay.techniques.adapter_target import DTYPES
from vramplan.replay.techniques.adapters import GPTQ, OWN, is_end, widths
from vramplan.replay.techniques.expert_adapters import former_names
from vramplan.replay.techniques.frozen import BlocksAlone, Frozen, path_of
from vramplan.replay.techniques.gptq import in_their_order
from vramplan.replay.tensors import FP32, DType, Parameter, Shape, Tensor
from vramplan.tuples import NamedTuple
from vramplan.values.job import Adapter
from vramplan.values.model import ModelShape

ANY_IMAGE = 64  # pixels of an edge, for models that take images of all sizes


class TrainsLess(Technique):
    """Parts that are frozen, and adapters beside them."""

    def before_model(self) -> None:
        """The model is built with this policy."""
        self.trained = trained_of(self.setup, self.precision)
        train(self.tape, self.trained)
        if asks_inputs(self.setup):
            self.tape.observe(AsksInputs(self.tape))

    def before_step(self) -> None:
        """The optimizer has its parameters in the order of the modules."""
        if self.setup.quantization == GPTQ:
            self.tape.parameters[:] = in_their_order(self.tape.parameters, OWN)
        if self.setup.adapter is not None and self.setup.adapter.virtual_tokens:  # what makes them is a module behind
            self.tape.parameters.sort(key=lambda one: OWN in one.part)

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """What quantized weights share."""
        return [StandingState("weights", self.trained.shared_bytes(), 0)]

    def buffers(self) -> list[int]:
        """What adapters have beside their weights: places that they write to, and matrices that nobody trains."""
        return [size for size, copies in self.trained.places for _ in range(copies)]


def trained_of(setup: Setup, precision: Precision) -> Trained:
    """The policy of an iteration that trains less than every weight."""
    frozen = frozen_words(setup)
    if setup.adapter is None:
        return (BlocksAlone if setup.trained_blocks == "badam" else Frozen)(frozen)
    adapter, former = gathered_adapter(setup.adapter, precision), _former(setup.model, setup.adapter)
    by_index = looks_up_4bit(setup.model.family) and not setup.compile
    parts = frozen, setup.bitsandbytes, setup.quantized_from, by_index, setup.quantized_experts
    kind = AdaptedInTurns if setup.trained_blocks == "badam" else adapted_by(adapter)
    return kind(adapter, setup.quantization, precision.weights, precision.autocast, former, *parts)


def gathered_adapter(adapter: Adapter, precision: Precision) -> Adapter:
    """An adapter as a step has it: a policy of FSDP gathers its weights in the type of the others."""
    if precision.stored is None:
        return adapter
    return adapter._replace(dtype=next(word for word, dtype in DTYPES.items() if dtype is precision.weights))


def adapted_by(adapter: Adapter) -> type[Adapted]:
    """The policy of a model with an adapter of its kind."""
    if adapter.is_prefix:
        return cast("type[Adapted]", imported("vramplan.replay.techniques.prefixes:AdaptedByPrefix"))
    if imported("vramplan.values.adapter_kinds:KINDS")[adapter.kind].of_norms:
        return cast("type[Adapted]", imported("vramplan.replay.techniques.norm_adapters:AdaptedNorms"))
    return Adapted


def frozen_words(setup: Setup) -> tuple[str, ...]:
    """What is frozen, in the words of a job. Of blocks in turns the one is trained whose turn needs most.

    That is the last one, whose gradients are there first, where all blocks save something. Where what is before the
    trained block saves nothing, as BAdam has no other weight that needs a gradient, it is the first one.
    """
    if setup.trained_blocks != "badam" or not setup.frozen or asks_inputs(setup):
        return setup.frozen
    return all_but_one(setup.model, first=True)


def all_but_one(model: ModelShape, *, first: bool) -> tuple[str, ...]:
    """The blocks that are frozen while BAdam trains one, in the words of a job: the first of all, or the last.

    Where a second stack reads what the first gives, that is the first block of the one, or the last of the other, of
    those stacks in whose blocks BAdam finds something to train.
    """
    stacks, found = model.stacks, [is_in_turns(one) for one in block_lists(model)]
    outer = [""] if len(stacks) == 1 else [f"{one}." for one in outer_parts(model)]
    turn = found.index(True) if first else len(found) - 1 - found[::-1].index(True)
    words = []
    for stack, (before, blocks) in enumerate(zip(outer, stacks, strict=True)):
        start = int(stack == turn and first)
        last = blocks - 1 - int(stack == turn and not first)
        if last >= start:
            words.append(f"{before}{LAYERS}.{start}-{last}")
    return tuple(words)


def is_in_turns(block_list: str) -> bool:
    """Whether BAdam finds the blocks of a list by its name.

    Source: badam 1.4, block_optim.py, infer_param_groups.
    """
    return block_list.endswith(LAYERS)


def outer_parts(model: ModelShape) -> tuple[str, ...]:
    """The parts around each stack of blocks, in the order of the stacks; what is in no part of its own has no name."""
    inside = [path[: path.index(LAYERS)] for path in names_of(model).paths if LAYERS in path]
    return tuple(dict.fromkeys(".".join(one) for one in inside))


def asks_inputs(setup: Setup) -> bool:
    """Whether the token embeddings are asked for a gradient, trained or not.

    Transformers' own switch for checkpointing asks for it, and whoever uses reentrant checkpoints in another way has to
    do the same (`enable_input_require_grads`): one whose input needs no gradient trains nothing.
    """
    reentrant = setup.checkpoint_reentrant and any(segment.checkpointed for segment in setup.segments)
    if setup.model.published_family is not None or asks_no_inputs(setup.model.family):  # code that asks for nothing
        return reentrant
    return reentrant or every_block_is_checkpointed(setup.segments)


def every_block_is_checkpointed(segments: Sequence[Segment]) -> bool:
    """Whether these are the checkpoints that Transformers' own switch makes: of each block, keeping products or none.

    Which products are kept is an argument of the switch (`context_fn`).
    """
    kept = (None, MATMULS, ALTERNATE_MATMULS)
    return all(checkpointed and blocks == 1 and selects in kept for _, blocks, checkpointed, selects in segments)


def _former(model: ModelShape, adapter: Adapter) -> dict[str, str]:
    """The names of layers that stand for tensors of experts."""
    if model.experts is None:
        return {}
    return former_names(adapter.kind, model)


class Names(NamedTuple):
    """What the weights and the linear layers of a model are called."""

    paths: tuple[tuple[str, ...], ...]  # of each weight, from the outer part to the inner, without repetitions
    linears: tuple[str, ...]
    table: tuple[str, ...]  # the first weight, if it is the table of the token embeddings, whose rows are looked up
    widths: frozenset[int]  # inputs and outputs of the linear layers in blocks
    stacked: tuple[str, ...] = ()  # weights of experts and their routers, which are no layers
    tied_head: tuple[str, ...] = ()  # the path of a head that is tied to the table and may come apart from it
    biased: tuple[str, ...] = ()  # of the linear layers those with a bias
    inputs: frozenset[int] = frozenset()  # widths of what linear layers of PyTorch are given
    tables: frozenset[int] = frozenset()  # widths of tables of embeddings
    shapes: tuple[tuple[str, int, int], ...] = ()  # of the linear layers: names, inputs and outputs
    token_table: str = ""  # the table of the tokens; empty where no part of the model is one of embeddings
    head: str = ""  # of a language model, where it is a product of its own or of that table
    bare: frozenset[tuple[str, ...]] = frozenset()  # of the paths those of weights that are no module's weight or bias
    has_biases: bool = False  # some module has one, be it a layer or a norm

    def parts(self, layers: int) -> tuple[str, ...]:
        """Words that name a part: parts of every family, ranges of blocks, and single modules."""
        outer = [path[0] for path in self.paths if path[0] != LAYERS]
        inner = [part for path in self.paths for part in path[1:] if not part.isdecimal()]
        blocks = [LAYERS, f"{LAYERS}.0-{layers - 1}"] if any(path[0] == LAYERS for path in self.paths) else []
        return tuple(dict.fromkeys((*outer, *blocks, *inner)))


class _Collector(Trained):
    """Trains nothing, and notes what the model makes."""

    def __init__(self) -> None:
        self.paths: dict[tuple[str, ...], None] = {}
        self.linears: dict[str, None] = {}
        self.widths: set[int] = set()
        self.stacked: dict[str, None] = {}
        self.tied_head: tuple[str, ...] = ()
        self.biased: dict[str, None] = {}
        self.inputs: set[int] = set()
        self.shapes: dict[tuple[str, int, int], None] = {}
        self.token_table = self.named_head = ""
        self.bare: set[tuple[str, ...]] = set()
        self.has_biases = False

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        path = path_of(tape.part, name)
        self.paths[path] = None
        if not name.endswith((".weight", ".bias")):
            self.bare.add(path)
        self.has_biases = self.has_biases or name.endswith(".bias")
        return False

    def linear(self, tape: Tape, module: Any, name: str) -> None:
        self.linears[name] = None
        self.shapes[name, *widths(module)] = None
        if module.bias is not None:
            self.biased[name] = None
        if not module.transposed:
            self.inputs.add(module.weight.shape[1])
        if LAYERS in path_of(tape.part, name):
            self.widths.update(module.weight.shape)

    def convolution(self, tape: Tape, module: Any, name: str) -> None:
        self.linears[name] = None

    def tied(self, tape: Tape, table: Parameter, name: str) -> Parameter:
        self.tied_head = path_of(tape.part, name)
        return table

    def made(self, parameter: Parameter) -> None:
        if not self.token_table and is_of_tokens(parameter.part):
            self.token_table = parameter.name.removesuffix(".weight")

    def makes_head(self, tape: Tape, weight: Parameter) -> None:
        self.named_head = HEAD_LAYER

    def tensors(self, tape: Tape, weights: dict[str, Parameter]) -> None:
        self.stacked.update(dict.fromkeys(weights))


def adapted_end(names: Names, adapter: Adapter) -> str:
    """The table of the tokens or the head, where one of them has an adapter or rows that are trained."""
    if adapter.trainable_tokens:
        return names.token_table
    return next((one for one in (names.token_table, names.head) if one and is_end(one, adapter.targets)), "")


MOST_MODELS = 32  # of which is remembered what a forward pass told: remedies ask again and again for one


@lru_cache(maxsize=MOST_MODELS)
def names_of(model: ModelShape) -> Names:
    """Build the model once, on the smallest sample that it takes, to learn how its parts are called."""
    collector = _Collector()
    tape = Tape(1, direct=True)
    _forward(model, tape, collector)  # every block, as each has a name of its own
    paths = tuple(collector.paths)
    linears, inside, stacked = tuple(collector.linears), frozenset(collector.widths), tuple(collector.stacked)
    biased, inputs = tuple(collector.biased), frozenset(collector.inputs)
    looked_up = [one for one in tape.parameters if one.is_table]  # the weight of a module, whatever it is called here
    tables = frozenset(one.shape[1] for one in looked_up)
    table = paths[0] if any(path_of(one.part, one.name) == paths[0] for one in looked_up) else ()
    ends = collector.token_table, collector.named_head
    return Names(
        *(paths, linears, table, inside, stacked, collector.tied_head, biased, inputs, tables),
        *(tuple(collector.shapes), *ends),
        has_biases=collector.has_biases,
        bare=frozenset(collector.bare.difference(path_of(one.part, one.name) for one in looked_up)),
    )


def has_no_biases(model: ModelShape) -> bool:
    """Whether no linear layer has a bias."""
    return not names_of(model).biased


@lru_cache(maxsize=MOST_MODELS)
def is_reached(model: ModelShape, frozen: tuple[str, ...]) -> bool:
    """Whether the loss depends on a weight that is left to train: on that of LLaVA's last vision block it does not."""
    return _forward(model, Tape(1), Frozen(frozen)).node is not None


@lru_cache(maxsize=MOST_MODELS)
def is_adapter_reached(model: ModelShape, adapter: Adapter, frozen: tuple[str, ...] = ()) -> bool:
    """The same of an adapter: whether one of its weights is where the loss comes by."""
    trained = adapted_by(adapter)(adapter, None, FP32, None, _former(model, adapter), frozen=frozen)
    return _forward(model, Tape(1), trained).node is not None


class WeightShapes(NamedTuple):
    """The shapes of a model's weights, each once."""

    every: frozenset[Shape]
    trained: frozenset[Shape]
    trains_table: bool  # of embeddings

    @property
    def smallest(self) -> int:
        """The elements of the smallest weight that is trained."""
        return min((prod(shape) for shape in self.trained), default=0)


@lru_cache(maxsize=MOST_MODELS)
def shapes_of(model: ModelShape, adapter: Adapter | None, frozen: tuple[str, ...]) -> WeightShapes:
    """Those of a model and its adapter, found by a small sample."""
    tape = Tape(1, direct=True)
    policy: Trained = Frozen(frozen)
    if adapter is not None:
        policy = adapted_by(adapter)(adapter, None, FP32, None, _former(model, adapter), frozen=frozen)
    _forward(model, tape, policy)
    trained = [one for one in tape.parameters if one.node is not None]
    every, some = (frozenset(one.shape for one in several) for several in (tape.parameters, trained))
    return WeightShapes(every, some, any(one.is_table for one in trained))


def _forward(model: ModelShape, tape: Tape, trained: Trained) -> Tensor:
    """The loss of one small sample."""
    train(tape, trained)
    recipe = Recipe(
        shape=model,
        weight_dtype=FP32,
        sequence_length=model.shortest,
        attention="eager" if no_eager_attention(model.family) is None else "efficient",
        segments=tuple(Segment(1, layers, False) for layers in model.stacks),
        loss=CAUSAL_LM_FP32,
        embedding_dropout=0.0,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        image_size=(model.image_size or ANY_IMAGE) if model.takes_images else None,
    )
    network = family(model.family)(tape, recipe)
    arguments, _ = make_inputs(tape, inputs_of(network, recipe))
    loss: Tensor = network(*arguments).loss
    return loss
