"""The losses of a job over a real model: its own, and those that replace it.

A loss that a model does not make itself is written anew here as the library has it, since it is the same few lines
over tensors; that of Liger is the library's own code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial, wraps
from importlib import import_module
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional
from transformers.modeling_outputs import CausalLMOutput, CausalLMOutputWithPast

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


@contextlib.contextmanager
def inside(job: ResolvedJob) -> Iterator[None]:
    """What the job asks of the cross-entropy that a model computes itself: smoothed labels, or logits in fp32.

    A causal language model casts its logits anyway.
    """
    smooths = bool(job.label_smoothing) and not smooths_outside(job)
    casts = job.loss == "fp32-logits" and job.model.task != "lm"
    if not smooths and not casts:
        yield
        return

    plain = functional.cross_entropy

    @wraps(plain)
    def asked(logits: Any, *given: Any, **named: Any) -> Any:
        more = {"label_smoothing": SMOOTHING} if smooths else {}
        return plain(logits.float() if casts else logits, *given, **{**named, **more})

    with patch.object(functional, "cross_entropy", asked):
        yield


def with_loss(job: ResolvedJob, model: Any) -> Any:
    """The model with the job's loss in its forward pass, wherever it is given labels.

    It is put there before an adapter and before the model is shared among devices, whose hooks are around it.
    """
    word, _, number = job.loss.partition(":")
    if word == "half-logits":
        model.loss_function = _uncast
        return model
    losses: dict[str, Callable[..., Any]] = {"fused": _fused}
    if job.teacher is None:
        losses["tiled"] = _tiled
    losses["chunked"] = partial(_chunked, chunks=int(number or 1))
    if casts_first(job):
        losses["fp32-logits"] = _cast_first
    if word not in losses:
        return model
    loss, plain = losses[word], model.forward

    @wraps(type(model).forward)
    def forward(self: Any, *given: Any, labels: Any = None, **named: Any) -> Any:
        if word == "fused" and not self.training:  # liger_kernel/transformers/model/llama.py, lce_forward
            return plain(*given, labels=labels, **named)
        return plain(*given, **named) if labels is None else loss(self, labels, *given, **named)

    model.forward = MethodType(forward, model)
    return model


def casts_first(job: ResolvedJob) -> bool:
    """Whether the model returns logits in fp32, which the loop holds: as Transformers had it before 4.45."""
    return job.loss == "fp32-logits" and job.model.task == "lm" and job.hold_outputs


def trainer_smoothing(job: ResolvedJob, out: Any, labels: Any) -> Any:
    """The loss of Transformers' LabelSmoother over the results of the model."""
    from transformers.trainer_pt_utils import LabelSmoother  # with data loaders behind it

    return LabelSmoother(epsilon=SMOOTHING)(out, labels, shift_labels=job.model.task == "lm")


def _before_head(model: Any, *given: Any, **named: Any) -> tuple[Any, Any]:
    """What the model returns without its head, and the head."""
    inner = getattr(model, model.base_model_prefix)
    return inner(*given, **named), model.get_output_embeddings()


def _uncast(logits: Any, labels: Any, vocab_size: int, **_: Any) -> Any:
    """The loss of a copy of the logits that is shifted by one token, as they are.

    Source: Qwen/Qwen-7B, modeling_qwen.py, QWenLMHeadModel.forward.
    """
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    return functional.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))


def _cast_first(model: Any, labels: Any, *given: Any, **named: Any) -> Any:
    """The head and loss of Transformers before 4.45, where forward casts the logits and returns them so.

    Source: transformers 4.38, models/llama/modeling_llama.py, LlamaForCausalLM.forward.
    """
    outputs, head = _before_head(model, *given, **named)
    hidden_states = outputs[0]
    logits = _bounded(model, head(hidden_states))
    logits = logits.float()
    return CausalLMOutputWithPast(_uncast(logits, labels, 0), logits, outputs.get("past_key_values"))


