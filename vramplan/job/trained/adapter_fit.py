"""Whether an adapter fits the widths of the layers that it is put on, and their quantized weights: what PEFT raises."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.catalog.fields import Fields
from vramplan.job.given.read import RawJob
from vramplan.replay.precision import PRECISIONS
from vramplan.replay.techniques.adapters import GPTQ, is_target
from vramplan.replay.techniques.trained import Names
from vramplan.replay.tensors import FP32
from vramplan.values.adapter_kinds import ALL, HALF, KINDS
from vramplan.values.job import Adapter
from vramplan.values.parallel import ZERO3


def check_layers(raw: RawJob, kind: str) -> None:
    """Refuse weights that PEFT has no layer of the kind for."""
    quantization, known = raw.quantization, KINDS[kind].quantizations
    if raw.adapter is None or quantization is None or quantization in known:
        return
    message = f"PEFT has no layer of {kind} over {quantization} weights"
    if known:
        message = f"{message}, and has one over {' and '.join(known)}"
    if kind in ("dora", "ia3"):
        message = f"{kind} is not modelled over {quantization} weights: PEFT has it only for bitsandbytes"
    raw.adapter.refuse("kind", message, hint="use lora")


def check_bias(raw: RawJob) -> None:
    """Refuse biases that would have gradients and no step: those that are no parameters, and those beside BAdam."""
    if raw.adapter is None or raw.adapter_bias in (None, "none"):
        return
    if raw.quantization == GPTQ and raw.adapter_bias == "targets":
        raw.adapter.refuse("bias", f"targets: biases of {GPTQ} layers are buffers, which no optimizer steps")
    if raw.trained_blocks not in (None, "all"):
        message = f"{raw.adapter_bias}: {raw.trained_blocks} steps only what has lora in its name"
        raw.adapter.refuse("bias", message, hint="leave it out")


def check_shards(raw: RawJob, kind: str) -> None:
    """Refuse what looks at a weight of which ZeRO-3 has gathered nothing, as the layer itself does not run."""
    if raw.adapter is not None and raw.sharding == ZERO3 and KINDS[kind].reads_weight:
        message = f"{kind} multiplies by the weight of a layer that it does not call, for which {ZERO3} gathers nothing"
        raw.adapter.refuse("kind", message, hint="use zero2, or lora")


def check_element_types(raw: RawJob, adapter: Adapter, precision: str) -> None:
    """Refuse what gives fp32 to layers in 16 bits, or multiplies the two, where no autocast makes them one."""
    computing, kind, quantization = PRECISIONS[precision], adapter.kind, raw.quantization
    fails = KINDS[kind].unlike.get(quantization or "")
    if raw.adapter is None or computing.autocast is not None or computing.weights is FP32 or fails is None:
        return
    if fails == HALF:
        if adapter.dtype != "fp32":
            message = (
                f"{kind} over {quantization} weights has random matrices in fp32, which weights of 16 bits are not"
            )
            raw.adapter.refuse("dtype", f"{adapter.dtype}: {message}", hint="use fp32")
    elif fails == ALL or adapter.dtype == "fp32":
        message = f"{kind} over {quantization} weights gives fp32, which {precision} cannot go on with"
        alone = precision.startswith("pure-")
        raw.adapter.refuse("kind", message, hint="use autocast: amp-bf16 with weight_dtype" if alone else "use lora")


def check_widths(fields: Fields, names: Names, adapter: Adapter) -> None:
    """Refuse numbers that do not fit a layer."""
    found = FITS.get(adapter.kind)
    if found is None:
        return
    key, misses = found
    for name, inputs, outputs in names.shapes:
        if is_target(name, adapter.targets) and (message := misses(adapter, inputs, outputs)):
            fields.refuse(key, f"{message} of {name}, which PEFT refuses")
            return


def _blocks(adapter: Adapter, inputs: int, outputs: int) -> str:
    return f"{adapter.rank} does not divide the {inputs} inputs" if inputs % adapter.rank else ""


def _rows(adapter: Adapter, inputs: int, outputs: int) -> str:
    return f"{adapter.rank} is more than the {inputs} inputs" if adapter.rank > inputs else ""


def _numbers(adapter: Adapter, inputs: int, outputs: int) -> str:
    assert adapter.frequencies is not None
    return f"{adapter.frequencies} are more than the weights" if adapter.frequencies > inputs * outputs else ""


FITS: dict[str, tuple[str, Callable[[Adapter, int, int], str]]] = {
    "boft": ("rank", _blocks),
    "miss": ("rank", _rows),
    "fourierft": ("frequencies", _numbers),
}
"""By kind, the key and what is wrong with it over a layer.

Source: peft 0.21.2, tuners/boft/layer.py, tuners/miss/layer.py and tuners/fourierft/layer.py, update_layer.
"""
