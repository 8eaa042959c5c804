"""ConvNeXt, as transformers 5.23 computes it (models/convnext/modeling_convnext.py).

Images lie with their channels last from the first norm on, as the norm makes them and cuDNN keeps them.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import ACTIVATIONS, LayerNorm, Linear, Output, Recipe, Segment
from vramplan.replay.models.resnet import in_stages
from vramplan.replay.models.vit import labelled_images
from vramplan.replay.observers import Outer
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.dropped_paths import drop_path
from vramplan.replay.operators.elementwise import add, mul
from vramplan.replay.operators.images import mean_of_image
from vramplan.replay.operators.views import transpose
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import DType, Parameter, Shape, Tensor
from vramplan.values.model import ModelShape

KERNEL = 7  # of the convolution of each channel by itself
WIDER = 4  # ConvNextLayer: how much wider its middle is
HALVING = 2  # ConvNextStage: pixels of an edge that become one


class Convolution:
    """`nn.Conv2d` with a bias."""

    def __init__(self, tape: Tape, name: str, recipe: Recipe, shape: Shape, *, stride: int, groups: int = 1) -> None:
        self.weight = tape.parameter(f"{name}.weight", shape, recipe.weight_dtype)
        self.bias = tape.parameter(f"{name}.bias", shape[:1], recipe.weight_dtype)
        self.stride, self.groups = stride, groups
        self.padding = shape[-1] // 2 if stride == 1 else 0

    def __call__(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding, groups=self.groups)


def channels_behind(x: Tensor) -> Tensor:
    """`x.permute(0, 2, 3, 1)`."""
    return transpose(transpose(x, 1, 2), 2, 3)


def channels_before(x: Tensor) -> Tensor:
    """`x.permute(0, 3, 1, 2)`."""
    return transpose(transpose(x, 2, 3), 1, 2)


class ChannelNorm(LayerNorm):
    """ConvNextLayerNorm over the second dimension."""

    def __call__(self, x: Tensor) -> Tensor:
        return channels_before(super().__call__(channels_behind(x)))


class Layer:
    """ConvNextLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, width: int, *, drops: bool) -> None:
        dtype = recipe.weight_dtype
        self.layer_scale = self.scale_of(tape, width, dtype)
        self.dwconv = Convolution(tape, "dwconv", recipe, (width, 1, KERNEL, KERNEL), stride=1, groups=width)
        self.layernorm = LayerNorm(tape, "layernorm", width, dtype)
        self.pwconv1 = Linear(tape, "pwconv1", width, WIDER * width, dtype, bias=True)
        self.act = ACTIVATIONS[recipe.shape.activation]
        self.response = self.response_of(tape, WIDER * width, dtype)
        self.pwconv2 = Linear(tape, "pwconv2", WIDER * width, width, dtype, bias=True)
        self.drops = drops

    def scale_of(self, tape: Tape, width: int, dtype: DType) -> Parameter | None:
        """A factor for each channel."""
        return tape.parameter("layer_scale_parameter", (width,), dtype)

    def response_of(self, tape: Tape, width: int, dtype: DType) -> Callable[[Tensor], Tensor] | None:
        """What is between activation and second product: nothing."""
        return None

    def __call__(self, features: Tensor) -> Tensor:
        with Outer(features, own=() if self.layer_scale is None else (self.layer_scale,)):
            return self.forward(features)

    def forward(self, features: Tensor) -> Tensor:
        """ConvNextLayer.forward."""
        residual = features
        features = self.dwconv(features)
        features = channels_behind(features)
        features = self.layernorm(features)
        features = self.pwconv1(features)
        features = self.act(features)
        if self.response is not None:
            features = self.response(features)
        features = self.pwconv2(features)
        if self.layer_scale is not None:
            features = mul(self.layer_scale, features)
        features = channels_before(features)
        features = add(residual, drop_path(features) if self.drops else features)
        return features


class ConvNext:
    """ConvNextForImageClassification, with its loss."""

    no_checkpointing = "Transformers' ConvNeXt has no gradient checkpointing"  # supports_gradient_checkpointing
    equal_blocks = False
    named_units: str | None = "its stages too"
    layer: type[Layer] = Layer

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.tape, self.recipe = tape, recipe
        shape = recipe.shape
        assert shape.channels is not None
        assert shape.patch_size is not None
        assert shape.depths is not None
        assert shape.widths is not None
        self.stages = list(zip(shape.depths, shape.widths, strict=True))
        first = shape.widths[0]
        with tape.building("embeddings"):
            patch = (first, shape.channels, shape.patch_size, shape.patch_size)
            self.patches = Convolution(tape, "patch_embeddings", recipe, patch, stride=shape.patch_size)
            self.norm = ChannelNorm(tape, "layernorm", first, recipe.weight_dtype)

    @staticmethod
    def lists_in_stages(shape: ModelShape) -> dict[str, int]:
        """Each stage has a list of its own."""
        return in_stages(shape, "stages.{}.layers")

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Images in the dtype of the weights, and the class of each."""
        return labelled_images(self.recipe)

    def buffers(self) -> list[int]:
        """None."""
        return []

    def __call__(self, pixel_values: Tensor, labels: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        _last, _pooled = self.model(pixel_values)
        with tape.building("head"):
            width, classes = _pooled.shape[1], recipe.shape.classes
            classifier = Linear(tape, "classifier", width, classes, recipe.weight_dtype, bias=True)
        logits = classifier(_pooled)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)

    def model(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """ConvNextModel.forward: the last image, and what is pooled of it."""
        tape = self.tape
        _embedded = self.norm(self.patches(pixel_values))
        last = self.encode(_embedded)
        norm = LayerNorm(tape, "layernorm", self.stages[-1][1], self.recipe.weight_dtype)
        return last, norm(mean_of_image(last))

    def encode(self, hidden: Tensor) -> Tensor:
        """ConvNextEncoder.forward, which keeps what a stage is given until it has returned."""
        inputs, at = self.stages[0][1], 0
        for stage, (depth, outputs) in enumerate(self.stages):
            hidden = self.stage(hidden, stage, inputs, at)
            inputs, at = outputs, at + depth
        return hidden

    def stage(self, features: Tensor, stage: int, inputs: int, at: int) -> Tensor:
        """ConvNextStage.forward: all but the first halve the image before their layers."""
        tape, recipe = self.tape, self.recipe
        depth, outputs = self.stages[stage]
        if stage:
            with tape.building(f"stages.{stage}"):
                norm = ChannelNorm(tape, "downsampling_layer.0", inputs, recipe.weight_dtype)
                halved = (outputs, inputs, HALVING, HALVING)
                with tape.building("downsampling"):
                    smaller = Convolution(tape, "downsampling_layer.1", recipe, halved, stride=HALVING)
            features = norm(features)
            features = smaller(features)
        given = [features]
        del features

        def drops(i: int) -> bool:
            return recipe.shape.drops_paths and at + i > 0  # that of the first of all is never dropped

        def make(i: int) -> Layer:
            return self.layer(tape, recipe, outputs, drops=drops(i))

        segments = [Segment(1, depth, False)]
        return run_blocks(tape, segments, make, given, kind=drops, alike=False, start=at, numbered_from=at)


FORWARD = ConvNext
