"""A second model that runs beside the one that trains, without gradients: a reference, or a teacher."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

from vramplan.replay.models import family
from vramplan.replay.models.modules import Recipe
from vramplan.replay.observers import Rounding, Sharding, Trained, train
from vramplan.replay.precision import PRECISIONS, precision_of
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.sharding.units import shard_shape
from vramplan.replay.tensors import Parameter
from vramplan.values.parallel import FSDP_GRAD_OP, ZERO3, is_fsdp

T = TypeVar("T")


def run_beside(
    setup: Setup,
    tape: Tape,
    recipe: Recipe,
    run: Callable[[Any], T],
    trained: Callable[[], Trained] | None = None,
    *,
    whole: bool = False,
) -> tuple[T, list[int], list[Parameter]]:
    """What `run` makes of a model of this recipe, the bytes of its buffers and of what else stays of it from step to
    step, and its weights, which backward never sees, unless these are in the bytes.

    It has an autocast context of its own, and nothing that replaces layers of the model that trains, unless `trained`
    gives it: then it is that model itself. Who shares the states is told, unless each device has the model `whole`.
    """
    before = len(tape.parameters)
    roles, observers = dict(tape.roles), tape.told.observers
    other = recipe if trained is None else None
    other_trained = None if trained is None else trained()
    shards = tape.role(Sharding)
    beside = None if whole else shards.beside(recipe, other_trained)
    told = [one for one in observers if one.walks_others]
    if beside is None:
        tape.dismiss(Sharding)
    elif beside is not shards:
        tape.enlist(Sharding, beside)
        told.append(beside)
    if trained is None:
        tape.dismiss(Rounding)
        told = [one for one in told if not one.replaces_layers]
    tape.tell(told)
    tape.role(Sharding).begin_other(other)
    tape.dismiss(Trained)
    if other_trained is not None:
        train(tape, other_trained)
    model = family(recipe.shape.family)(tape, recipe if trained is not None else recipe._replace(evaluates=True))
    precision = PRECISIONS[setup.precision]
    has_policy_alone = precision.stored is not None and trained is None and not whole  # TRL's prepare_fsdp
    tape.autocast, tape.no_grad = None if has_policy_alone else precision.autocast, True
    found = run(model)
    tape.no_grad = False
    weights, every = tape.parameters[before:], tape.parameters
    tape.parameters = weights  # of the model that is asked
    buffers: list[int] = getattr(model, "own_buffers", model.buffers)()  # without those of a training loop
    tape.parameters = every
    del every[before:]
    left, is_all = tape.role(Sharding).end_other()
    tape.roles = roles
    tape.tell(observers)
    for one in weights:
        one.node = None  # it was its own accumulator: a cycle
    return found, [*buffers, left] if left else buffers, [] if is_all else weights


def bytes_beside(buffers: list[int], weights: list[Parameter], setup: Setup, *, whole: bool = False) -> int:
    """Bytes of its weights, shared among the devices that share those of the model that trains, and of its buffers.

    FSDP2 cuts each weight along its first dimension; what others share lies behind each other.
    """
    sharding, shards = setup.sharding, 1 if whole else shards_beside(setup)
    if whole or sharding is None or not is_fsdp(sharding.kind):
        share = -(-sum(rounded(one.elements * one.dtype.itemsize) * one.copies for one in weights) // shards)
        return share + sum(rounded(buffer) for buffer in buffers)
    precision = precision_of(setup.precision, half_weights=setup.half_weights)
    stored = precision.frozen or precision.stored
    sizes = [(stored or one.dtype).itemsize for one in weights]
    cut = [prod(shard_shape(one.shape, shards)) for one in weights]
    each = list(zip(weights, cut, sizes, strict=True))
    share = sum(rounded(elements * size) * one.copies for one, elements, size in each)
    if sharding.kind == FSDP_GRAD_OP:  # after its first forward it stays whole
        share += sum(rounded(elements * shards * one.dtype.itemsize) * one.copies for one, elements, _ in each)
    return share + sum(rounded(buffer) for buffer in buffers)


def shards_beside(setup: Setup) -> int:
    """Among how many devices the weights of a reference are shared: where those of the model that trains are.

    Source: trl 1.16.0, trainer/dpo_trainer.py, DPOTrainer.__init__; models/utils.py, prepare_deepspeed (stage 3 as the
    model that trains, else stage 0) and prepare_fsdp.
    """
    sharding = setup.sharding
    shared = sharding is not None and (is_fsdp(sharding.kind) or sharding.kind == ZERO3)
    return sharding.shards if shared and sharding is not None else 1
