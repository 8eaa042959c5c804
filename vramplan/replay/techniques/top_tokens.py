"""Axolotl's KDTrainer: the divergence from the likeliest tokens of a teacher, which were saved, and the cross-entropy.

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.inputs import Input, Objective, inputs_of, make_inputs
from vramplan.replay.models.modules import Output
from vramplan.replay.observers import HiddenStates, Sharding
from vramplan.replay.operators.elementwise import div_by
from vramplan.replay.operators.top_tokens import top_token_divergence
from vramplan.replay.operators.views import to
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.losses import BesideHead
from vramplan.replay.tensors import FP32, INT32, INT64, Tensor


class ReturnedStates(HiddenStates):
    """The hidden states that the model returns: that of the last block is the one that its norm gives."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def asked(self) -> list[Tensor]:
        """All of them."""
        return self.kept


class DistilsFromFile(Objective):
    """The model is asked for its hidden states and the logits of the last token, and the loss takes the head itself.

    Source: axolotl 0.19.0, integrations/kd/trainer.py, AxolotlKDTrainer.compute_loss.
    """

    def inputs(self, model: Any) -> tuple[list[Tensor], list[StandingState]]:
        """And the likeliest tokens of the teacher, with their log-probabilities and which of them there are."""
        own, top = inputs_of(model, self.recipe), self.setup.teacher_logprobs
        assert top is not None
        shape = (self.recipe.sequence_length, top)
        saved = (
            Input("target_token_ids", shape, INT64),
            Input("target_logprobs", shape, FP32),
            Input("target_mask", shape, INT32),
        )
        tensors, states = make_inputs(self.tape, (*own, *saved))
        return tensors[: -len(saved)], states

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """The forward pass up to the head, and the loss."""
        tape, returned = self.tape, ReturnedStates()
        tape.enlist(HiddenStates, returned)
        found = model(*arguments).logits
        tape.dismiss(HiddenStates)
        assert isinstance(found, BesideHead)
        (before, _last, unused), weight = found, found.before.weight
        returned.kept.pop()
        _hidden_states = [*returned.kept, before.hidden]
        returned.kept.clear()
        del found, before
        if tape.autocast is not None:
            tape.autocast = None
            tape.casts.clear()
            _last = to(_last, FP32)
            _rest = self._rest_of_casts(_hidden_states)
            _hidden_states = [to(one, FP32) for one in _hidden_states]
        tape.leave_model()
        # the root of FSDP, which is left now, has the head too: where it goes, the job was refused
        _hidden_states[-1] = tape.role(Sharding).after_model(_hidden_states[-1])
        hidden = to(_hidden_states[-1], weight.dtype)
        word, top = self.setup.distillation, self.setup.teacher_logprobs
        assert word is not None
        assert top is not None
        loss = top_token_divergence(hidden, weight, arguments[1], word=word, top=top)
        tape.abandon(*unused)
        return Output(div_by(loss, tape.constant((), INT64, False)), None)

    def _rest_of_casts(self, states: list[Tensor]) -> Tensor | None:
        """Hidden states of blocks that others stand for are cast too, unless they are in fp32."""
        rest = self.setup.model.blocks + 1 - len(states)
        if rest < 1 or states[0].dtype is FP32:
            return None
        batch, length, width = states[0].shape
        return self.tape.new("to", (batch, rest * length, width), FP32, states[0].batched)

    def returned(self, output: Output) -> Output:
        """The trainer returns the loss alone."""
        return Output(None, None)
