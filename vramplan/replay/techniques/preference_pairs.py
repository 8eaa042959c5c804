"""Preference training: pairs of a chosen and a rejected sequence, and the reference beside the model that trains."""

from __future__ import annotations

from functools import partial
from typing import Any

from vramplan.replay.inputs import Objective
from vramplan.replay.models.capable import reads_any_mask
from vramplan.replay.models.modules import (
    ALL_SCORES,
    DPO_ADAPTER_OFF,
    DPO_PRECOMPUTED,
    KTO,
    KTO_ADAPTER_OFF,
    KTO_PRECOMPUTED,
    SCORES,
    Output,
    Recipe,
    Segment,
)
from vramplan.replay.observers import Sharding, Trained
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.adapted import Adapted, AdapterOff
from vramplan.replay.techniques.preference import Scored, completion_loss, preference_loss
from vramplan.replay.techniques.second_model import bytes_beside, run_beside
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor

SEQUENCES = 2  # of a pair
SCORED = (DPO_PRECOMPUTED, KTO_PRECOMPUTED)  # the reference's scores come with the batch
SHARED = (DPO_ADAPTER_OFF, KTO_ADAPTER_OFF)  # the reference is the model itself


class Preferences(Objective):
    """TRL's DPOTrainer, which asks for log-probabilities of both sequences of a pair, and its KTOTrainer, of one."""

    def inputs(self, model: Any) -> tuple[list[Tensor], list[StandingState]]:
        """Pairs, or completions."""
        scored = self.setup.loss in SCORED
        if self.setup.loss.startswith(KTO):
            return make_completions(self.tape, self.recipe, scored=scored)
        return make_pairs(self.tape, self.recipe, scored=scored)

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """Both forward passes, and the loss."""
        return forward_and_preferences(self.setup, self.tape, model, self.recipe, arguments, states)

    def returned(self, output: Output) -> Output:
        """The loss is no part of it."""
        return output._replace(loss=None)


def make_pairs(tape: Tape, recipe: Recipe, *, scored: bool) -> tuple[list[Tensor], list[StandingState]]:
    """Token ids, attention mask and completion mask of a micro-batch of pairs, chosen before rejected.

    With `scored` the log-probabilities of the reference model come with them.
    Source: trl 1.16.0, trainer/dpo_trainer.py, DataCollatorForPreference.
    """
    shape, batch = (SEQUENCES * tape.batch, recipe.sequence_length), tape.batch
    names = ("input_ids", "attention_mask", "completion_mask")
    tensors = [tape.constant(shape, INT64, True, name) for name in names]
    sizes = [SEQUENCES * recipe.sequence_length * INT64.itemsize] * len(names)
    if scored:
        for name in ("ref_chosen_logps", "ref_rejected_logps"):
            tensors.append(tape.constant((batch,), FP32, True, name))
            sizes.append(FP32.itemsize)
    return tensors, states_of(tape, sizes)


def make_completions(tape: Tape, recipe: Recipe, *, scored: bool) -> tuple[list[Tensor], list[StandingState]]:
    """Token ids, attention mask and completion mask of a micro-batch, of its own completions and of mismatched ones.

    Source: trl 1.16.0, trainer/kto_trainer.py, DataCollatorForUnpairedPreference.
    """
    shape, length = (tape.batch, recipe.sequence_length), recipe.sequence_length
    names = [f"{of}{name}" for of in ("", "KL_") for name in ("input_ids", "attention_mask", "completion_mask")]
    tensors = [tape.constant(shape, INT64, True, name) for name in names]
    sizes = [length * INT64.itemsize] * len(names)
    tensors.append(tape.constant((tape.batch,), BOOL, True, "label"))
    sizes.append(BOOL.itemsize)
    for name in ("ref_logps", "ref_KL_logps") if scored else ():
        tensors.append(tape.constant((tape.batch,), FP32, True, name))
        sizes.append(FP32.itemsize)
    return tensors, states_of(tape, sizes)


def states_of(tape: Tape, sizes: list[int]) -> list[StandingState]:
    """Inputs of so many bytes of each sample."""
    return [
        StandingState("inputs", size * tape.batch, 0) if tape.direct else StandingState("inputs", 0, size)
        for size in sizes
    ]


def forward_and_preferences(
    setup: Setup, tape: Tape, model: Any, recipe: Recipe, arguments: list[Tensor], states: list[StandingState]
) -> Output:
    """Both forward passes and the loss; the weights and buffers of a reference model are added to the states.

    The reference runs after the model that trains, without gradients, with its own autocast context, and stores no
    checkpoints. It has the weights' dtype, and dropout is off in both. Where it is the model itself with its adapter
    switched off, it has no weights of its own, and its head gives all that the head of the one that trains gives.
    Source: trl 1.16.0, trainer/dpo_trainer.py, DPOTrainer.__init__ and _compute_loss; trainer/utils.py, use_adapter.
    """
    ids, shares = arguments[0], setup.loss in SHARED
    masks = arguments[1:2] if reads_any_mask(recipe.shape.family) else []

    def policy(labels: Tensor) -> Scored:
        scored = _scores(tape, model(ids, labels, *masks))
        left = tape.role(Sharding).after_model(scored.log_probabilities)  # its forward is over before the reference's
        return scored._replace(log_probabilities=left)

    def reference(labels: Tensor) -> Scored:
        alone = (Segment(1, recipe.shape.layers, False),)
        frozen = recipe._replace(loss=ALL_SCORES if shares else SCORES, segments=alone, recomputes_core=False)
        off = (lambda: switched_off(tape)) if shares else None
        run = partial(_reference_scores, tape, (ids, labels, *masks))
        found, buffers, weights = run_beside(setup, tape, frozen, run, off)
        if not shares:
            states.append(StandingState("reference", bytes_beside(buffers, weights, setup), 0))
        return found

    other_one = None if setup.loss in SCORED else reference
    if setup.loss.startswith(KTO):
        return Output(completion_loss(policy, other_one, ids), None)
    loss = preference_loss(tape.batch, policy, other_one, ids)
    return Output(loss, None)


def _reference_scores(tape: Tape, given: tuple[Tensor, ...], model: Any) -> Scored:
    return _scores(tape, model(*given))


def switched_off(tape: Tape) -> Trained:
    """The adapter of the model that trains, which lets its inputs pass by."""
    adapted = tape.role(Trained)
    assert isinstance(adapted, Adapted)
    return AdapterOff(adapted)


def _scores(tape: Tape, output: Output) -> Scored:
    """The end of the autocast context around a forward pass; its results are in fp32 already."""
    tape.autocast = None
    tape.casts.clear()
    scored = output.logits
    assert isinstance(scored, Scored)
    return scored
