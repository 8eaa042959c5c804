"""The quantized weights of a job as Transformers and bitsandbytes make them: nf4, nf4-double and int8.

On tensors without data the operators of bitsandbytes are run as its own code for CUDA has them, with nothing in the
place of each kernel, so that what that code allocates is counted operator by operator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module, util
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from vramplan.measure.runnable import QUANTIZED
from vramplan.measure.stand_ins import Truth
from vramplan.replay.models.capable import left_unquantized
from vramplan.replay.techniques.quantized_experts import STACKED
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP, ZERO3

SPREAD = 0.002
"""Of random weights: with 0.02, which is usual, whole columns of the feed-forward layer's activations are outliers of
8-bit products, and each layer keeps those once more."""
OUTLIERS = 6.0  # from which on a column of activations is no 8-bit number (BitsAndBytesConfig, llm_int8_threshold)
CUT = (ZERO3, FSDP, FSDP_GRAD_OP)  # weights into parts
BACKENDS = ("default", "cuda")  # of operators; the second one wins


def replaced(job: ResolvedJob, model: Any, compute: Any) -> Any:
    """The model with the layers of bitsandbytes in the place of its linear ones, on the device meta.

    `compute` is the element type of their products. What Transformers leaves alone stays: the head, tied weights, and
    what a family keeps in fp32, or has to leave as it is.
    Source: transformers 5.23, integrations/bitsandbytes.py, replace_with_bnb_linear; quantizers/base.py,
    get_modules_to_not_convert.
    """
    if job.quantization not in QUANTIZED:
        return model
    # what jobs without bitsandbytes need not have
    from transformers import BitsAndBytesConfig
    from transformers.integrations import bitsandbytes as replacing
    from transformers.quantizers import base

    # it has moved with Transformers 5.0
    left_out = getattr(base, "get_keys_to_not_convert", None) or replacing.get_keys_to_not_convert
    if job.quantization == "int8":
        how = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=OUTLIERS)
    else:
        how = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=compute or torch.float32,
            bnb_4bit_use_double_quant=job.quantization == "nf4-double",
        )
    biases = {name: one.dtype for name, one in model.named_parameters() if name.endswith(".bias")}
    left = [*left_out(model), *(model._keep_in_fp32_modules or ()), *left_unquantized(job.model.family)]
    model = replacing.replace_with_bnb_linear(model, left, quantization_config=how)
    for name, module in layers(model):
        if module.bias is not None:
            module.bias.data = module.bias.data.to(biases[f"{name}.bias"])
    model.is_quantized = True
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = job.quantization != "int8", job.quantization == "int8"
    return model


def layers(model: Any) -> Iterator[tuple[str, Any]]:
    """The layers of bitsandbytes with their names."""
    nn = import_module("bitsandbytes.nn")
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear4bit | nn.Linear8bitLt):
            yield name, module


def quantize(job: ResolvedJob, model: Any, compute: Any) -> None:
    """Quantize the weights of its layers, which are on the device by now, from the element type of their products.

    A parameter of bitsandbytes' own classes would not be a tensor without data, so what the class keeps beside the
    numbers is put beside an ordinary one. Where weights are cut into parts, two bytes of 4-bit numbers are one element
    of the other weights, as the library asks for (bnb_4bit_quant_storage): as they are gathered, where a policy of FSDP
    casts what it takes for weights.
    Source: bitsandbytes 0.50.2, nn/modules.py, Params4bit._quantize and Int8Params._quantize.
    """
    if job.quantization not in QUANTIZED:
        return
    say_quantized(model)

    functional = import_module("bitsandbytes.functional")
    for _, module in layers(model):
        shape = module.out_features, module.in_features
        if job.quantization == "int8":
            whole = torch.empty(shape, dtype=torch.float16, device="cuda")
            codes, scales, _ = functional.int8_vectorwise_quant(whole)
            module.weight = torch.nn.Parameter(codes, requires_grad=False)
            module.weight.CB, module.weight.SCB, module.weight.has_fp16_weights = codes, scales, False
        else:
            whole = torch.empty(shape, dtype=compute or torch.float32, device="cuda")
            nested = job.quantization == "nf4-double"
            how = {"compress_statistics": nested, "quant_type": "nf4"}
            if job.sharding is not None and job.sharding.kind in CUT:
                how["quant_storage"] = compute if job.precision.startswith("fsdp-") else next(model.parameters()).dtype
            codes, state = functional.quantize_4bit(whole, **how)
            module.weight = torch.nn.Parameter(codes, requires_grad=False)
            module.weight.quant_state = module.quant_state = state
        del whole
    if job.quantized_experts:
        quantize_experts(job, model)


def say_quantized(model: Any) -> None:
    """What code asks that multiplies by a weight without its layer.

    Source: transformers 5.23, quantizers/base.py, _assign_is_quantized.
    """
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._is_quantized = True


def copied(job: ResolvedJob, model: Any) -> Any:
    """A model that stands in for the deep copy of one with the same weights.

    A 4-bit weight copies what belongs to its numbers, and its layer copies the same once more.
    Source: bitsandbytes 0.50.2, nn/modules.py, Params4bit.__deepcopy__, and _quantize, which sets both.
    """
    if job.quantization in QUANTIZED and job.quantization != "int8":
        for _, module in layers(model):
            module.quant_state = deepcopy(module.quant_state)
    return model


def quantize_experts(job: ResolvedJob, model: Any) -> None:
    """The stacked weights of experts in few bits, as Axolotl has them while it loads.

    Those of 8 bits are Axolotl's own, which has to be installed.
    Source: axolotl 0.19.0, monkeypatch/moe_quant.py.
    """
    how: dict[str, Any] = {}
    if job.quantization == "int8":
        replace = import_module("axolotl.monkeypatch.moe_quant").replace_parameter_8bit
    else:
        replace = import_module("bitsandbytes.nn.parametrize").replace_parameter_4bit
        how = {"quant_type": "nf4", "compress_statistics": job.quantization == "nf4-double"}
    stacks = [
        (module, of)
        for name, module in model.named_modules()
        for of, weight in module.named_parameters(recurse=False)
        if "expert" in f"{name}.{of}".lower() and weight.dim() >= STACKED
    ]
    for module, of in stacks:
        replace(module, of, **how)


def quantize_on_gpu(job: ResolvedJob, model: Any, compute: Any) -> None:
    """Quantize random weights on the GPU, layer by layer, as loading does it from those of a file.

    Source: transformers 5.23, integrations/bitsandbytes.py, Bnb4bitQuantize and Bnb8bitQuantize.
    """
    nn = import_module("bitsandbytes.nn")
    say_quantized(model)
    for _, module in layers(model):
        whole = torch.empty(module.out_features, module.in_features, dtype=compute or torch.float32, device="cuda")
        whole.normal_(std=SPREAD)
        if job.quantization == "int8":
            weight = nn.Int8Params(whole.cpu().half(), requires_grad=False, has_fp16_weights=False)
        else:
            how = {"quant_type": "nf4", "compress_statistics": job.quantization == "nf4-double", "module": module}
            weight = nn.Params4bit(whole, requires_grad=False, **how)
        module.weight = weight.to("cuda")
        if module.bias is not None:
            module.bias = torch.nn.Parameter(torch.zeros_like(module.bias, device="cuda"))
        del whole
    if job.quantized_experts:
        quantize_experts(job, model)


class _Anything:
    """A library of kernels that write into their arguments, and whatever else is asked of it."""

    def __getattr__(self, _: str) -> _Anything:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Anything:
        return self

    def __bool__(self) -> bool:
        return False  # no error


NO_KERNELS = _Anything()
"""In the place of a library of kernels."""


def operators(truth: Truth) -> dict[Any, Callable[..., Any]]:
    """bitsandbytes' operators by its own code for CUDA, each without the kernel that writes the result.

    No activation is an outlier. Products of few tokens, for which it has kernels that depend on the GPU, are those of
    many: the weight is given back its element type first.
    """
    found: dict[Any, Callable[..., Any]] = {}

    def register(name: str, _: Any = None) -> Callable[..., Any]:
        space, _, word = name.partition("::")
        word, _, overload = word.partition(".")
        operator = getattr(getattr(getattr(torch.ops, space), word), overload or "default")

        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*given: Any, **named: Any) -> Any:
                before, truth.value = truth.value, False
                try:
                    return function(*given, **named)
                finally:
                    truth.value = before

            found[operator] = run
            return function

        return keep

    nothing = NO_KERNELS
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch("bitsandbytes._ops.register_kernel", register))
        stack.enter_context(patch("bitsandbytes.cextension.lib", nothing))
        stack.enter_context(patch.object(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, create=True))
        for backend in BACKENDS:
            module = _executed(f"bitsandbytes.backends.{backend}.ops")
        module.__dict__.update(
            CUBLAS_Context=nothing,
            _cuda_device_of=lambda _: contextlib.nullcontext(),
            _gemm_4bit_use_custom_fn=lambda *_: False,
        )
    dequantized = torch.ops.bitsandbytes.int8_vectorwise_dequant.default
    found.setdefault(dequantized, _rows_given_back)
    return found


def _rows_given_back(codes: Any, scales: Any) -> Any:
    """Source: bitsandbytes 0.50.2, _ops.py, int8_vectorwise_dequant."""
    return codes * scales.view(-1, 1) * (1.0 / 127.0)


def _executed(name: str) -> ModuleType:
    """A module of the library executed anew, beside the one that others may have imported."""
    spec = util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def by_value(job: ResolvedJob) -> Iterator[None]:
    """Libraries know quantized weights by what is beside their numbers, and ask for no addresses.

    Source: peft 0.21.2, utils/integrations.py, dequantize_module_weight and dequantize_bnb_weight.
    """
    if job.quantization not in QUANTIZED:
        yield
        return

    functional = import_module("bitsandbytes.functional")
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(torch.Tensor, "data_ptr", lambda _: 0))
        stack.enter_context(patch.dict(functional.name2qmap))
        if job.adapter is not None:
            for name in ("dora", "variants", "layer"):
                module = import_module(f"peft.tuners.lora.{name}")
                plain = module.dequantize_module_weight
                stack.enter_context(patch.object(module, "dequantize_module_weight", _given_back(functional, plain)))
        yield


def _given_back(functional: Any, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def dequantized(module: Any) -> Any:
        weight = module.weight
        if type(weight).__name__ in ("Params4bit", "Int8Params"):
            return weight.data  # there are no numbers as yet
        state = getattr(module, "quant_state", None)
        if state is not None:
            return functional.dequantize_4bit(weight.data, state)
        scales = getattr(getattr(module, "state", None), "SCB", None)
        scales = getattr(weight, "SCB", None) if scales is None else scales
        return plain(module) if scales is None else functional.int8_vectorwise_dequant(weight.data, scales)

    return dequantized
