"""Weights of a GPTQ checkpoint under an adapter: gptqmodel's own layers, put in the place of linear ones by optimum.

The layers are those that the backend `auto_trainable` selects where there is CUDA. What makes a whole weight of the
numbers of a layer is one kernel of Inductor's, which allocates its result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from vramplan.errors import UsageError
from vramplan.replay.techniques.adapters import GPTQ
from vramplan.replay.techniques.gptq import BITS, GROUP_SIZE
from vramplan.values.job import ResolvedJob

OWN_KEYS = ("quantization",)
"""What the loop on one device refuses and this rig has."""


def check(job: ResolvedJob) -> None:
    """Raise UsageError where the libraries are not installed, or for weights of another method."""
    if job.quantization != GPTQ:
        raise UsageError("no rig has this program's weights", key="quantization")
    if find_spec("gptqmodel") is None:
        raise UsageError("the rig gptq has gptqmodel and optimum", key="quantization")


def traced(job: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step, in bytes."""
    from gptqmodel.nn_modules.qlinear import torch as layers
    from gptqmodel.nn_modules.qlinear import tritonv2

    from vramplan.measure import steps

    filled, adapted = steps._on_device, steps.adapted
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(steps, "adapted", lambda job, model: _stored(adapted(job, _converted(model)))))
        stack.enter_context(patch.object(steps, "_on_device", lambda job, model: _ready(filled(job, model))))
        stack.enter_context(patch.object(layers, "torch_compile", _one_kernel))
        # reads numbers off the device
        stack.enter_context(patch.object(tritonv2, "_validate_g_idx_bounds", lambda *_, **__: None))
        phases = steps.without_data(job)["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def _converted(model: Any) -> Any:
    """As Transformers and optimum do it before they read a checkpoint.

    Source: optimum 2.3.0, gptq/quantizer.py, GPTQQuantizer.convert_model.
    """
    from gptqmodel.nn_modules.qlinear.tritonv2 import TritonV2Linear
    from optimum.gptq import GPTQQuantizer

    quantizer = GPTQQuantizer(bits=BITS, group_size=GROUP_SIZE, desc_act=False, sym=True)

    def select(**_: Any) -> None:
        quantizer.quant_linear = TritonV2Linear

    with patch.object(quantizer, "select_quant_linear", select):
        return quantizer.convert_model(model)


def _layers(model: Any) -> Iterator[Any]:
    from gptqmodel.nn_modules.qlinear import BaseQuantLinear

    return (module for module in model.modules() if isinstance(module, BaseQuantLinear))


def _stored(model: Any) -> Any:
    """Scales and biases in fp16, as a checkpoint has them, also where an adapter in 16 bits was cast with the model.

    Source: gptqmodel 7.7.0, nn_modules/qlinear/__init__.py, GPTQQuantLinear._register_gptq_buffers.
    """
    for module in _layers(model):
        module.half()
    return model


def _ready(model: Any) -> Any:
    """The same after a checkpoint is read. Source: optimum 2.3.0, gptq/quantizer.py, post_init_model."""
    for module in _layers(model):
        module.post_init()
    return model


def _one_kernel(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """What Inductor makes of point-wise operators: they are run where nobody counts, for the result that they have."""
    import torch
    from torch.utils._python_dispatch import _pop_mode_temporarily

    def run(*given: Any, **named: Any) -> Any:
        with _pop_mode_temporarily(), torch.no_grad():
            result = function(*given, **named)
        return torch.empty_like(result)

    return run
