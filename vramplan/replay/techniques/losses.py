"""Losses that a job asks for beside those of the model's own code.

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models import scales_logits
from vramplan.replay.models.modules import (
    ALL_SCORES,
    CAUSAL_LM,
    ENTROPIES,
    FP32_LOGITS,
    HALF_LOGITS,
    HIDDEN,
    HIDDEN_AND_LAST,
    IN_PLACE,
    LOGITS,
    SCORES,
    SMOOTHED,
    SMOOTHED_FP32,
    SMOOTHED_HALF,
    TOKEN_SCORES,
    Output,
    Recipe,
    as_returned,
    causal_lm_loss,
    next_tokens,
    project,
)
from vramplan.replay.observers import Teacher
from vramplan.replay.operators.chunks_by_size import loss_by_size
from vramplan.replay.operators.elementwise import add, add_in_place, add_scalar, div_by, mul_scalar
from vramplan.replay.operators.ends import cross_entropy
from vramplan.replay.operators.fused_loss import fused_linear_cross_entropy
from vramplan.replay.operators.in_place_loss import in_place_cross_entropy
from vramplan.replay.operators.log_probabilities import ENTROPY, MEAN, TOP
from vramplan.replay.operators.views import after, contiguous, narrow, split, to, view
from vramplan.replay.techniques.preference import fused_lm_head
from vramplan.replay.techniques.smoothing import smoothed_cross_entropy, smoothed_sum
from vramplan.replay.tensors import BOOL, FP32, INT64, Parameter, Tensor
from vramplan.tuples import NamedTuple
from vramplan.values.machine import Gpu

CHUNKED, FUSED = "chunked:", "fused"
BY_SIZE = "fused-chunks:"
FUSED_BEFORE_AMPERE = "fused-before-ampere"  # Liger's way on GPUs before compute capability 8.0
AMD_ARCHITECTURES = ("cdna", "rdna")
OF_SCORES: dict[str, tuple[str, ...]] = {
    SCORES: (),
    ALL_SCORES: (ENTROPY, MEAN, TOP),
    TOKEN_SCORES: (ENTROPY, TOP),
    ENTROPIES: (ENTROPY,),
}
"""What the head of TRL gives for each label beside its log-probability."""


def fused_on(gpu: Gpu) -> str | None:
    """Which way Liger's fused loss takes on a GPU; what is unknown counts as a recent one. None: on AMD, not modelled.

    Source: liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py, which asks for get_device_capability and is_hip.
    """
    if (gpu.architecture or "").startswith(AMD_ARCHITECTURES):
        return None
    major = (gpu.compute_capability or "").partition(".")[0]
    return FUSED_BEFORE_AMPERE if major.isdigit() and int(major) < 8 else FUSED


class BeforeHead(NamedTuple):
    """What a head is given, and the head, where the caller makes a loss of both."""

    hidden: Tensor
    weight: Parameter
    bias: Parameter | None


class BesideHead(NamedTuple):
    """The same, and the logits of the last token, of which nobody makes a loss."""

    before: BeforeHead
    last: Tensor
    nodes: tuple[int, int]  # of the graph of these logits


def head_and_loss(hidden: Tensor, weight: Parameter, bias: Parameter | None, labels: Tensor, recipe: Recipe) -> Output:
    """The head of a causal language model with another loss than its own."""
    loss = recipe.loss
    if loss == CAUSAL_LM:
        logits = as_returned(project(hidden, weight, bias, recipe), recipe)
        return Output(causal_lm_loss(logits, labels, recipe), logits)
    if loss == IN_PLACE:
        return in_place_loss(as_returned(project(hidden, weight, bias, recipe), recipe), labels)
    if loss == LOGITS:
        return Output(None, as_returned(project(hidden, weight, bias, recipe), recipe))
    if loss == HIDDEN:
        return Output(None, BeforeHead(hidden, weight, bias))
    if loss == HIDDEN_AND_LAST:
        first = len(hidden.tape.nodes)
        last = as_returned(project(narrow(hidden, 1, 1), weight, bias, recipe), recipe)
        return Output(None, BesideHead(BeforeHead(hidden, weight, bias), last, (first, len(hidden.tape.nodes))))
    if loss in OF_SCORES:
        return fused_lm_head(hidden, weight, bias, labels, others=OF_SCORES[loss])
    if loss == SMOOTHED:
        logits = hidden.tape.leave_graph(as_returned(project(hidden, weight, bias, recipe), recipe))
        return Output(causal_lm_loss(logits, labels, recipe, smoothed_cross_entropy), logits)
    if loss in (FUSED, FUSED_BEFORE_AMPERE):
        assert bias is None  # FUSED_NEEDS_NO_BIAS
        hidden = hidden.tape.leave_graph(hidden)
        scaled = mul_scalar(hidden) if scales_logits(recipe.shape.family) else hidden
        return fused_loss(scaled, weight, labels, accumulates=loss == FUSED)
    if loss.startswith(BY_SIZE):
        hidden = hidden.tape.leave_graph(hidden)
        return by_size(hidden, weight, labels, recipe)
    if loss in (FP32_LOGITS, HALF_LOGITS, SMOOTHED_FP32, SMOOTHED_HALF):
        return shifted_loss(hidden, weight, bias, labels, recipe)
    hidden = hidden.tape.leave_graph(hidden)
    return chunked_loss(hidden, weight, bias, labels, recipe)


def in_place_loss(logits: Tensor, labels: Tensor) -> Output:
    """Unsloth's own loss of whole logits, which Accelerate copies to fp32 as it returns them under autocast.

    Source: unslothai/unsloth, unsloth/models/llama.py, CausalLM_fast_forward; accelerate 1.15, utils/operations.py,
    ConvertOutputsToFp32, which the Trainer's autocast wraps the model in.
    """
    batch, length = labels.shape
    targets = contiguous(next_tokens(labels))
    rows = view(logits, (batch * length, logits.shape[-1]))
    loss = in_place_cross_entropy(rows, view(targets, (batch * length,)))
    return Output(loss, logits if logits.tape.autocast is None else to(logits, FP32))


def by_size(hidden: Tensor, weight: Parameter, labels: Tensor, recipe: Recipe) -> Output:
    """Unsloth's head and loss, which give no logits back; a bias and a scale of the logits cost nothing there."""
    batch, length = labels.shape
    rows = view(hidden, (batch * length, hidden.shape[-1]))
    most_gib, bounded = int(recipe.loss.removeprefix(BY_SIZE)), recipe.shape.logit_softcap
    return Output(loss_by_size(rows, weight, most_gib=most_gib, bounded=bounded), None)