def _bounded(model: Any, logits: Any) -> Any:
    """Logits as the model's own head has them: divided by Granite's number, times Cohere's or Falcon-H1's, with Gemma
    2's bound.
    """
    config = model.config
    if getattr(config, "logits_scaling", None) is not None:
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None) is not None:
        logits = logits * config.logit_scale
    if getattr(config, "lm_head_multiplier", None) is not None:
        logits = logits * config.lm_head_multiplier
    bound = _bound_of(model)
    if bound is None:
        return logits
    logits = logits / bound
    logits = torch.tanh(logits)
    return logits * bound


def _bound_of(model: Any) -> Any:
    """The bound of the logits, of a model with images that of its text; None: there is none."""
    return getattr(model.config.get_text_config(), "final_logit_softcapping", None)


def _chunked(model: Any, labels: Any, *given: Any, chunks: int, **named: Any) -> Any:
    """torchtune's head in chunks of the sequence and its loss over them.

    Source: torchtune 0.6.1, modules/transformer.py (chunked_output), modules/loss/ce_chunked_output_loss.py.
    """
    outputs, head = _before_head(model, *given, **named)
    hidden = outputs[0]
    logits = [_bounded(model, head(one)) for one in hidden.chunk(chunks, dim=1)]
    labels = functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    count = (labels != IGNORED).sum()
    targets = [one.reshape(-1) for one in labels.chunk(chunks, dim=1)]
    rows = [one.reshape(-1, one.size(-1)) for one in logits]
    total: Any = 0.0
    for one, target in zip(rows, targets, strict=True):
        total += functional.cross_entropy(one.float(), target, reduction="sum", ignore_index=IGNORED)
    return CausalLMOutput(total / count, logits)


def _tiled(model: Any, labels: Any, *given: Any, **named: Any) -> Any:
    """TRL's head in the place of logits, and the loss of its SFTTrainer.

    Source: trl 1.16.0, trainer/utils.py, add_fused_lm_head; trainer/sft_trainer.py, SFTTrainer.compute_loss.
    """
    head_of = import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    outputs, head = _before_head(model, *given, **named)
    hidden, labels = outputs[0][:, :-1], labels[:, 1:]
    mask = labels != IGNORED
    bound = _bound_of(model)
    places = hidden[mask], head.weight, head.bias, labels[mask]
    found = head_of.apply(*places, 1.0, TILE_COLUMNS, bound, 1.0, TRL_OUTPUTS)
    del places, hidden
    scores: list[Any] = [None if one is None else one.new_zeros(mask.shape).masked_scatter(mask, one) for one in found]
    del found
    _own = -scores[0].sum() / mask.sum().clamp(min=1)
    per_token = -scores[0]
    count = torch.as_tensor(mask.sum()).clamp(min=1)
    return CausalLMOutput(per_token.sum() / count * 1)


def _fused(model: Any, labels: Any, *given: Any, **named: Any) -> Any:
    """Liger's loss, which makes the head's products itself."""
    loss = import_module("liger_kernel.transformers.model.loss_utils").LigerForCausalLMLoss
    outputs, head = _before_head(model, *given, **named)
    if getattr(head, "bias", None) is not None:
        raise UsageError("fused takes no bias of the head, and the model has one", key="loss", hint="use standard")
    hidden = outputs[0]
    config = model.config
    for name in ("logits_scaling", "logit_scale"):
        if getattr(config, name, None) is not None:
            message = f"fused has no loss of Liger for a model with {name}"
            raise UsageError(message, key="loss", hint="use standard")
    if getattr(config, "lm_head_multiplier", None) is not None:
        hidden = hidden * config.lm_head_multiplier  # liger_kernel/transformers/model/falcon_h1.py
    bound = _bound_of(model)
    more = {} if bound is None else {"final_logit_softcapping": bound}
    result = loss(hidden_states=hidden, lm_head_weight=head.weight, labels=labels, hidden_size=hidden.shape[-1], **more)
    found = getattr(result, "loss", result[0] if isinstance(result, tuple) else result)
    return CausalLMOutputWithPast(found, past_key_values=outputs.get("past_key_values"))
