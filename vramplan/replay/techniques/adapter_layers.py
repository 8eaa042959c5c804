"""Which class stands for the adapter of a kind over a layer."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.techniques.adapter_target import Adapting, Target
from vramplan.replay.techniques.adapters import GPTQ, IA3, DoRA, LoRA, QuantizedLoRA, is_named
from vramplan.replay.techniques.block_kinds import HRA, MiSS
from vramplan.replay.techniques.butterflies import BOFT
from vramplan.replay.techniques.low_rank_kinds import VeRA, adalora
from vramplan.replay.techniques.quantized_adapters import QuantizedDoRA, QuantizedIA3
from vramplan.replay.techniques.random_bases import randlora
from vramplan.replay.techniques.rotations import OFT
from vramplan.replay.techniques.whole_changes import FourierFT, LoHa, LoKr


def over(target: Target) -> Adapting:
    """The adapter of the target's kind."""
    return LAYERS[target.adapter.kind](target)


def _lora(target: Target) -> Adapting:
    given = target.tape, target.name, *target.widths, target.adapter, target.dtype
    if target.base is None or target.quantization == GPTQ:
        return LoRA(*given, target.base)
    return QuantizedLoRA(*given, quantized=target.base, clones=target.quantization != "int8")


def _dora(target: Target) -> Adapting:
    given = target.tape, target.name, *target.widths, target.adapter, target.dtype
    if target.base is None or target.quantization is None:
        return DoRA(*given)
    return QuantizedDoRA(*given, target.base, target.quantization, target.compute)


def _ia3(target: Target) -> Adapting:
    feedforward = any(is_named(target.name, word) for word in target.adapter.feedforward_targets)
    width = target.inputs if feedforward else target.outputs
    given = target.tape, target.name, width, target.dtype
    if target.base is None:
        return IA3(*given, feedforward=feedforward)
    return QuantizedIA3(*given, target.base, feedforward=feedforward, clones=target.quantization != "int8")


def _oft(target: Target) -> Adapting:
    return OFT(target.tape, target.name, target.inputs, target.adapter.rank, target.dtype, target.base)


LAYERS: dict[str, Callable[[Target], Adapting]] = {
    "lora": _lora,
    "dora": _dora,
    "ia3": _ia3,
    "oft": _oft,
    "adalora": adalora,
    "vera": VeRA,
    "loha": LoHa,
    "lokr": LoKr,
    "miss": MiSS,
    "boft": BOFT,
    "hra": HRA,
    "randlora": randlora,
    "fourierft": FourierFT,
}
