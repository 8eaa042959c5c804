"""Steps of a model that learns from a teacher beside it: TRL's two trainers."""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from vramplan.measure.around import as_it_was, dtype_of, saved_on_host, widened
from vramplan.measure.loop import Loop
from vramplan.values.job import ResolvedJob
from vramplan.values.model import ModelShape


def alone(job: ResolvedJob, model: ModelShape) -> ResolvedJob:
    """The job of a teacher's model, which has no other technique than its element type."""
    plain = job._replace(model=model, teacher=None, activation_checkpointing="none", adapter=None, quantization=None)
    return plain._replace(frozen=(), liger_kernels=(), tiled_mlp=None)


def teaching(model: Any) -> Any:
    """In eval mode; its configuration lets it return a cache, as the Trainer leaves it."""
    model.config.use_cache = True
    return model.eval()


def taught(loop: Loop, *, casts: bool) -> Any:
    """GKDTrainer's step: both models return logits, and the loss is theirs. Of several micro-steps the labels of all
    are counted, so that no loss is divided.

    Source: trl 1.16.0, experimental/gkd/gkd_trainer.py, compute_loss.
    """
    trainer: Any = import_module("trl.experimental.gkd.gkd_trainer").GKDTrainer
    job = loop.job
    given = {key: value for key, value in loop.batch.items() if key != "labels"}

    def run(model: Any) -> Any:
        around = torch.autocast(loop.device, dtype=dtype_of(job)) if casts else contextlib.nullcontext()
        whole = as_it_was(model)
        inner = widened(whole.forward, around) if casts else whole.forward
        with patch.object(whole, "forward", inner):
            return model(**given)

    with saved_on_host(job):
        _student_outputs = run(loop.model)
    with torch.no_grad():
        _teacher_outputs = run(loop.teacher)
    _student_logits = _student_outputs.logits[:, :-1, :]
    _teacher_logits = _teacher_outputs.logits[:, :-1, :]
    loss = trainer.generalized_jsd_loss(
        student_logits=_student_logits,
        teacher_logits=_teacher_logits,
        labels=loop.batch["labels"][:, 1:],
        beta={"forward-kl": 0, "reverse-kl": 1}.get(job.distillation or "", 0.5),
        num_items_in_batch=1,
    )
    return None, loss


def taught_in_tiles(loop: Loop) -> Any:
    """DistillationTrainer's step: neither model makes logits, and the loss is of what their heads are given.

    The answer is all but the first token. Accelerate's autocast is around the model's forward, which is not called.
    Source: trl 1.16.0, trainer/distillation_trainer.py, _compute_loss and _get_last_hidden_state.
    """
    job, ids = loop.job, loop.batch["input_ids"]
    diverge = import_module("trl.trainer.distillation_trainer")._chunked_divergence_loss
    kept = ids.shape[1] - 1
    input_ids = torch.cat([ids[:, :1], ids[:, 1:]], dim=1)
    _attention_mask = torch.cat([ids[:, :1], ids[:, 1:]], dim=1)
    completion_mask = loop.batch["labels"].view(-1)[: ids.shape[0] * kept].view(-1, kept)
    given = {key: value for key, value in loop.batch.items() if key not in ("input_ids", "labels")}

    def before_head(model: Any) -> Any:
        own = model.base_model.model if job.adapter is not None and model is loop.model else model
        last = own.base_model(input_ids=input_ids, **given, use_cache=False).last_hidden_state
        return last[:, :-1, :][:, -kept:, :]

    def head_of(model: Any) -> Any:
        return model.get_output_embeddings()

    with saved_on_host(job):
        student = before_head(loop.model)
    with torch.no_grad():
        teacher = before_head(loop.teacher)
    first, second = head_of(loop.model), head_of(loop.teacher)
    beta = {"forward-kl": 0.0, "reverse-kl": 1.0}.get(job.distillation or "", 0.5)
    loss, entropy, count = diverge(
        student,
        teacher,
        first.weight,
        second.weight,
        completion_mask,
        beta,
        num_items_in_batch=1,
        student_lm_head_bias=first.bias,
        teacher_lm_head_bias=second.bias,
    )
    del entropy, count
    return None, loss
