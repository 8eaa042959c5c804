"""ResNet-18 to -152, as transformers 5.23 computes them (models/resnet/modeling_resnet.py)."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import ACTIVATIONS, Linear, Output, Recipe, Segment, as_is
from vramplan.replay.models.part_names import NORMS
from vramplan.replay.observers import Trained
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add_in_place
from vramplan.replay.operators.images import average_pool, batch_norm, max_pool
from vramplan.replay.operators.views import view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Shape, Tensor
from vramplan.values.model import ModelShape

Module = Callable[[Tensor], Tensor]

REDUCTION = 4  # ResNetBottleNeckLayer: how much narrower its middle is


class Normalisation:
    """`nn.BatchNorm2d`."""

    def __init__(self, tape: Tape, recipe: Recipe, channels: int) -> None:
        with tape.building(NORMS):
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
        self.adapter = tape.role(Trained).convolution(tape, self, "convolution")
        self.normalization = Normalisation(tape, recipe, outputs)
        self.activation = as_is if activation is None else ACTIVATIONS[activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.base(hidden) if self.adapter is None else self.adapter(self, hidden)
        hidden = self.normalization(hidden)
        hidden = self.activation(hidden)
        return hidden

    def base(self, hidden: Tensor) -> Tensor:
        """The convolution as it is in the model."""
        return conv2d(hidden, self.weight, stride=self.stride, padding=self.padding)


class Layer:
    """ResNetBasicLayer or ResNetBottleNeckLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, inputs: int, outputs: int, stride: int) -> None:
        shape = recipe.shape
        if shape.bottleneck:
            inner = outputs // REDUCTION
            first, second = (stride, 1) if shape.downsample_in_bottleneck else (1, stride)
            self.layer_0 = ConvLayer(tape, recipe, inputs, inner, 1, first)
            self.layer_1 = ConvLayer(tape, recipe, inner, inner, 3, second)
            self.layer_2: Module = ConvLayer(tape, recipe, inner, outputs, 1, 1, activation=None)
        else:
            self.layer_0 = ConvLayer(tape, recipe, inputs, outputs, 3, stride)
            self.layer_1 = ConvLayer(tape, recipe, outputs, outputs, 3, 1, activation=None)
            self.layer_2 = as_is
        self.shortcut: Module = as_is
        if inputs != outputs or stride != 1:
            self.shortcut = ConvLayer(tape, recipe, inputs, outputs, 1, stride, activation=None)
        self.activation = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.layer_0(hidden)
        hidden = self.layer_1(hidden)
        hidden = self.layer_2(hidden)
        residual = self.shortcut(residual)
        hidden = add_in_place(hidden, residual)
        hidden = self.activation(hidden)
        return hidden


def in_stages(shape: ModelShape, name: str) -> dict[str, int]:
    """The list of each stage, and the number of its first block."""
    depths = shape.depths or ()
    return {name.format(i): sum(depths[:i]) for i in range(len(depths))}


class ResNet:
    """ResNetForImageClassification, with its loss."""

    no_all_linear = "whose only linear layer is its head"
    only_lora = True
    batch_normalised = True
    no_checkpointing = "Transformers' ResNet has no gradient checkpointing"  # supports_gradient_checkpointing is False
    equal_blocks = False
    named_units = "its convolutions"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.tape, self.recipe = tape, recipe
        shape = recipe.shape
        assert shape.channels is not None
        assert shape.embedding_size is not None
        assert shape.depths is not None
        assert shape.widths is not None
        self.channels, self.stem = shape.channels, shape.embedding_size
        self.stages = list(zip(shape.depths, shape.widths, strict=True))

    @staticmethod
    def lists_in_stages(shape: ModelShape) -> dict[str, int]:
        """Each stage has a list of its own."""
        return in_stages(shape, "stages.{}.layers")

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Images in the dtype of the weights, and a class for each."""
        recipe = self.recipe
        size = recipe.image_size or 0
        return (("pixel_values", (self.channels, size, size), recipe.weight_dtype), ("labels", (), INT64))

    def buffers(self) -> list[int]:
        """Bytes of the buffers: of each normalisation its running mean and variance, and an int64 count of batches."""
        width = self.recipe.weight_dtype.itemsize
        sizes = []
        for channels in self.normalised():
            sizes += [width * channels, width * channels, INT64.itemsize]
        return sizes

    def normalised(self) -> list[int]:
        """The channels of every normalisation."""
        shape = self.recipe.shape
        found, inputs = [self.stem], self.stem
        for stage, (depth, outputs) in enumerate(self.stages):
            if inputs != outputs or stage or shape.downsample_in_first_stage:
                found.append(outputs)  # of the shortcut
            inner = [outputs // REDUCTION] * 2 if shape.bottleneck else [outputs]
            found += [*inner, outputs] * depth
            inputs = outputs
        return found

    def __call__(self, pixel_values: Tensor, labels: Tensor) -> Output:
        recipe = self.recipe
        _hidden = self.encode(self.embed(pixel_values))
        _pooled = average_pool(_hidden)
        flat = view(_pooled, _pooled.shape[:2])
        with self.tape.building("head"):
            width, classes = flat.shape[1], recipe.shape.classes
            classifier = Linear(self.tape, "classifier", width, classes, recipe.weight_dtype, bias=True)
        logits = classifier(flat)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """ResNetEmbeddings.forward: one wide convolution, and pooling."""
        tape, recipe = self.tape, self.recipe
        with tape.building("embeddings"):
            embedder = ConvLayer(tape, recipe, self.channels, self.stem, 7, 2, activation=recipe.shape.activation)
        embedding = embedder(pixel_values)
        embedding = max_pool(embedding, 3, 2, 1)
        return embedding

    def encode(self, hidden: Tensor) -> Tensor:
        """ResNetEncoder.forward: in each stage the first layer widens, and halves the image."""
        tape, recipe = self.tape, self.recipe
        inputs, at = self.stem, 0
        for stage, (depth, outputs) in enumerate(self.stages):
            stride = 2 if stage or recipe.shape.downsample_in_first_stage else 1
            make = self.layers(inputs, outputs, stride)
            hidden = run_blocks(tape, [Segment(1, 1, False)], make, hidden, start=at, numbered_from=at)
            make = self.layers(outputs, outputs, 1)
            first = at + 1
            hidden = run_blocks(tape, [Segment(1, depth - 1, False)], make, hidden, start=first, numbered_from=first)
            inputs, at = outputs, at + depth
        return hidden

    def layers(self, inputs: int, outputs: int, stride: int) -> Callable[[int], Layer]:
        """What builds the layers of one kind."""
        return lambda i: Layer(self.tape, self.recipe, inputs, outputs, stride)


FORWARD = ResNet
