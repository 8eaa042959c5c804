"""Group-relative policy optimization (arXiv:2402.03300): the step of a policy over completions that it has sampled
(trl 1.16.0, trainer/grpo_trainer.py).

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.inputs import Objective
from vramplan.replay.models.capable import reads_any_mask
from vramplan.replay.models.modules import GRPO, GRPO_MODEL, LOGITS, Output, Segment
from vramplan.replay.observers import Release
from vramplan.replay.operators.contrastive import exp
from vramplan.replay.operators.elementwise import add, add_scalar, div_by, mul, mul_scalar, neg
from vramplan.replay.operators.loss_parts import sum_all
from vramplan.replay.operators.piecewise import clamp
from vramplan.replay.operators.policy import last, less, lesser, taken_from
from vramplan.replay.operators.views import cat
from vramplan.replay.precision import precision_of
from vramplan.replay.recorder import Tape
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import shards_of
from vramplan.replay.techniques.preference import Scored
from vramplan.replay.techniques.preference_pairs import states_of
from vramplan.replay.techniques.second_model import bytes_beside, run_beside
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Shape, Tensor

PROMPT = 1  # tokens: a longer one leaves fewer to the head, and completions are what counts


class Policies(Objective):
    """TRL's GRPOTrainer with its loss `dapo`, whose other losses have the same tensors over completions.

    The policy scores each token of its completions. Old scores are its own, as where each batch of completions is
    used at once; a reference has given its scores when they were sampled. Completions are counted over all devices and
    micro-steps, so that nothing divides the loss.
    Source: trl 1.16.0, trainer/grpo_trainer.py, GRPOTrainer._compute_loss, up to the metrics.
    """

    divides = False

    def inputs(self, model: Any) -> tuple[list[Tensor], list[StandingState]]:
        """Prompts and completions with their masks, advantages, the number of tokens, scores of a reference."""
        tape, batch, length = self.tape, self.tape.batch, self.recipe.sequence_length - PROMPT
        found: list[tuple[str, Shape, DType]] = [
            ("prompt_ids", (PROMPT,), INT64),
            ("prompt_mask", (PROMPT,), INT64),
            ("completion_ids", (length,), INT64),
            ("completion_mask", (length,), INT64),
            ("advantages", (), FP32),
        ]
        if self.setup.loss != GRPO:
            found.append(("ref_per_token_logps", (length,), FP32))
        tensors = [tape.constant((batch, *shape), dtype, True, name) for name, shape, dtype in found]
        sizes = [(shape[0] if shape else 1) * dtype.itemsize for _, shape, dtype in found]
        return tensors, [*states_of(tape, sizes), StandingState("inputs", INT64.itemsize, 0)]  # num_items_in_batch

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """The forward pass over prompts and completions, and the loss."""
        if self.setup.loss == GRPO_MODEL:
            states.append(StandingState("reference", self._reference_bytes(), 0))
        return Output(self._loss(model, arguments), None)

    def returned(self, output: Output) -> Output:
        """The loss is no part of it."""
        return output._replace(loss=None)

    def _loss(self, model: Any, arguments: list[Tensor]) -> Tensor:
        """`_compute_loss`: the clipped ratio of each token times the advantage of its completion."""
        tape, (batch, length) = self.tape, arguments[2].shape
        shape = (batch, PROMPT + length)
        _input_ids, _attention_mask = tape.new("cat", shape, INT64, True), tape.new("cat", shape, INT64, True)
        _logps, _entropies = self._scores(model, length, _input_ids, _attention_mask)
        advantages = arguments[4].alias((batch, 1), None, None)
        _log_ratio = less(_logps)
        _ratio = exp(_log_ratio)
        divergence = self._divergence(_logps) if self.setup.loss != GRPO else None
        _clipped = clamp(_ratio)
        _first, _second = mul(_ratio, advantages), mul(_clipped, advantages)
        _least = lesser(_first, _second)
        _losses = neg(_least)
        if divergence is not None:
            _losses = add(_losses, mul_scalar(divergence))
        normaliser = tape.new("clamp", (), FP32, False)
        normaliser = tape.like("div", normaliser)
        normaliser = tape.like("mul", normaliser)
        normaliser = tape.like("div", normaliser)
        counted = tape.constant((batch, length), BOOL, True)  # the mask of completions, an input
        return div_by(sum_all(mul(_losses, counted)), normaliser)

    def _scores(self, model: Any, length: int, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """`_get_per_token_logps_and_entropies`: log-probabilities of the completions, and entropies."""
        tape = self.tape
        unfinished = tape.new("eq", ids.shape, BOOL, True)
        labels = tape.new("masked_fill", ids.shape, INT64, True)
        del unfinished
        given = (mask,) if reads_any_mask(self.recipe.shape.family) else ()
        _outputs = model(ids, labels, *given).logits
        tape.autocast = None
        tape.casts.clear()
        assert isinstance(_outputs, Scored)
        logps = cat([last(_outputs.log_probabilities, length)], 0)
        return logps, cat([_outputs.others[0]], 0)

    def _divergence(self, logps: Tensor) -> Tensor:
        """The divergence from the reference: exp(r - p) - (r - p) - 1 of their log-probabilities."""
        larger = exp(taken_from(logps))
        return add_scalar(add(larger, neg(taken_from(logps))))

    def _reference_bytes(self) -> int:
        """Of a copy of the model, which scores completions when they are sampled, and not in a step.

        What FSDP keeps whole of it from then on counts: devices share it in another way than the model that trains.
        """
        tape, alone = self.tape, (Segment(1, self.recipe.shape.layers, False),)
        apart = Tape(tape.batch, direct=tape.direct)
        apart.enlist(Release, tape.role(Release))
        precision = precision_of(self.setup.precision, half_weights=self.setup.half_weights)
        shards_of(self.setup, apart, self.recipe, precision)
        recipe = self.recipe._replace(loss=LOGITS, segments=alone, recomputes_core=False)
        ids = apart.constant((tape.batch, recipe.sequence_length), INT64, True)
        _, buffers, weights = run_beside(self.setup, apart, recipe, lambda model: model(ids, ids))
        return bytes_beside(buffers, weights, self.setup)
