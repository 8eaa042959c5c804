"""Distillation: a teacher beside the model that trains, whose logits the loss compares with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.models import own
from vramplan.replay.models.modules import LOGITS, Recipe, Segment
from vramplan.replay.observers import Comparing, Teacher
from vramplan.replay.operators.views import split
from vramplan.replay.recipe import recipe_of
from vramplan.replay.record import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.techniques.divergence import chunked_divergence, whole_divergence
from vramplan.replay.techniques.losses import CHUNKED
from vramplan.replay.techniques.second_model import bytes_beside, run_beside, shards_beside
from vramplan.replay.tensors import Tensor


class Teaches(Technique, Teacher):
    """torchtune's recipes of distillation: the teacher runs when the student has, without gradients.

    Its weights have the element type of the student's, and are shared as the student's are.
    Source: torchtune 0.6.1, recipes/knowledge_distillation_single_device.py and _distributed.py, _loss_step.
    """

    def before_model(self) -> None:
        """The student will ask for it."""
        self.tape.enlist(Teacher, self)

    def given(self, arguments: list[Tensor], states: list[StandingState]) -> list[Tensor]:
        """The teacher is given the same tokens; its weights are states."""
        self.ids, self.at = arguments[0], states
        return arguments

    def asked(self) -> Comparing:
        """What makes the divergence of the student's logits from those that the teacher has made now."""
        setup, recipe = self.setup, self._recipe()
        word = setup.distillation
        assert word is not None
        taught, buffers, weights = run_beside(setup, self.tape, recipe, self._logits)
        self.at.append(StandingState("reference", bytes_beside(buffers, weights, shards_beside(setup)), 0))

        def compare(logits: Sequence[Tensor], labels: Tensor) -> Tensor:
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
        alone = setup._replace(model=teacher, segments=stored, adapter=None, tiled_mlp=None)
        recipe = recipe_of(alone, self.precision)
        if own(teacher.family, "logits_of", None) is None:
            recipe = recipe._replace(loss=LOGITS)
        return recipe._replace(recomputes_core=False)

    def _logits(self, model: Any) -> list[Tensor]:
        """In the chunks that the teacher's own code makes, else all at once."""
        self.tape.dismiss(Teacher)  # which it has none of
        if self.setup.teacher is not None and own(self.setup.teacher.family, "logits_of", None) is not None:
            found: list[Tensor] = model.logits_of(self.ids)
            return found
        logits = model(self.ids, self.ids).logits
        assert isinstance(logits, Tensor)
        return [logits]
