"""What a trace on tensors without data puts in the place of a CTC loss, and of frames that are masked at random."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from vramplan.measure import known
from vramplan.replay.operators.waveforms import is_large
from vramplan.replay.recorder import rounded
from vramplan.values.job import ResolvedJob

LIBRARIES = ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss")  # whether they compute it: the code turns them off
SPACED = 2  # a place before each letter, and one after the last


def stand_ins() -> dict[Any, Callable[..., Any]]:
    """Operators that are not run, and what stands in for each."""
    aten = torch.ops.aten
    return {
        **{getattr(aten, name).Tensor: _no for name in LIBRARIES if hasattr(aten, name)},
        aten._ctc_loss.Tensor: alphas,
        aten._ctc_loss_backward.Tensor: gradient,
        aten.masked_select.default: lambda x, mask: x.new_empty(known.true_of(mask)),
    }


def scratch_rules() -> dict[Any, Callable[..., int]]:
    """Bytes that they take inside."""
    aten = torch.ops.aten
    return {
        aten._ctc_loss.Tensor: lambda _, __, lengths, *___: numbers_of_samples(lengths.shape[0]),
        aten._ctc_loss_backward.Tensor: betas,
        aten.masked_select.default: lambda x, mask: 8 * known.true_of(mask) * x.dim(),
    }


class _Mask(list[list[bool]]):
    """Where frames are masked, before it is a tensor of the device."""


def _no(*_: Any) -> bool:
    return False


def alphas(probabilities: Any, targets: Any, *_: Any, **__: Any) -> Any:
    """The loss of each sample, and a number for each frame and place of its text.

    Source: aten/src/ATen/native/cuda/LossCTC.cu, ctc_loss_gpu_template.
    """
    frames, batch, _ = probabilities.shape
    places = SPACED * (targets.numel() // batch) + 1
    made = probabilities.new_empty((batch, frames, places))
    return probabilities.new_empty((batch,)), made


def gradient(_: Any, probabilities: Any, *__: Any, **___: Any) -> Any:
    """The gradient of the log-probabilities, contiguous."""
    return torch.empty(probabilities.shape, dtype=probabilities.dtype, device=probabilities.device)


def numbers_of_samples(batch: int) -> int:
    """Bytes of three lists of a number for each sample: lengths of frames and texts, and where the texts begin."""
    return 3 * rounded(8 * batch)


def betas(*given: Any) -> int:
    """Bytes: as many numbers as forward has made, and of larger problems sums of every second of both, twice.

    Source: aten/src/ATen/native/cuda/LossCTC.cu, ctc_loss_backward_gpu_template; ReduceOps.cpp, logsumexp.
    """
    probabilities, made = given[1], given[6]
    frames, batch, letters = probabilities.shape
    _, _, places = made.shape
    size = rounded(4 * made.numel()) + numbers_of_samples(batch)
    if is_large(frames, batch, letters):
        size += 2 * rounded(4 * batch * frames * (places // SPACED + 1)) + 2 * rounded(4 * batch * frames)
    return size


def without_randomness(job: ResolvedJob, stack: contextlib.ExitStack) -> None:
    """As many frames are masked as can be, in rows that do not overlap; how many is known."""
    sound = job.model.waveform
    assert sound is not None
    plain = torch.tensor

    def masks(shape: tuple[int, int], *_: Any, **__: Any) -> _Mask:
        rows, frames = shape
        masked = sound.masked(frames)
        return _Mask([[True] * masked + [False] * (frames - masked)] * rows)

    def tensor(given: Any, **how: Any) -> Any:
        return known.known(list(given), str(how["device"])) if isinstance(given, _Mask) else plain(given, **how)

    name = f"transformers.models.{job.model.transformers_model_type}"
    kind = job.model.transformers_model_type
    __import__(f"{name}.modeling_{kind}")
    module = sys.modules[f"{name}.modeling_{kind}"]
    stack.enter_context(patch.object(module, "_compute_mask_indices", masks))
    stack.enter_context(patch.object(torch, "tensor", tensor))
