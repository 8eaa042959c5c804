"""Direct preference optimization as TRL computed it over whole logits, before its head gave log-probabilities.

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.inputs import Objective
from vramplan.replay.models.capable import reads_any_mask
from vramplan.replay.models.modules import DPO_LOGITS_ADAPTER_OFF, DPO_LOGITS_PRECOMPUTED, LOGITS, Output, Segment
from vramplan.replay.observers import Sharding
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul_scalar, neg
from vramplan.replay.operators.log_softmax_by_row import log_softmax_by_row
from vramplan.replay.operators.loss_parts import log_sigmoid, masked_fill_in_place, sum_last
from vramplan.replay.operators.views import narrow, split
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.objectives import leave_autocast
from vramplan.replay.techniques.preference_pairs import make_pairs, switched_off
from vramplan.replay.techniques.second_model import bytes_beside, run_beside
from vramplan.replay.tensors import BOOL, INT64, Tensor


class PreferencesOverLogits(Objective):
    """DPOTrainer of trl 0.15.0 to 0.28.0, up to the metrics, with pairs as long as the sequence.

    What it does to the prompts, which it keeps apart from the completions, is not replayed: token ids and masks.
    Source: trl 0.24.0, trainer/dpo_trainer.py, DPOTrainer.concatenated_forward, dpo_loss and get_batch_loss_metrics.
    """

    def inputs(self, model: Any) -> tuple[list[Tensor], list[StandingState]]:
        """Pairs."""
        return make_pairs(self.tape, self.recipe, scored=self.setup.loss == DPO_LOGITS_PRECOMPUTED)

    def returned(self, output: Output) -> Output:
        """The loss is no part of it."""
        return output._replace(loss=None)

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """Both forward passes, and the loss; the weights and buffers of a reference model are added to the states.

        The reference runs while the logits of the model that trains are kept for backward, or what was made of them.
        """
        tape, setup = self.tape, self.setup
        chosen, rejected = split(self._scores(model, arguments, trains=True), tape.batch, 0)
        if setup.loss != DPO_LOGITS_PRECOMPUTED:
            _reference = self._reference(arguments, states)
        logratios = add(chosen, neg(rejected))
        logits = add_scalar(logratios)  # less those of the reference
        losses = neg(mul_scalar(log_sigmoid(mul_scalar(logits))))
        return Output(mean_last(losses), None)

    def _reference(self, arguments: list[Tensor], states: list[StandingState]) -> Tensor:
        tape, setup, recipe = self.tape, self.setup, self.recipe
        shares = setup.loss == DPO_LOGITS_ADAPTER_OFF
        alone = (Segment(1, recipe.shape.layers, False),)
        frozen = recipe._replace(loss=LOGITS, segments=alone, recomputes_core=False)
        off = (lambda: switched_off(tape)) if shares else None
        found, buffers, weights = run_beside(
            setup, tape, frozen, lambda one: self._scores(one, arguments, trains=False), off
        )
        if not shares:
            states.append(StandingState("reference", bytes_beside(buffers, weights, setup), 0))
        return found

    def _scores(self, model: Any, arguments: list[Tensor], *, trains: bool) -> Tensor:
        """`concatenated_forward`: a number for each sequence; the logits go with it, unless backward needs them."""
        tape, ids, masks = self.tape, arguments[0], arguments[1:2]
        given = masks if reads_any_mask(self.recipe.shape.family) else []
        output = leave_autocast(tape, model(ids, ids, *given))
        if trains:
            tape.leave_model()
        logits = output.logits
        assert isinstance(logits, Tensor)
        logits = tape.role(Sharding).after_model(logits) if trains else logits
        del output
        labels = tape.new("roll", ids.shape, INT64, True)
        _mask = tape.new("roll", ids.shape, BOOL, True)
        logps = masked_fill_in_place(log_softmax_by_row(logits, labels), _mask)
        found = sum_last(narrow(logps, 1, ids.shape[1] - 1))
        self._mean_logits(logits)
        return found

    def _mean_logits(self, logits: Tensor) -> None:
        """Of the chosen sequences, and of the rejected ones: `logits[mask].mean()` copies them."""
        tape, (sequences, *rest) = self.tape, logits.shape
        for _ in range(2):
            chosen = tape.new("index", (sequences // 2, *rest), logits.dtype, True)
            del chosen
