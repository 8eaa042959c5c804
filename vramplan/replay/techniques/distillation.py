"""Distillation: a teacher beside the model that trains, whose logits the loss compares with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.inputs import Objective
from vramplan.replay.models import own
from vramplan.replay.models.modules import (
    DISTILLED,
    HIDDEN,
    LOGITS,
    TILED_DIVERGENCE,
    Output,
    Recipe,
    Segment,
)
from vramplan.replay.observers import Comparing, KeyValues, Sharding, Teacher
from vramplan.replay.operators.views import split
from vramplan.replay.precision import precision_of
from vramplan.replay.recipe import recipe_of
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.techniques.divergence import chunked_divergence, jensen_shannon, whole_divergence
from vramplan.replay.techniques.key_values import windowed_layers
from vramplan.replay.techniques.losses import CHUNKED, BeforeHead
from vramplan.replay.techniques.objectives import leave_autocast
from vramplan.replay.techniques.second_model import bytes_beside, run_beside
from vramplan.replay.techniques.tiled_distillation import chunked_divergence_loss
from vramplan.replay.tensors import INT64, Tensor
from vramplan.values.model import ModelShape
from vramplan.values.parallel import is_fsdp

STORED = "fp32"  # the precision of a model as it is loaded, where no policy casts it


class Distils(Objective):
    """TRL's GKDTrainer: both models return logits, and the loss is the divergence of the two.

    Where the trainer lets the student answer first (`lmbda`), training on the answer is the same.
    Source: trl 1.16.0, experimental/gkd/gkd_trainer.py, GKDTrainer.compute_loss.
    """

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """Both forward passes, and the loss."""
        tape = self.tape
        output = leave_autocast(tape, model(*arguments))
        tape.leave_model()
        assert isinstance(output.logits, Tensor)
        logits = tape.role(Sharding).after_model(output.logits)
        compare = tape.role(Teacher).asked()
        assert compare is not None
        return Output(compare([logits], arguments[1]), logits)

    def returned(self, output: Output) -> Output:
        """The trainer returns the loss alone."""
        return Output(None, None)


def is_whole(setup: Setup) -> bool:
    """Whether each device has a teacher whole though FSDP shares the student: GKDTrainer does not wrap it.

    Source: trl 1.16.0, experimental/gkd/gkd_trainer.py, GKDTrainer.__init__; accelerate 1.15, accelerator.py,
    Accelerator.prepare_model with `evaluation_mode`.
    """
    return setup.loss in (DISTILLED, TILED_DIVERGENCE) and setup.sharding is not None and is_fsdp(setup.sharding.kind)


class Teaches(Technique, Teacher):
    """torchtune's recipes of distillation: the teacher runs when the student has, without gradients.

    Its weights have the element type of the student's, and torchtune shares them as the student's are.
    Source: torchtune 0.6.1, recipes/knowledge_distillation_single_device.py and _distributed.py, _loss_step.
    """

    def before_model(self) -> None:
        """The student will ask for it."""
        self.tape.enlist(Teacher, self)

    def given(self, arguments: list[Tensor], states: list[StandingState]) -> list[Tensor]:
        """The teacher is given the same tokens; its weights are states."""
        self.ids, self.beside, self.at = arguments[0], arguments[2:], states
        return arguments

    def asked(self) -> Comparing:
        """What makes the divergence of the student's logits from those that the teacher has made now."""
        setup, recipe = self.setup, self._recipe()
        word = setup.distillation
        assert word is not None
        whole = is_whole(setup)
        taught, buffers, weights = run_beside(setup, self.tape, recipe, self._logits, whole=whole)
        self.at.append(StandingState("reference", bytes_beside(buffers, weights, setup, whole=whole), 0))

        def compare(logits: Sequence[Any], labels: Tensor) -> Tensor:
            if setup.loss == TILED_DIVERGENCE:
                return chunked_divergence_loss(word, logits[0], taught[0], labels)
            if setup.loss == DISTILLED:
                return jensen_shannon(word, logits[0], taught[0], labels)
            if not setup.loss.startswith(CHUNKED):
                return whole_divergence(word, logits[0], taught[0], labels)
            size = logits[0].shape[1]
            theirs = taught if len(taught) == len(logits) else split(taught[0], size, 1)
            return chunked_divergence(word, logits, theirs, labels, size)

        return compare

    def _recipe(self) -> Recipe:
        setup, teacher = self.setup, self.setup.teacher
        assert teacher is not None
        stored = tuple(Segment(1, layers, False) for layers in teacher.stacks)
        # in eval mode, without dropout
        alone = setup._replace(model=teacher, segments=stored, adapter=None, tiled_mlp=None, dropout=0.0)
        precision = self.precision
        if is_whole(setup) and precision.stored is not None and not setup.half_weights:
            precision = precision_of(STORED)  # no policy of mixed precision casts what FSDP does not wrap
        recipe = recipe_of(alone, precision)
        if own(teacher.family, "logits_of", None) is None:
            recipe = recipe._replace(loss=HIDDEN if setup.loss == TILED_DIVERGENCE else LOGITS)
        return recipe._replace(recomputes_core=False, returns_cache=setup.loss == DISTILLED)

    def _before_head(self, model: Any) -> BeforeHead:
        """What its head would be given; the trainer's autocast is not around it."""
        self.tape.autocast = None
        positions = self.beside if self.setup.packed else []
        found = model(self.ids, self.ids, *positions).logits
        assert isinstance(found, BeforeHead)
        return found._replace(hidden=self.tape.role(Sharding).after_model(found.hidden))

    def _logits(self, model: Any) -> list[Any]:
        """In the chunks that the teacher's own code makes, else all at once."""
        self.tape.dismiss(Teacher)  # which it has none of
        teacher = self.setup.teacher
        assert teacher is not None
        if own(teacher.family, "logits_of", None) is not None:
            found: list[Tensor] = model.logits_of(self.ids)
            return found
        if self.setup.loss == TILED_DIVERGENCE:
            return [self._before_head(model)]
        cache = ReturnsCache(teacher)
        if self.setup.loss == DISTILLED:
            self.tape.enlist(KeyValues, cache)
        positions = self.beside if self.setup.packed and self.setup.loss == DISTILLED else []
        logits = leave_autocast(self.tape, model(self.ids, self.ids, *positions)).logits
        assert isinstance(logits, Tensor)
        return [self.tape.role(Sharding).after_model(logits), *cache.tensors]


