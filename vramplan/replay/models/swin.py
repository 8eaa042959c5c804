"""Swin, as transformers 5.23 computes it (models/swin/modeling_swin.py): attention in windows of an image, of which
every second block looks at windows that are rolled.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import ACTIVATIONS, LayerNorm, Linear, Output, Recipe, Segment
from vramplan.replay.models.resnet import in_stages
from vramplan.replay.models.vit import labelled_images
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.biased import biased_attention, permute
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.delta_rule import pad
from vramplan.replay.operators.dropped_paths import drop_path
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar
from vramplan.replay.operators.images import mean_of_image
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import cat, contiguous, narrow, to, transpose, view
from vramplan.replay.operators.windows_of_images import (
    bias_and_mask,
    every_second_along,
    mask_of_each,
    of_places,
    pad_edges,
    roll,
    rolled_mask,
)
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, DType, Shape, Tensor
from vramplan.tuples import NamedTuple
from vramplan.values.model import ModelShape


def last_edge(image_size: int, patch: int, stages: int) -> int:
    """Patches of an edge of the image in the last stage: each stage has half of them."""
    edge = -(-image_size // patch)
    for _ in range(stages - 1):
        edge = (edge + 1) // 2
    return edge


class Place(NamedTuple):
    """Where a block stands: the sizes of its stage, and what it alone has."""

    width: int
    heads: int
    edge: int  # patches of an edge of the image
    window: int  # patches of an edge of a window
    rolls: bool
    drops: bool

    @property
    def missing(self) -> int:
        """Patches that windows lack to cover an edge."""
        return -self.edge % self.window


class Bias:
    """SwinRelativePositionBias: a number of a table for each two places of a window."""

    def __init__(self, tape: Tape, recipe: Recipe, place: Place) -> None:
        self.place, places = place, (2 * place.window - 1) ** 2
        self.table = tape.parameter("relative_position_bias_table", (places, place.heads), recipe.weight_dtype)

    def __call__(self) -> Tensor:
        patches, heads = self.place.window**2, self.place.heads
        bias = of_places(self.table, patches**2)
        bias = view(bias, (patches, patches, heads))
        return view(contiguous(permute(bias, (2, 0, 1))), (1, heads, patches, patches))


class Attention:
    """SwinAttention."""

    def __init__(self, tape: Tape, recipe: Recipe, place: Place) -> None:
        width, dtype = place.width, recipe.weight_dtype
        self.recipe, self.place = recipe, place
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=recipe.shape.qkv_bias)
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=recipe.shape.qkv_bias)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=recipe.shape.qkv_bias)
        self.o_proj = Linear(tape, "o_proj", width, width, dtype, bias=True)
        with tape.building("relative_position_bias"):
            self.bias = Bias(tape, recipe, place)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        windows, length, width = hidden.shape
        heads = (windows, length, self.place.heads, width // self.place.heads)
        query = transpose(view(self.q_proj(hidden), heads), 1, 2)
        key = transpose(view(self.k_proj(hidden), heads), 1, 2)
        value = transpose(view(self.v_proj(hidden), heads), 1, 2)
        bias = self.bias()
        _mask = None if mask is None else mask_of_each(mask)
        _combined = bias if _mask is None else bias_and_mask(bias, _mask)
        output, weights = self.core(query, key, value, _combined)
        output = contiguous(view(output, (windows, length, width)))
        output = self.o_proj(output)
        return output, weights

    def core(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        recipe = self.recipe
        if recipe.attention == "eager":
            return eager_attention(query, key, value, bias, recipe.attention_dropout)
        if recipe.attention == "math":
            output = scaled_dot_product(query, key, value, "math", recipe.attention_dropout, bias)
        else:
            output = biased_attention(query, key, value, bias)
        return contiguous(transpose(output, 1, 2)), None


def eager_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """eager_attention_forward: softmax in fp32, cast back to the dtype of the query."""
    weights = mul_scalar(matmul(query, transpose(key, 2, 3)))
    weights = add(weights, bias)
    weights = to(softmax(weights, FP32), query.dtype)
    weights = dropout(weights, p)
    output = matmul(weights, value)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


class FeedForward:
    """SwinMLP."""

    def __init__(self, tape: Tape, recipe: Recipe, width: int) -> None:
        dtype, inner = recipe.weight_dtype, recipe.shape.intermediate_size * width // recipe.shape.hidden_size
        self.act = ACTIVATIONS[recipe.shape.activation]
        self.fc1 = Linear(tape, "fc1", width, inner, dtype, bias=True)
        self.fc2 = Linear(tape, "fc2", inner, width, dtype, bias=True)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.fc1(hidden)
        hidden = self.act(hidden)
        hidden = self.fc2(hidden)
        return hidden


def in_windows(image: Tensor, window: int) -> Tensor:
    """window_partition, and each window as a row of patches [B w, n n, C]."""
    batch, height, width, channels = image.shape
    parts = (batch, height // window, window, width // window, window, channels)
    windows = contiguous(transpose(view(image, parts), 2, 3))
    return view(windows, (batch * height * width // window**2, window**2, channels))


def out_of_windows(windows: Tensor, window: int, edge: int) -> Tensor:
    """window_reverse."""
    channels = windows.shape[-1]
    images = prod(windows.shape) // (edge * edge * channels)
    parts = (images, edge // window, edge // window, window, window, channels)
    image = contiguous(transpose(view(windows, parts), 2, 3))
    return view(image, (images, edge, edge, channels))


class Layer:
    """SwinLayer: pre-norm."""

    def __init__(self, tape: Tape, recipe: Recipe, place: Place) -> None:
        width, dtype = place.width, recipe.weight_dtype
        self.tape, self.place, self.p = tape, place, recipe.hidden_dropout
        self.attention = Attention(tape, recipe, place)
        self.layernorm_before = LayerNorm(tape, "layernorm_before", width, dtype)
        self.layernorm_after = LayerNorm(tape, "layernorm_after", width, dtype)
        self.mlp = FeedForward(tape, recipe, width)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        place, (batch, length, width) = self.place, hidden.shape
        edge, whole = place.edge, place.edge + place.missing
        _shortcut = hidden
        hidden = self.layernorm_before(hidden)
        hidden = view(hidden, (batch, edge, edge, width))
        hidden = pad_edges(hidden, place.missing)
        _windows = in_windows(roll(hidden) if place.rolls else hidden, place.window)
        _mask = rolled_mask(self.tape, whole, place.window, hidden.dtype) if place.rolls else None
        attended, weights = self.attention(_windows, _mask)
        attended = dropout(attended, self.p)
        image = self.rolled_back(attended, whole)
        if place.missing:
            image = contiguous(narrow(narrow(image, 1, edge), 2, edge))
        image = view(image, (batch, length, width))
        hidden = add(_shortcut, drop_path(image) if place.drops else image)
        _residual = hidden
        hidden = self.layernorm_after(hidden)
        hidden = self.mlp(hidden)
        hidden = add(dropout(hidden, self.p), _residual)
        return hidden, weights

    def rolled_back(self, windows: Tensor, edge: int) -> Tensor:
        """The image of the windows, as it was before it was rolled."""
        image = out_of_windows(windows, self.place.window, edge)
        return roll(image) if self.place.rolls else image


class Merging:
    """SwinPatchMerging: squares of four patches become one, twice as wide."""

    def __init__(self, tape: Tape, recipe: Recipe, width: int) -> None:
        self.reduction = Linear(tape, "reduction", 4 * width, 2 * width, recipe.weight_dtype, bias=False)
        self.norm = LayerNorm(tape, "norm", 4 * width, recipe.weight_dtype)

    def __call__(self, hidden: Tensor, edge: int) -> Tensor:
        batch, _, width = hidden.shape
        hidden = view(hidden, (batch, edge, edge, width))
        if edge % 2:
            hidden = pad_edges(hidden, 1)
        hidden = cat(list(self.quarters(hidden)), -1)
        half = (edge + 1) // 2
        hidden = view(hidden, (batch, half * half, 4 * width))
        hidden = self.norm(hidden)
        hidden = self.reduction(hidden)
        return hidden

    def quarters(self, image: Tensor) -> Iterator[Tensor]:
        """The first patches of all squares, those below them, those beside them, and the last ones."""
        for column in range(2):
            for row in range(2):
                yield every_second_along(every_second_along(image, 1, row), 2, column)


class Swin:
    """SwinForImageClassification, with its loss."""

    equal_blocks = False
    named_units = "its stages"
    no_checkpointing = (
        "Transformers puts checkpoints around the stages of Swin and around the blocks inside of them, which is not "
        "modelled"
    )
    adds_bias = True
    no_flash_attention = "windows have a bias of their places, which the kernel does not take"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.tape, self.recipe = tape, recipe
        shape = recipe.shape
        assert shape.channels is not None
        assert shape.patch_size is not None
        assert shape.depths is not None
        assert shape.widths is not None
        assert shape.vision_window is not None
        self.patch, self.window = shape.patch_size, shape.vision_window // shape.patch_size
        self.stages = list(zip(shape.depths, shape.widths, strict=True))
        first = shape.widths[0]
        with tape.building("embeddings"):
            patch = (first, shape.channels, self.patch, self.patch)
            self.patches = tape.parameter("projection.weight", patch, recipe.weight_dtype)
            self.patches_bias = tape.parameter("projection.bias", (first,), recipe.weight_dtype)
            self.norm = LayerNorm(tape, "norm", first, recipe.weight_dtype)

    @staticmethod
    def no_image(shape: ModelShape, image_size: int) -> str | None:
        """Images whose last stage has fewer patches than a window, for which its bias is not made."""
        assert shape.patch_size is not None
        assert shape.vision_window is not None
        left, window = last_edge(image_size, shape.patch_size, len(shape.depths or ())), shape.vision_window
        window //= shape.patch_size
        return None if left >= window else f"{image_size} pixels leave {left} patches in the last stage, of {window}"

    @staticmethod
    def lists_in_stages(shape: ModelShape) -> dict[str, int]:
        """Each stage has a list of its own."""
        return in_stages(shape, "layers.{}.blocks")

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Images in the dtype of the weights, and the class of each."""
        return labelled_images(self.recipe)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: for each block a whole number for each two places of a window."""
        return [INT64.itemsize * self.window**4] * self.recipe.shape.layers

    def __call__(self, pixel_values: Tensor, labels: Tensor) -> Output:
        recipe = self.recipe
        _sequence, _pooled = self.model(pixel_values)
        with self.tape.building("head"):
            width, classes = _pooled.shape[1], recipe.shape.classes
            classifier = Linear(self.tape, "classifier", width, classes, recipe.weight_dtype, bias=True)
        logits = classifier(_pooled)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)

    def model(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """SwinModel.forward: the last hidden state, and what is pooled of it."""
        _embedded, edge = self.embed(pixel_values)
        _last = self.encode(_embedded, edge)
        norm = LayerNorm(self.tape, "layernorm", self.stages[-1][1], self.recipe.weight_dtype)
        sequence = norm(_last)
        batch, length, width = sequence.shape
        pooled = mean_of_image(view(transpose(sequence, 1, 2), (batch, width, 1, length)))
        return sequence, pooled

    def embed(self, pixel_values: Tensor) -> tuple[Tensor, int]:
        """SwinEmbeddings.forward: the patches of an image that is filled up to a whole number of them; and its edge."""
        missing = -pixel_values.shape[-1] % self.patch
        for dim in (3, 2) if missing else ():
            pixel_values = pad(pixel_values, dim, missing)
        embeddings = conv2d(pixel_values, self.patches, self.patches_bias, stride=self.patch)
        batch, width, rows, columns = embeddings.shape
        embeddings = transpose(view(embeddings, (batch, width, rows * columns)), 1, 2)
        embeddings = self.norm(embeddings)
        return dropout(embeddings, self.recipe.embedding_dropout), rows

    def encode(self, hidden: Tensor, edge: int) -> Tensor:
        """SwinEncoder.forward, which keeps what a stage returned until the next one has."""
        _reshaped = _weights = None
        for stage in range(len(self.stages)):
            hidden, _reshaped, _weights = self.stage(hidden, stage, edge)
            edge = (edge + 1) // 2 if stage + 1 < len(self.stages) else edge
        return hidden

    def stage(self, hidden: Tensor, stage: int, edge: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """SwinStage.forward: its blocks, a copy of what they give with its channels first, and the last weights."""
        tape, recipe = self.tape, self.recipe
        depth, width = self.stages[stage]
        at = sum(depths for depths, _ in self.stages[:stage])
        heads = recipe.shape.attention_heads * 2**stage
        window = min(self.window, edge)

        def place(i: int) -> Place:
            rolls = i % 2 == 1 and edge > self.window and window > 1
            return Place(width, heads, edge, window, rolls, recipe.shape.drops_paths and at + i > 0)

        given, outputs = [hidden], []  # type: ignore[var-annotated]
        del hidden
        segments = [Segment(1, depth, False)]
        before = run_blocks(
            tape,
            segments,
            lambda i: Layer(tape, recipe, place(i)),
            given,
            kind=place,
            alike=False,
            outputs=outputs,
            start=at,
            numbered_from=at,
        )
        hidden = before
        if stage + 1 < len(self.stages):
            with tape.building(f"layers.{stage}.downsample"):
                merging = Merging(tape, recipe, width)
            hidden = merging(before, edge)
        shape = (hidden.shape[0], hidden.shape[2], hidden.shape[1])
        reshaped = tape.new("clone", shape, hidden.dtype, True) if hidden.shape[1] > 1 else hidden
        return hidden, reshaped, outputs[0][1]


FORWARD = Swin
