"""Axolotl's fused LoRA in the place of PEFT's layers: queries, keys and values at once, a gated MLP, the output.

The functions ask for weights outside of the modules that have them. Of these the attention or the MLP runs alone; an
attention is given its input by name.
Source: axolotl 0.19.0, monkeypatch/lora_kernels.py, apply_lora_kernel_patches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import dropout
from vramplan.replay.operators.lora_kernels import FusedLayer, fused_linear, fused_mlp, fused_projections
from vramplan.replay.operators.quantized import FourBits
from vramplan.replay.techniques.adapters import LoRA
from vramplan.replay.tensors import Tensor


class OutputAtOnce:
    """What runs the layer that ends an attention, with its LoRA."""

    def __init__(self, module: Linear, lora: LoRA, bits: FourBits | None) -> None:
        self.p, self.layer = lora.p, _fused(module, lora, bits)
        self.own = self.layer.parameters  # all that the attention asks for

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        with Outer(x, own=self.own, by_name=True):
            return fused_linear(x, dropout(x, self.p) if self.p else None, self.layer)


def all_at_once(
    layers: Sequence[Linear], output: Linear | None, bits: FourBits | None
) -> Callable[[Tensor], list[Tensor]] | None:
    """What gives the results of layers that share an input; None unless each of them has LoRA.

    They share the dropout of the first.
    """
    each = _adapted(layers)
    if each is None:
        return None
    query, key, value = (_fused(layer, lora, bits) for layer, lora in zip(layers, each, strict=True))
    p, own = each[0].p, (*query.parameters, *key.parameters, *value.parameters)
    last = None if output is None else output.adapter
    if isinstance(last, OutputAtOnce):
        last.own = own = (*own, *last.layer.parameters)

    def run(x: Tensor) -> list[Tensor]:
        with Outer(x, own=own, by_name=True):
            return fused_projections(x, dropout(x, p) if p else None, query, key, value)

    return run


def gated_at_once(layers: Sequence[Linear], bits: FourBits | None) -> Callable[[Tensor], Tensor] | None:
    """What runs a gated MLP of three layers; None unless each of them has LoRA."""
    each = _adapted(layers)
    if each is None:
        return None
    gate, up, down = (_fused(layer, lora, bits) for layer, lora in zip(layers, each, strict=True))
    p = each[0].p

    def run(x: Tensor) -> Tensor:
        with Outer(x, own=(*gate.parameters, *up.parameters, *down.parameters)):
            return fused_mlp(x, dropout(x, p) if p else None, gate, up, down)

    return run


def _adapted(layers: Sequence[Linear]) -> list[LoRA] | None:
    found = [layer.adapter for layer in layers if isinstance(layer.adapter, LoRA)]
    return found if len(found) == len(layers) else None


def _fused(layer: Linear, lora: LoRA, bits: FourBits | None) -> FusedLayer:
    return FusedLayer(layer.weight, lora.lora_A, lora.lora_B, bits, layer.bias)