def _window(tape: Tape) -> Tensor:
    """How long the window of a layer of the cache is."""
    return tape.new("to", (), INT64, False)


class ReturnsCache(KeyValues):
    """Keys and values of every block, or its states, which a model returns with its logits.

    The Trainer turns that off for the model that it trains (`use_cache`), and not for another.
    Source: transformers 5.23, cache_utils.py, DynamicLayer.update and DynamicSlidingWindowLayer.
    """

    keeps = True

    def __init__(self, shape: ModelShape) -> None:
        self.windows, self.all_windowed = windowed_layers(shape)
        self.tensors: list[Tensor] = []

    def kept(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Copies, which are concatenated to what is empty and has the element type of the keys."""
        tape = key.tape
        if self.all_windowed:
            self.tensors.append(_window(tape))
        elif not self.tensors:  # which of the blocks that are played have one is not asked: all are there at once
            self.tensors += [_window(tape) for _ in range(self.windows)]
        dtype = max(key.dtype, value.dtype, key=lambda one: one.itemsize)
        keys = tape.new("cat", key.shape, key.dtype, key.batched)
        values = tape.new("cat", value.shape, dtype, value.batched)
        self.tensors += (keys, values)
        return keys, values

    def convolves(self, x: Tensor, kernel: int) -> None:
        """Of each channel as many tokens as the kernel is long (LinearAttentionLayer.update_conv_state)."""
        self.tensors.append(x.tape.new("zeros", (*x.shape[:2], kernel), x.dtype, x.batched))

    def recurs(self, state: Tensor, graph: Sequence[Any] = ()) -> None:
        """A copy (LinearAttentionLayer.update_recurrent_state)."""
        self.tensors.append(state.tape.new("zeros_like", state.shape, state.dtype, state.batched))
