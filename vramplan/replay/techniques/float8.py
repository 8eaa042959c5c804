"""Linear layers that multiply in fp8, as torchao converts them, and which GPUs do."""

from __future__ import annotations

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Observer
from vramplan.replay.operators.float8 import MULTIPLE, float8_linear
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import Tensor
from vramplan.values.machine import Gpu

SINCE = (8, 9)  # compute capability (pytorch/ao, torchao/float8/README.md)
WITHOUT = ("pascal", "volta", "turing", "ampere", "cdna1", "cdna2", "rdna2", "rdna3")
WITH = ("ada", "hopper", "blackwell", "cdna3", "cdna4")


class MultipliesInFloat8(Technique, Observer):
    """torchao's convert_to_float8_training, but for layers of other widths than multiples of 16."""

    replaces_layers = True

    def before_model(self) -> None:
        """Layers are converted as they are made."""
        self.tape.observe(self)

    def made_linear(self, layer: Linear) -> None:
        """Convert one."""
        if all(width % MULTIPLE == 0 for width in layer.weight.shape):
            layer.converted = multiplied_in_float8


def multiplied_in_float8(layer: Linear, x: Tensor) -> Tensor:
    """Float8Linear in the place of a layer."""
    return float8_linear(x, layer.weight, layer.bias)


def reaches(gpu: Gpu, capability: tuple[int, int]) -> bool | None:
    """Whether a GPU has this compute capability or a later one; None: its profile has none."""
    major, _, minor = (gpu.compute_capability or "").partition(".")
    return (int(major), int(minor)) >= capability if major.isdigit() and minor.isdigit() else None


def runs_float8(gpu: Gpu) -> bool | None:
    """Whether a GPU multiplies in fp8, by its compute capability or else its architecture; None: nobody knows."""
    found = reaches(gpu, SINCE)
    if found is not None:
        return found
    if gpu.architecture in WITH:
        return True
    return False if gpu.architecture in WITHOUT else None
