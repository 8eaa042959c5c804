"""The losses of a job over a real model: its own, and those that replace it.

A loss that a model does not make itself is written anew here as the library has it, since it is the same few lines
over tensors; that of Liger is the library's own code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from vramplan.engines import engine_of
from vramplan.errors import UsageError
from vramplan.values.job import ResolvedJob

TILE_COLUMNS = 32768  # of TRL's head, trainer/utils.py, _CHUNKED_LOGPROB_CHUNK_SIZE
TRL_OUTPUTS = ("log_probs", "entropy", "is_top1")  # that its SFTTrainer asks for
IGNORED = -100  # a label
SMOOTHING = 0.1  # any share costs the same


def smooths_outside(job: ResolvedJob) -> bool:
    """Whether the Trainer smooths labels, over the logits that the model returns."""
    return job.label_smoothing > 0 and engine_of(job.runtime.engine).smooths_outside


class Result:
    """What a model with another head returns: the loss, and its logits if it has some."""

    def __init__(self, loss: Any, logits: Any = None) -> None:
        self.loss, self.logits = loss, logits


@contextlib.contextmanager
def smoothed_inside(job: ResolvedJob) -> Iterator[None]:
    """`F.cross_entropy(label_smoothing=...)` in place of the model's own cross-entropy."""
    if not job.label_smoothing or smooths_outside(job):
        yield
        return

    plain = functional.cross_entropy

    @wraps(plain)
    def smoothed(*given: Any, **named: Any) -> Any:
        return plain(*given, **{**named, "label_smoothing": SMOOTHING})

    with patch.object(functional, "cross_entropy", smoothed):
        yield


def outputs_of(job: ResolvedJob, model: Any, batch: dict[str, Any]) -> Any:
    """The forward pass with its loss. The Trainer's smoothed labels are no part of it."""
    word = job.loss.partition(":")[0]
    if word == "chunked":
        return _chunked(model, batch, int(job.loss.partition(":")[2]))
    if word == "fused":
        return _fused(model, batch)
    if word == "tiled":
        return _tiled(model, batch)
    return model(**batch)


def trainer_smoothing(job: ResolvedJob, out: Any, labels: Any) -> Any:
    """The loss of Transformers' LabelSmoother over the results of the model."""
    from transformers.trainer_pt_utils import LabelSmoother  # with data loaders behind it

    return LabelSmoother(epsilon=SMOOTHING)(out, labels, shift_labels=job.model.task == "lm")


def _whole(model: Any) -> Any:
    """The model of Transformers inside of an adapter's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _before_head(model: Any, batch: dict[str, Any]) -> tuple[Any, Any, Any]:
    """What the model returns without its head, the head, and the labels."""
    given = {key: value for key, value in batch.items() if key != "labels"}
    whole = _whole(model)
    inner = getattr(whole, whole.base_model_prefix)
    return inner(**given), whole.get_output_embeddings(), batch["labels"]


def _bounded(model: Any, logits: Any) -> Any:
    """Logits as the model's own head has them: divided by Granite's number, times Cohere's or Falcon-H1's, with Gemma
    2's bound.
    """
    config = _whole(model).config
    if getattr(config, "logits_scaling", None) is not None:
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None) is not None:
        logits = logits * config.logit_scale
    if getattr(config, "lm_head_multiplier", None) is not None:
        logits = logits * config.lm_head_multiplier
    bound = getattr(config, "final_logit_softcapping", None)
    if bound is None:
        return logits
    logits = logits / bound
    logits = torch.tanh(logits)
    return logits * bound


def _chunked(model: Any, batch: dict[str, Any], chunks: int) -> Any:
    """torchtune's head in chunks of the sequence and its loss over them.

    Source: torchtune 0.6.1, modules/transformer.py (chunked_output), modules/loss/ce_chunked_output_loss.py.
    """
    outputs, head, labels = _before_head(model, batch)
    hidden = outputs[0]
    logits = [_bounded(model, head(one)) for one in hidden.chunk(chunks, dim=1)]
    labels = functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    count = (labels != IGNORED).sum()
    targets = [one.reshape(-1) for one in labels.chunk(chunks, dim=1)]
    rows = [one.reshape(-1, one.size(-1)) for one in logits]
    total: Any = 0.0
    for one, target in zip(rows, targets, strict=True):
        total += functional.cross_entropy(one.float(), target, reduction="sum", ignore_index=IGNORED)
    return Result(total / count, logits)


def _tiled(model: Any, batch: dict[str, Any]) -> Any:
    """TRL's head in the place of logits, and the loss of its SFTTrainer.

    Source: trl 1.16.0, trainer/utils.py, add_fused_lm_head; trainer/sft_trainer.py, SFTTrainer.compute_loss.
    """
    head_of = import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    outputs, head, labels = _before_head(model, batch)
    hidden, labels = outputs[0][:, :-1], labels[:, 1:]
    mask = labels != IGNORED
    bound = getattr(_whole(model).config, "final_logit_softcapping", None)
    places = hidden[mask], head.weight, head.bias, labels[mask]
    found = head_of.apply(*places, 1.0, TILE_COLUMNS, bound, 1.0, TRL_OUTPUTS)
    del places, hidden
    scores: list[Any] = [None if one is None else one.new_zeros(mask.shape).masked_scatter(mask, one) for one in found]
    del found
    _own = -scores[0].sum() / mask.sum().clamp(min=1)
    per_token = -scores[0]
    count = torch.as_tensor(mask.sum()).clamp(min=1)
    return Result(per_token.sum() / count * 1)


def _fused(model: Any, batch: dict[str, Any]) -> Any:
    """Liger's loss, which makes the head's products itself."""
    loss = import_module("liger_kernel.transformers.model.loss_utils").LigerForCausalLMLoss
    outputs, head, labels = _before_head(model, batch)
    if getattr(head, "bias", None) is not None:
        raise UsageError("fused takes no bias of the head, and the model has one", key="loss", hint="use standard")
    hidden = outputs[0]
    config = _whole(model).config
    for name in ("logits_scaling", "logit_scale"):
        if getattr(config, name, None) is not None:
            message = f"fused has no loss of Liger for a model with {name}"
            raise UsageError(message, key="loss", hint="use standard")
    if getattr(config, "lm_head_multiplier", None) is not None:
        hidden = hidden * config.lm_head_multiplier  # liger_kernel/transformers/model/falcon_h1.py
    bound = getattr(config, "final_logit_softcapping", None)
    more = {} if bound is None else {"final_logit_softcapping": bound}
    result = loss(hidden_states=hidden, lm_head_weight=head.weight, labels=labels, hidden_size=hidden.shape[-1], **more)
    return Result(getattr(result, "loss", result[0] if isinstance(result, tuple) else result))
