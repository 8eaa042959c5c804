"""Axolotl's loss of the saved predictions of a teacher, over a real model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from vramplan.measure.around import as_it_was, dtype_of, saved_on_host, widened
from vramplan.measure.loop import Loop
from vramplan.measure.lora_kernels import without_callbacks
from vramplan.values.job import ResolvedJob

PLUGIN = "axolotl.integrations.kd"
SAVED = {"target_token_ids": torch.long, "target_logprobs": torch.float, "target_mask": torch.int}
"""What its collator adds to a batch, with its types: axolotl 0.19.0, integrations/kd/collator.py."""


def loss_from_file(job: ResolvedJob) -> Callable[..., Any]:
    """As KDTrainer makes it, with both losses and normalised log-probabilities.

    Not compiled: Dynamo stops at the masks that choose tokens, and skips the functions in which they are.
    """
    _without_plugin()
    module: Any = import_module(f"{PLUGIN}.kernels.liger")
    beta = {"forward-kl": 0.0, "reverse-kl": 1.0}.get(job.distillation or "", 0.5)
    loss: Callable[..., Any] = module.LigerFusedLinearKLTopKLogprobLoss(0.1, 0.9, 1.0, beta, compiled=False)
    return loss


def counted_labels(labels: Any) -> Any:
    """The Trainer counts the labels of a batch beforehand, on the device."""
    return torch.empty((), dtype=labels.dtype, device=labels.device)


def _without_plugin() -> None:
    """Let the kernel be imported without the plugin, which imports much of Axolotl."""
    without_callbacks()
    if PLUGIN not in sys.modules:
        package = ModuleType(PLUGIN)
        package.__path__ = [f"{path}/integrations/kd" for path in import_module("axolotl").__path__]
        sys.modules[PLUGIN] = package


@contextlib.contextmanager
def from_file(job: ResolvedJob) -> Iterator[None]:
    """What the loss asks of tensors without data: constants there, and whether a gradient is 1, which none is."""
    if job.teacher_logprobs is None:
        yield
        return
    plain = torch.tensor

    def tensor(value: Any, *given: Any, **named: Any) -> Any:
        is_number = isinstance(value, float) and named.get("device") is not None
        return torch.full((), value, *given, **named) if is_number else plain(value, *given, **named)

    with patch.object(torch, "tensor", tensor), patch.object(torch, "equal", lambda *_: False):
        yield


def taught_from_file(loop: Loop, *, casts: bool) -> Any:
    """The step of Axolotl's KDTrainer; of several micro-steps the labels of all are counted: none is divided.

    Source: axolotl 0.19.0, integrations/kd/trainer.py, compute_loss.
    """
    job, given = loop.job, {key: value for key, value in loop.batch.items() if key not in ("labels", *SAVED)}
    around = torch.autocast(loop.device, dtype=dtype_of(job)) if casts else contextlib.nullcontext()
    whole = as_it_was(loop.model)
    inner = widened(whole.forward, around) if casts else whole.forward
    with saved_on_host(job), patch.object(whole, "forward", inner):
        outputs = loop.model(**given, output_hidden_states=True, return_dict=True, logits_to_keep=1)
    hidden_states = outputs.hidden_states[-1]
    head = loop.model.get_output_embeddings()
    hidden_states = hidden_states.to(head.weight.dtype)
    loss = loss_from_file(job)(
        head.weight, hidden_states, *(loop.batch[name] for name in SAVED), true_labels=loop.batch["labels"]
    )
    return None, loss / counted_labels(loop.batch["labels"])
