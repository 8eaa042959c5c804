"""TRL's DistillationTrainer: the divergence of two models by tiles of their logits, without those as a whole.

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.inputs import Objective
from vramplan.replay.models.modules import Output
from vramplan.replay.observers import Teacher
from vramplan.replay.operators.elementwise import div_by
from vramplan.replay.operators.log_probabilities import masked_rows
from vramplan.replay.operators.loss_parts import sum_all
from vramplan.replay.operators.tiled_divergence import Projected, tiled_divergence
from vramplan.replay.operators.views import contiguous, narrow, view
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.divergence import FORWARD_KL, REVERSE_KL
from vramplan.replay.techniques.losses import BeforeHead
from vramplan.replay.tensors import BOOL, INT64, Tensor


class DistilsInTiles(Objective):
    """The answer of the student is scored by both models. The step is counted, and not that it is given before.

    All tokens but the first count as the answer: those of a prompt leave the head sooner.
    Accelerate's autocast is around the forward of the model, which this trainer does not call: what runs is in the
    element type of the weights.
    Source: trl 1.16.0, trainer/distillation_trainer.py, DistillationTrainer._compute_loss and _get_last_hidden_state.
    """

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """Both forward passes up to the head, and the loss."""
        tape = self.tape
        tape.autocast = None
        ids, completion_mask, *others = arguments
        _input_ids = tape.new("cat", ids.shape, INT64, True)
        _attention_mask = tape.new("cat", ids.shape, INT64, True)
        student = model(_input_ids, _input_ids, *others).logits
        assert isinstance(student, BeforeHead)
        tape.leave_model()
        compare = tape.role(Teacher).asked()
        assert compare is not None
        return Output(compare([student], completion_mask), None)

    def returned(self, output: Output) -> Output:
        """The trainer returns the loss alone."""
        return Output(None, None)


def chunked_divergence_loss(word: str, student: BeforeHead, teacher: BeforeHead, completion_mask: Tensor) -> Tensor:
    """_chunked_divergence_loss; the Trainer counts the tokens of the answers of a batch.

    Source: trl 1.16.0, trainer/distillation_trainer.py.
    """
    tape, (batch, length) = completion_mask.tape, completion_mask.shape
    valid = tape.new("ne", (batch * (length - 1),), BOOL, True)
    _n_valid = tape.new("sum", (), INT64, False)
    h_s, h_t = _rows(student.hidden), _rows(teacher.hidden)
    h_s, h_t = masked_rows(h_s, valid), masked_rows(h_t, valid)
    ours, theirs = student._replace(hidden=h_s), teacher._replace(hidden=h_t)
    _divergence, _entropy = tiled_divergence(
        Projected(*ours), Projected(*theirs), forward=word == FORWARD_KL, reverse=word == REVERSE_KL
    )
    del ours, theirs
    _loss = sum_all(_divergence)
    _entropy_sum = tape.new("sum", (), _entropy.dtype, False)
    return div_by(_loss, tape.constant((), INT64, False))


def _rows(hidden: Tensor) -> Tensor:
    """The hidden states of all positions but the last, one after the other."""
    batch, length, width = hidden.shape
    return view(contiguous(narrow(hidden, 1, length - 1)), (batch * (length - 1), width))
