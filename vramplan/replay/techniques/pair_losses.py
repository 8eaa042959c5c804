"""Preference losses of TRL without a reference model, over whole logits: ORPO, CPO, SimPO; and reward models.

They are the loss of a batch of pairs, chosen before rejected, that one forward pass has returned logits for. Names that
start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.inputs import Objective
from vramplan.replay.models.capable import reads_any_mask
from vramplan.replay.models.modules import CPO, ORPO, SIMPO, Output
from vramplan.replay.observers import Sharding
from vramplan.replay.operators.elementwise import add, add_scalar, div_by, mean_last, mul, mul_scalar, neg
from vramplan.replay.operators.ends import cross_entropy
from vramplan.replay.operators.loss_parts import log1mexp, log_sigmoid, shifted, sum_last
from vramplan.replay.operators.selected_log_softmax import selected_log_softmax
from vramplan.replay.operators.views import contiguous, narrow, split, view
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.objectives import leave_autocast
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor

SEQUENCES = 2  # of a pair


class Pairs(Objective):
    """A forward pass over both sequences of each pair; the loss is made of the logits that it returns."""

    names: tuple[str, ...] = ("input_ids", "attention_mask")

    def inputs(self, model: Any) -> tuple[list[Tensor], list[StandingState]]:
        """Token ids and mask of both sequences of each pair.

        Source: trl 1.16.0, trainer/reward_trainer.py, DataCollatorForPreference.
        """
        return self.tensors(self.names, SEQUENCES * self.tape.batch)

    def tensors(self, names: tuple[str, ...], rows: int) -> tuple[list[Tensor], list[StandingState]]:
        """Tensors of so many rows of a sequence."""
        tape, length = self.tape, self.recipe.sequence_length
        size = rows // tape.batch * length * INT64.itemsize
        found = [tape.constant((rows, length), INT64, True, name) for name in names]
        state = StandingState("inputs", size * tape.batch, 0) if tape.direct else StandingState("inputs", 0, size)
        return found, [state] * len(names)

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """The forward pass, and the loss of what it returns."""
        return Output(self.loss(self.logits(model, *arguments[:2]), []), None)

    def logits(self, model: Any, ids: Tensor, mask: Tensor) -> Tensor:
        """What the model returns, in fp32 if it ran under autocast; without a loss, so that its labels are not read.

        Most models drop a mask that says nothing.
        """
        given = (mask,) if reads_any_mask(self.recipe.shape.family) else ()
        output = leave_autocast(self.tape, model(ids, ids, *given))
        self.tape.leave_model()
        assert isinstance(output.logits, Tensor)
        return self.tape.role(Sharding).after_model(output.logits)

    def loss(self, logits: Tensor, arguments: list[Tensor]) -> Tensor:
        """Of the logits of chosen and rejected sequences, [2B, S, V]."""
        raise NotImplementedError


class LogitPairs(Pairs):
    """ORPO (arXiv:2403.07691), CPO (arXiv:2401.08417) and SimPO (arXiv:2405.14734).

    Source: trl 1.16.0, experimental/orpo/orpo_trainer.py and experimental/cpo/cpo_trainer.py, concatenated_forward,
    get_batch_logps and get_batch_loss_metrics, up to the metrics. SimPO is CPO's trainer with `cpo_alpha=0.0`.
    """

    names = ("input_ids", "attention_mask", "labels")

    def inputs(self, model: Any) -> tuple[list[Tensor], list[StandingState]]:
        """Token ids, mask and labels of chosen and of rejected sequences.

        Source: trl 1.16.0, experimental/utils.py, DPODataCollatorWithPadding.
        """
        names = [f"{of}_{name}" for of in ("chosen", "rejected") for name in self.names]
        return self.tensors(tuple(names), self.tape.batch)

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """The tensors are concatenated first, and live until the trainer has made the loss."""
        tape, (pairs, length) = self.tape, arguments[0].shape
        joined = [tape.new("cat", (SEQUENCES * pairs, length), INT64, True) for _ in self.names]
        return Output(self.loss(self.logits(model, *joined[:2]), joined), None)

    def loss(self, logits: Tensor, arguments: list[Tensor]) -> Tensor:
        """The preference loss, and the cross-entropy of the chosen sequences, which is a zero with SimPO.

        Beside it the trainer makes rewards of both, for its log.
        """
        word = self.setup.loss
        nll, chosen, rejected = self._compared(logits, arguments)
        if word == ORPO:
            odds = add(add(chosen, neg(rejected)), neg(add(log1mexp(chosen), neg(log1mexp(rejected)))))
            ratio = log_sigmoid(odds)
            losses = mul_scalar(ratio)
            _rewards = self._rewarded(chosen), self._rewarded(rejected)
            _means = mean_last(ratio), mean_last(odds)
            del ratio, odds
            return add(nll, neg(mean_last(losses)))
        margin = add(chosen, neg(rejected))
        margin = add_scalar(margin) if word == SIMPO else margin
        either = mul_scalar(neg(log_sigmoid(mul_scalar(margin))))  # with the labels, and as if they were turned
        losses = add(either, neg(mul_scalar(log_sigmoid(mul_scalar(margin)))))
        del either, margin
        _rewards = self._rewarded(chosen), self._rewarded(rejected)
        mean = mean_last(losses)
        return add(mean, mul_scalar(nll))

    def _compared(self, logits: Tensor, arguments: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """`concatenated_forward`: the cross-entropy of the chosen ones, and a number for each sequence."""
        tape, word = self.tape, self.setup.loss
        given = arguments[2]
        _labels = tape.new("where" if word == ORPO else "clone", given.shape, INT64, True)
        nll = self._chosen(logits, _labels) if word != SIMPO else tape.new("_to_copy", (), FP32, False)
        chosen, rejected = split(self._log_probabilities(logits, given, average=word != CPO), tape.batch, 0)
        arguments.clear()  # the concatenated tensors were its own
        return nll, chosen, rejected

    def _rewarded(self, scores: Tensor) -> Tensor:
        """A number for each pair, outside of the graph."""
        return self.tape.like("mul", scores)

    def _chosen(self, logits: Tensor, labels: Tensor) -> Tensor:
        """`cross_entropy_loss` of the chosen half, whose logits are copied without the last position."""
        pairs, (_, length, width) = self.tape.batch, logits.shape
        _logits = contiguous(narrow(narrow(logits, 0, pairs), 1, length - 1))
        half = labels.alias((pairs, length), None, None)
        _shifted = contiguous(shifted(half, (pairs, length - 1)))
        rows = pairs * (length - 1)
        return cross_entropy(view(_logits, (rows, width)), view(_shifted, (rows,)))

    def _log_probabilities(self, logits: Tensor, given: Tensor, *, average: bool) -> Tensor:
        """`get_batch_logps`: a number for each sequence."""
        tape, (sequences, length, _) = self.tape, logits.shape
        shape = (sequences, length - 1)
        labels = tape.new("clone", shape, INT64, True)
        mask = tape.new("ne", shape, BOOL, True)
        if self.setup.loss == ORPO:  # CPO's trainer writes into them
            labels = tape.new("where", shape, INT64, True)
        _logps = selected_log_softmax(narrow(logits, 1, length - 1), labels)
        found = sum_last(mul(_logps, mask))
        return div_by(found, tape.new("sum", (sequences,), INT64, True)) if average else found


class Rewards(Pairs):
    """A reward model: a classifier of one class, whose score of the chosen sequence is to be the higher one.

    Source: trl 1.16.0, trainer/reward_trainer.py, DataCollatorForPreference and RewardTrainer.compute_loss.
    """

    def loss(self, logits: Tensor, arguments: list[Tensor]) -> Tensor:
        """The Bradley-Terry loss of scores [2B, 1]."""
        chosen, rejected = split(view(logits, (logits.shape[0],)), self.tape.batch, 0)
        return neg(mean_last(log_sigmoid(add(chosen, neg(rejected)))))