def shifted_loss(hidden: Tensor, weight: Parameter, bias: Parameter | None, labels: Tensor, recipe: Recipe) -> Output:
    """The head and loss of Transformers before 4.45: forward casts the logits, returns them so, and shifts a copy.

    Models that bring their code with them do the same, some without the cast: Qwen is one.
    Source: transformers 4.38, models/llama/modeling_llama.py, LlamaForCausalLM.forward; Qwen/Qwen-7B,
    modeling_qwen.py, QWenLMHeadModel.forward.
    """
    batch, length = labels.shape
    vocabulary = recipe.shape.vocabulary_size
    logits = project(hidden, weight, bias, recipe)
    if recipe.loss in (FP32_LOGITS, SMOOTHED_FP32):
        logits = to(logits, FP32)
    shifted = contiguous(narrow(logits, 1, length - 1))
    targets = contiguous(after(labels, 1, 1))
    shifted = view(shifted, (batch * (length - 1), vocabulary))
    targets = view(targets, (batch * (length - 1),))
    loss = smoothed_cross_entropy if recipe.loss.startswith(SMOOTHED) else cross_entropy
    return Output(loss(shifted, targets), logits)


def chunked_loss(hidden: Tensor, weight: Parameter, bias: Parameter | None, labels: Tensor, recipe: Recipe) -> Output:
    """torchtune's head in chunks of the sequence (torchtune/modules/transformer.py, chunked_output), and its loss.

    `x.chunk(n)` is a split into parts of the rounded-up length, and so into fewer than n where that does not divide.
    """
    size = -(-hidden.shape[1] // int(recipe.loss.rpartition(":")[2]))
    entropy = smoothed_sum if recipe.loss.startswith(SMOOTHED) else cross_entropy
    logits = [project(chunk, weight, bias, recipe) for chunk in split(hidden, size, 1)]
    compare = hidden.tape.role(Teacher).asked()
    labels = contiguous(next_tokens(labels))
    _kd_loss = None if compare is None else compare(logits, labels)
    loss = chunked_cross_entropy(logits, labels, size, entropy)
    return Output(loss if _kd_loss is None else both_losses(loss, _kd_loss), logits)


def both_losses(loss: Tensor, divergence: Tensor) -> Tensor:
    """(1 - kd_ratio) * class_loss + kd_ratio * kd_loss, as torchtune's recipes have it."""
    return add(mul_scalar(loss), mul_scalar(divergence))


def fused_loss(hidden: Tensor, weight: Parameter, labels: Tensor, *, accumulates: bool) -> Output:
    """LigerForCausalLMLoss (liger-kernel 0.8.5, transformers/model/loss_utils.py): there are no logits to return.

    A bound on the logits is applied inside its kernel, and costs nothing. A number that they are multiplied by is
    folded into the hidden states (transformers/model/falcon_h1.py there).
    """
    batch, length, width = hidden.shape
    for tell in hidden.tape.told.asked_by_model:
        tell(weight)
    _labels = next_tokens(labels)
    _targets = contiguous(_labels)
    hidden = view(hidden, (batch * length, width))
    return Output(fused_linear_cross_entropy(hidden, weight, accumulates=accumulates), None)


def chunked_cross_entropy(
    logits: list[Tensor], labels: Tensor, size: int, entropy: Callable[[Tensor, Tensor], Tensor] = cross_entropy
) -> Tensor:
    """torchtune 0.6.1's CEWithChunkedOutputLoss (torchtune/modules/loss/ce_chunked_output_loss.py), not compiled.

    The logits of all chunks are alive together, in their own dtype; only one chunk at a time is cast to fp32, and what
    log_softmax saves of each in fp32 stays.
    """
    tape = labels.tape
    mask = tape.new("ne", labels.shape, BOOL, True)
    total_elements = tape.new("sum", (), INT64, False)
    del mask
    targets = [view(chunk, (chunk.shape[0] * chunk.shape[1],)) for chunk in split(labels, size, 1)]
    rows = [view(chunk, (chunk.shape[0] * chunk.shape[1], chunk.shape[2])) for chunk in logits]
    total: Tensor | None = None
    for chunk, target in zip(rows, targets, strict=True):
        total = _added(total, entropy(to(chunk, FP32), target))
    assert total is not None
    return div_by(total, total_elements)


def _added(total: Tensor | None, loss: Tensor) -> Tensor:
    """`total += loss`, where the total began as the number 0."""
    return add_scalar(loss) if total is None else add_in_place(total, loss)
