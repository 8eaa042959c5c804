"""ResNet-18 to -152, as transformers 5.23 computes them (models/resnet/modeling_resnet.py)."""

from __future__ import annotations

from vramplan.models.modules import ACTIVATIONS, FP32_LOGITS, Linear, Output, Recipe, as_is
from vramplan.spec import ModelShape
from vramplan.tape.convolution import conv2d
from vramplan.tape.images import average_pool, batch_norm, max_pool
from vramplan.tape.operators import add_in_place, cross_entropy
from vramplan.tape.tape import Tape
from vramplan.tape.tensors import FP32, INT64, Tensor
from vramplan.tape.views import to, view

REDUCTION = 4  # ResNetBottleNeckLayer: how much narrower its middle is


class Normalisation:
    """`nn.BatchNorm2d`."""

    def __init__(self, tape: Tape, recipe: Recipe, channels: int) -> None:
        self.weight = tape.parameter("normalization.weight", (channels,), recipe.weight_dtype)
        self.bias = tape.parameter("normalization.bias", (channels,), recipe.weight_dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return batch_norm(x, self.weight, self.bias)


class ConvLayer:
    """ResNetConvLayer, whose activation is relu unless it is told otherwise; without any, ResNetShortCut too."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        *,
        activation: str | None = "relu",
    ) -> None:
        self.weight = tape.parameter("convolution.weight", (outputs, inputs, kernel, kernel), recipe.weight_dtype)
        self.stride, self.padding = stride, kernel // 2
        self.normalization = Normalisation(tape, recipe, outputs)
        self.activation = as_is if activation is None else ACTIVATIONS[activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = conv2d(hidden, self.weight, stride=self.stride, padding=self.padding)
        hidden = self.normalization(hidden)
        hidden = self.activation(hidden)
        return hidden


class Layer:
    """ResNetBasicLayer or ResNetBottleNeckLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, inputs: int, outputs: int, stride: int) -> None:
        shape = recipe.shape
        if shape.bottleneck:
            inner = outputs // REDUCTION
            first, second = (stride, 1) if shape.downsample_in_bottleneck else (1, stride)
            self.layers = [
                ConvLayer(tape, recipe, inputs, inner, 1, first),
                ConvLayer(tape, recipe, inner, inner, 3, second),
                ConvLayer(tape, recipe, inner, outputs, 1, 1, activation=None),
            ]
        else:
            self.layers = [
                ConvLayer(tape, recipe, inputs, outputs, 3, stride),
                ConvLayer(tape, recipe, outputs, outputs, 3, 1, activation=None),
            ]
        shortcut = inputs != outputs or stride != 1
        self.shortcut = ConvLayer(tape, recipe, inputs, outputs, 1, stride, activation=None) if shortcut else as_is
        self.activation = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        for layer in self.layers:
            hidden = layer(hidden)
        residual = self.shortcut(residual)
        hidden = add_in_place(hidden, residual)
        hidden = self.activation(hidden)
        return hidden


def normalised_channels(shape: ModelShape) -> list[int]:
    """The channels of every normalisation, in the order of the modules."""
    found, inputs = [shape.embedding_size or 0], shape.embedding_size
    for stage, (depth, outputs) in enumerate(zip(shape.depths, shape.widths, strict=True)):
        if inputs != outputs or stage or shape.downsample_in_first_stage:
            found.append(outputs)  # of the shortcut
        inner = [outputs // REDUCTION] * 2 if shape.bottleneck else [outputs]
        found += [*inner, outputs] * depth
        inputs = outputs
    return found


class ResNet:
    """ResNetForImageClassification, with its loss."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.tape, self.recipe = tape, recipe

    def inputs(self):
        """Images in the dtype of the weights, and a class for each."""
        recipe = self.recipe
        size = recipe.image_size or 0
        return (("pixel_values", (recipe.shape.channels, size, size), recipe.weight_dtype), ("labels", (), INT64))

    def buffers(self) -> list[int]:
        """Bytes of the buffers: of each normalisation its running mean and variance, and an int64 count of batches."""
        width = self.recipe.weight_dtype.itemsize
        sizes = []
        for channels in normalised_channels(self.recipe.shape):
            sizes += [width * channels, width * channels, INT64.itemsize]
        return sizes

    def __call__(self, pixel_values: Tensor, labels: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _hidden = self.encode(self.embed(pixel_values))
        _pooled = average_pool(_hidden)
        flat = view(_pooled, _pooled.shape[:2])
        logits = Linear(tape, "classifier.1", shape.widths[-1], shape.classes, recipe.weight_dtype, bias=True)(flat)
        loss = cross_entropy(to(logits, FP32) if recipe.loss == FP32_LOGITS else logits, labels)
        return Output(loss, logits)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """ResNetEmbeddings.forward: one wide convolution, and pooling."""
        shape = self.recipe.shape
        with self.tape.building("embedder"):
            embedder = ConvLayer(self.tape, self.recipe, shape.channels, shape.embedding_size or 0, 7, 2, activation=shape.activation)
        embedding = embedder(pixel_values)
        embedding = max_pool(embedding, 3, 2, 1)
        return embedding

    def encode(self, hidden: Tensor) -> Tensor:
        """ResNetEncoder.forward: in each stage the first layer widens, and halves the image."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        inputs, at = shape.embedding_size or 0, 0
        for stage, (depth, outputs) in enumerate(zip(shape.depths, shape.widths, strict=True)):
            stride = 2 if stage or shape.downsample_in_first_stage else 1
            for _ in tape.repeat(1, start=at):
                hidden = Layer(tape, recipe, inputs, outputs, stride)(hidden)
            for _ in tape.repeat(depth - 1, start=at + 1):
                hidden = Layer(tape, recipe, outputs, outputs, 1)(hidden)
            inputs, at = outputs, at + depth
        return hidden


FORWARD = ResNet
