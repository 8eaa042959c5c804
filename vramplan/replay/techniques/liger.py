"""Liger's kernels beside its loss, in the place of modules of a model."""

from __future__ import annotations

from functools import partial

from vramplan.replay.chosen import Kernel, Kernels
from vramplan.replay.models.liger import GLU, NORM, ROPE, patch_of
from vramplan.replay.operators.liger import GATED, rms_norm, rotary
from vramplan.replay.setup import Setup
from vramplan.replay.techniques import Technique


def kernels_of(setup: Setup) -> Kernels:
    """What runs in place of the modules of a job's model."""
    patch, asked = patch_of(setup.model), setup.liger_kernels
    assert patch is not None

    def norm(name: str) -> Kernel | None:
        if name in patch.left:
            return None
        return partial(rms_norm, in_place=patch.in_place is None or name in patch.in_place)

    return Kernels(
        setup.composed_norms,
        norm if NORM in asked else None,
        GATED[patch.activation] if GLU in asked else None,
        rotary if ROPE in asked else None,
    )


class RunsLigerKernels(Technique):
    """The modules of the model run Liger's kernels."""

    def before_model(self) -> None:
        """The model is built with them."""
        self.tape.kernels = kernels_of(self.setup)
