"""Techniques of a training loop, each an object that takes part in the phases of an iteration that concern it.

An iteration (vramplan/replay/step.py) calls every phase of every technique that its job uses; a technique has methods
for the phases in which it does something. `TECHNIQUES` says which jobs use which, and imports no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.engines import imported
from vramplan.options import words
from vramplan.replay.inputs import Objective
from vramplan.replay.models.modules import (
    DISTILLED,
    LABEL_SMOOTHER,
    LOGIT_PAIRS,
    POLICIES,
    PREFERENCES,
    PREFERENCES_OVER_LOGITS,
    REWARD,
    TILED,
    TILED_DIVERGENCE,
    TOP_TOKENS,
    Recipe,
)
from vramplan.replay.observers import Sharding
from vramplan.replay.precision import PRECISIONS, Precision
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import Parameter, Tensor


class Technique:
    """Takes part in an iteration: the phases in the order in which they come. Each does nothing unless overridden."""

    records_in_backward = False  # whether backward records weights that forward has not

    def __init__(self, setup: Setup, tape: Tape, precision: Precision) -> None:
        self.setup, self.tape, self.precision = setup, tape, precision

    def before_model(self) -> None:
        """The model is about to be built."""

    def before_forward(self) -> None:
        """The model is about to run."""

    def given(self, arguments: list[Tensor], states: list[StandingState]) -> list[Tensor]:
        """What the model is given in place of its arguments; `states` are the bytes of all inputs."""
        return arguments

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, scaled for backward."""
        return loss

    def after_forward(self) -> None:
        """The loss is there."""

    def beside_outputs(self) -> list[Tensor]:
        """What the outputs that a loop holds have besides the model's own."""
        return []

    def before_clipping(self) -> None:
        """The gradients are complete."""

    def clip(self) -> None:
        """Gradients are clipped, unless the sharding does it."""

    def before_step(self) -> None:
        """The optimizer is about to step."""

    def after_step(self) -> None:
        """The optimizer has stepped, and the gradients are still there: called in the reverse order."""

    def buffers(self) -> list[int]:
        """Bytes of the buffers that it gives the model."""
        return []

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """What is on the device during the whole iteration; `buffers` are the bytes of those of the model."""
        return []

    def never_walked(self) -> Sequence[Parameter]:
        """Of weights that backward records: those that it does not come to."""
        return ()

    def annotate(self, record: Record) -> None:
        """Note in the record what else there is to say."""


class Shards(Sharding):
    """How data-parallel devices share the states, phase by phase. As it stands, a device has everything for itself."""

    clips = False  # `before_step` has the clipping in it
    divides_loss = False  # `before_backward` divides the loss by the micro-steps
    ends_in_backward = False  # what `after_backward` does is a callback of backward itself
    tape: Tape

    def before_forward(self) -> None:
        """Forward begins."""

    def before_backward(self, loss: Tensor) -> Tensor:
        """Backward begins; the loss that it begins with."""
        return loss

    def after_backward(self) -> list[Parameter]:
        """Backward is over; the parameters that this device steps."""
        return self.tape.parameters

    def before_step(self) -> None:
        """The step begins."""

    def gradients(self) -> list[Any]:
        """Gradients that the optimizer has stepped by, beside those that are parameters' own."""
        return []

    def after_step(self) -> None:
        """The gradients go."""

    def cut_from(self) -> list[tuple[int, ...]]:
        """Bytes of what the device has of each parameter that it steps, whole, before it keeps its shard alone."""
        return []

    def states(self) -> list[StandingState]:
        """What is there during the whole iteration, beside weights and states of the optimizer."""
        return []

    def drop(self) -> None:
        """Nothing more will be asked: forget the parameters."""

    def annotate(self, record: Record) -> None:
        """Note in the record what else there is to say of this device."""


