"""Liger's kernels beside its loss, in the place of modules of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vramplan.replay.models.liger import GLU, NORM, ROPE, Patch, patch_of
from vramplan.replay.observers import Kernels
from vramplan.replay.operators.liger import GATED, layer_norm, rms_norm, rotary, rotary_of_images
from vramplan.replay.setup import Setup
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import Parameter, Tensor


class LigerKernels(Kernels):
    """Those of a job, where Liger replaces modules of its model."""

    def __init__(self, asked: tuple[str, ...], patch: Patch) -> None:
        self.asked, self.patch = asked, patch
        self.gated = GATED[patch.activation] if GLU in asked else None
        self.rotary = rotary if ROPE in asked else None
        self.rotary_of_images = rotary_of_images if ROPE in asked and patch.turns_images else None

    def norm(self, name: str) -> Callable[[Tensor, Parameter], Tensor] | None:
        """An RMSNorm of that name, of its input and its weight."""
        patch = self.patch
        if NORM not in self.asked or name in patch.left:
            return None
        return partial(rms_norm, in_place=patch.in_place is None or name in patch.in_place)

    def layer_norm(self, name: str) -> Callable[[Tensor, Parameter, Parameter | None], Tensor] | None:
        """A LayerNorm of that name, of its input, its weight and its bias: of vision encoders."""
        return layer_norm if NORM in self.asked and name in self.patch.layer_norms else None


def kernels_of(setup: Setup) -> Kernels:
    """What runs in place of the modules of a job's model."""
    patch = patch_of(setup.model)
    assert patch is not None
    return LigerKernels(setup.liger_kernels, patch)


class RunsLigerKernels(Technique):
    """The modules of the model run Liger's kernels."""

    def before_model(self) -> None:
        """The model is built with them."""
        self.tape.enlist(Kernels, kernels_of(self.setup))
