"""ConvNeXt V2, as transformers 5.23 computes it (models/convnextv2/modeling_convnextv2.py): ConvNeXt whose layers have
global response normalization in the place of a factor for each channel.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models import convnext
from vramplan.replay.models.resnet import in_stages
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul
from vramplan.replay.operators.responses import norm_of_image, over_mean
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import DType, Parameter, Tensor
from vramplan.values.model import ModelShape


class GlobalResponse:
    """ConvNextV2GRN."""

    def __init__(self, tape: Tape, width: int, dtype: DType) -> None:
        self.weight = tape.parameter("grn.weight", (1, 1, 1, width), dtype)
        self.bias = tape.parameter("grn.bias", (1, 1, 1, width), dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        _features = norm_of_image(hidden)
        _normed = over_mean(_features, add_scalar(mean_last(_features)))
        return add(add(mul(self.weight, mul(hidden, _normed)), self.bias), hidden)


class Layer(convnext.Layer):
    """ConvNextV2Layer."""

    def scale_of(self, tape: Tape, width: int, dtype: DType) -> Parameter | None:
        """None."""
        return None

    def response_of(self, tape: Tape, width: int, dtype: DType) -> Callable[[Tensor], Tensor] | None:
        """Global response normalization, over what the first product gave."""
        return GlobalResponse(tape, width, dtype)


class ConvNextV2(convnext.ConvNext):
    """ConvNextV2ForImageClassification, with its loss."""

    no_checkpointing = "Transformers' ConvNeXt V2 has no gradient checkpointing"  # supports_gradient_checkpointing
    named_units = None
    layer = Layer

    @staticmethod
    def lists_in_stages(shape: ModelShape) -> dict[str, int]:
        """Those of ConvNeXt."""
        return in_stages(shape, "stages.{}.layers")


FORWARD = ConvNextV2