class OneDevice(Shards):
    """No other device shares the states."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape


def trains_less(setup: Setup) -> bool:
    """Whether a job trains less than every weight."""
    return bool(setup.frozen) or setup.adapter is not None or setup.trained_blocks != "all"


def keeps_gradients(setup: Setup) -> bool:
    """Whether gradients are there when the iteration begins."""
    return setup.accumulating or setup.persistent_gradients or setup.fp32_gradients


def frees_gradients(setup: Setup) -> bool:
    """Whether the optimizer frees each gradient before its step is over."""
    return setup.trained_blocks == "badam"


def going(setup: Setup) -> bool:
    """Whether it does so on one device, or puts others in their place: who shares the states has the gradients."""
    replaces = setup.optimizer.startswith("galore-adamw-8bit")
    return (frees_gradients(setup) or replaces) and setup.sharding is None


def clips_on_device(setup: Setup) -> bool:
    """Whether gradients are clipped on the device, in the element type of the weights."""
    return setup.max_gradient_norm is not None and not setup.fp32_gradients and not setup.offload


def is_flat(setup: Setup) -> bool:
    """Whether the states are shared by FSDP1, which clips by itself."""
    return setup.sharding is not None and setup.sharding.version == 1


def recomputes_reentrantly(setup: Setup) -> bool:
    """Whether there are checkpoints, and they are reentrant."""
    return setup.checkpoint_reentrant and any(segment.checkpointed for segment in setup.segments)


def multiplies_in_float8(setup: Setup) -> bool:
    """Whether linear layers of Transformers are converted: compiled, their casts to fp8 are parts of other kernels."""
    asked = PRECISIONS[setup.precision].float8 or setup.precision == "fsdp-fp8"
    return asked and not setup.compile and setup.model.engine is None


def casts_images(setup: Setup) -> bool:
    """Whether a policy of FSDP casts what the model is given, and that is images or sounds."""
    given = setup.image_size is not None or setup.model.takes_audio
    return given and PRECISIONS[setup.precision].stored is not None


def returns_keys_and_values(setup: Setup) -> bool:
    """Whether the model returns keys and values with its outputs."""
    return setup.use_cache and bool(imported("vramplan.replay.techniques.key_values:returns_cache")(setup))


TECHNIQUES: tuple[tuple[Callable[[Setup], object], str], ...] = (
    (trains_less, "vramplan.replay.techniques.trained:TrainsLess"),
    (lambda setup: setup.trained_blocks.startswith("lisa:"), "vramplan.replay.techniques.blockwise:KeepsStates"),
    (returns_keys_and_values, "vramplan.replay.techniques.key_values:ReturnsKeysAndValues"),
    (lambda setup: setup.teacher is not None, "vramplan.replay.techniques.distillation:Teaches"),
    (lambda setup: setup.tiled_mlp is not None, "vramplan.replay.techniques.tiled_mlp:TilesMLP"),
    (recomputes_reentrantly, "vramplan.replay.reentrant:ReentrantCheckpoints"),
    (lambda setup: keeps_gradients(setup) and not going(setup), "vramplan.replay.gradients:ResidentGradients"),
    (lambda setup: keeps_gradients(setup) and going(setup), "vramplan.replay.gradients:GoingGradients"),
    (lambda setup: bool(setup.liger_kernels), "vramplan.replay.techniques.liger:RunsLigerKernels"),
    (lambda setup: setup.qat is not None, "vramplan.replay.techniques.fake_quantization:RoundsInForward"),
    (multiplies_in_float8, "vramplan.replay.techniques.float8:MultipliesInFloat8"),
    (lambda setup: setup.offload_activations, "vramplan.replay.offload:OffloadsActivations"),
    (
        lambda setup: setup.max_gradient_norm is not None and setup.fp32_gradients,
        "vramplan.replay.techniques.clipping:ClipsFp32",
    ),
    (lambda setup: clips_on_device(setup) and is_flat(setup), "vramplan.replay.sharding.flat_parameter:ClipsFlat"),
    (lambda setup: clips_on_device(setup) and not is_flat(setup), "vramplan.replay.techniques.clipping:Clips"),
    (lambda setup: setup.masked_apart, "vramplan.replay.techniques.padding:MaskedApart"),
    (casts_images, "vramplan.replay.sharding.cast_images:CastsImages"),
    (lambda setup: setup.planned is not None, "vramplan.replay.techniques.planned_split:PlannedSplit"),
    (lambda setup: setup.ema, "vramplan.replay.techniques.averaging:Averages"),
    (lambda setup: setup.grad_scaler, "vramplan.replay.techniques.scaling:ScalesLoss"),
)
"""Who takes part: which jobs, and the class. The order counts: the scaler lets go before the average is updated."""


OBJECTIVES = {
    TILED: "vramplan.replay.techniques.objectives:ScoresTokens",
    LABEL_SMOOTHER: "vramplan.replay.techniques.objectives:SmoothsLabels",
    DISTILLED: "vramplan.replay.techniques.distillation:Distils",
    TILED_DIVERGENCE: "vramplan.replay.techniques.tiled_distillation:DistilsInTiles",
    TOP_TOKENS: "vramplan.replay.techniques.top_tokens:DistilsFromFile",
    **dict.fromkeys(PREFERENCES, "vramplan.replay.techniques.preference_pairs:Preferences"),
    **dict.fromkeys(PREFERENCES_OVER_LOGITS, "vramplan.replay.techniques.preference_logits:PreferencesOverLogits"),
    **dict.fromkeys(LOGIT_PAIRS, "vramplan.replay.techniques.pair_losses:LogitPairs"),
    REWARD: "vramplan.replay.techniques.pair_losses:Rewards",
    **dict.fromkeys(POLICIES, "vramplan.replay.techniques.policy:Policies"),
}
"""Losses that the training loop makes when the model has returned, and who makes them."""


OF_VIRTUAL_TOKENS = {
    **dict.fromkeys(words.EMBEDDED_PROMPTS, "vramplan.replay.techniques.virtual_tokens:Prompted"),
    words.PREFIX: "vramplan.replay.techniques.prefixes:Prefixed",
}
"""Adapters that change what the model is given, and who gives it."""


def objective_of(setup: Setup, tape: Tape, recipe: Recipe) -> Objective:
    """What the model is given, and how its loss comes to be."""
    address = OBJECTIVES.get(setup.loss)
    if setup.adapter is not None:  # virtual tokens are beside no loss but the model's own, and that of smoothed labels
        address = OF_VIRTUAL_TOKENS.get(setup.adapter.kind, address)
        if setup.adapter.is_prefix and setup.loss == LABEL_SMOOTHER:
            address = "vramplan.replay.techniques.prefixes:SmoothsBesidePrefix"
    objective: type[Objective] = Objective if address is None else imported(address)
    return objective(setup, tape, recipe)


def shards_of(setup: Setup, tape: Tape, recipe: Recipe, precision: Precision) -> Shards:
    """How devices share the states; the model is built."""
    if setup.sharding is None:
        alone = OneDevice(tape)
        if setup.casts_buffers:
            alone.casts_buffers, alone.buffer_dtype = True, precision.frozen or precision.stored
            tape.enlist(Sharding, alone)
        return alone
    shards: Shards = imported("vramplan.replay.sharding:sharding_of")(setup, tape, recipe, precision)
    shards.buffer_dtype = precision.frozen or precision.stored
    tape.enlist(Sharding, shards)
    tape.observe(shards)
    return shards


def techniques_of(setup: Setup, tape: Tape, precision: Precision) -> tuple[Technique, ...]:
    """The techniques that a job uses."""
    return tuple(imported(address)(setup, tape, precision) for uses, address in TECHNIQUES if uses(setup))
