"""DINOv2 with an image classification head, as transformers 5.23 computes it (models/dinov2/modeling_dinov2.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from math import isqrt

from vramplan.replay.models import bert, vit
from vramplan.replay.models.modules import LayerNorm, Linear, Recipe
from vramplan.replay.models.vit import FeedForward, Vit
from vramplan.replay.observers import Outer
from vramplan.replay.operators.alternating import mean_over
from vramplan.replay.operators.elementwise import add, mul, silu
from vramplan.replay.operators.images import bicubic
from vramplan.replay.operators.views import after, cat, narrow, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, _groups: int, p: float
) -> tuple[Tensor, Tensor]:
    """eager_attention_forward, which leaves the softmax in the type of its scores, as that of BERT does."""
    return bert.eager_attention(query, key, value, mask, p)


class Attention(vit.Attention):
    """Dinov2Attention."""

    eager = staticmethod(eager_attention)


class LayerScale:
    """Dinov2LayerScale: a factor for each element."""

    def __init__(self, tape: Tape, name: str, recipe: Recipe) -> None:
        self.lambda1 = tape.parameter(f"{name}.lambda1", (recipe.shape.hidden_size,), recipe.weight_dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        return mul(hidden, self.lambda1)


class GatedFeedForward:
    """Dinov2SwiGLUFFN."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, inside, dtype = recipe.shape.hidden_size, recipe.shape.intermediate_size, recipe.weight_dtype
        self.gate_proj = Linear(tape, "gate_proj", width, inside, dtype, bias=True)
        self.up_proj = Linear(tape, "up_proj", width, inside, dtype, bias=True)
        self.down_proj = Linear(tape, "down_proj", inside, width, dtype, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(silu(self.gate_proj(x)), self.up_proj(x)))


class Block:
    """Dinov2Layer, whose paths are never dropped."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.norm1 = LayerNorm(tape, "norm1", width, dtype)
        self.attention = Attention(tape, recipe)
        self.layer_scale1 = LayerScale(tape, "layer_scale1", recipe)
        self.norm2 = LayerNorm(tape, "norm2", width, dtype)
        self.mlp = GatedFeedForward(tape, recipe) if recipe.shape.gated_mlp else FeedForward(tape, recipe)
        self.layer_scale2 = LayerScale(tape, "layer_scale2", recipe)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.norm1(hidden)
        hidden, _weights = self.attention(hidden)
        hidden = self.layer_scale1(hidden)
        hidden = add(hidden, residual)
        residual = hidden
        hidden = self.norm2(hidden)
        hidden = self.mlp(hidden)
        hidden = self.layer_scale2(hidden)
        hidden = add(hidden, residual)
        return hidden


class Dinov2(Vit):
    """Dinov2ForImageClassification, with its loss."""

    block = Block
    block_lists = ("encoder.layer",)
    registers = 0  # tokens between that of the class and the patches
    crops_to: int | None = 224  # models/dinov2: its processor is BitImageProcessor, which crops images to 224 x 224

    def more_tokens(self) -> None:
        """What stands for patches that are masked in pre-training, of which a classification has none."""
        width, dtype = self.recipe.shape.hidden_size, self.recipe.weight_dtype
        self.mask_token = self.tape.parameter("mask_token", (1, width), dtype)

    def own_tensors(self) -> tuple[Parameter, ...]:
        """The token of masked patches too."""
        return self.cls_token, self.mask_token, self.positions

    def read(self) -> tuple[Parameter, ...]:
        """Nothing: the module of the patches asks."""
        return ()

    def cut(self, pixel_values: Tensor) -> Tensor:
        """Dinov2PatchEmbeddings.forward, which casts the images to the dtype of the weight of its convolution."""
        with Outer(pixel_values, read=(self.patches,)):
            return super().cut(pixel_values)

    def pool(self, sequence: Tensor) -> Tensor:
        """The class token, and the mean of the patches beside it."""
        class_token = select(sequence, 1)
        patches = after(sequence, 1, 1 + self.registers)
        return cat([class_token, mean_over(patches, 1)], 1)

    def placed(self, pixel_values: Tensor) -> Tensor:
        """Dinov2Embeddings.interpolate_pos_encoding, of square images: in fp32 where the patches are more or fewer."""
        positions = self.positions
        side = pixel_values.shape[-1] // self.patch
        learned = isqrt(positions.shape[1] - 1)
        if side == learned:
            return positions
        width = positions.shape[2]
        class_place = narrow(positions, 1, 1)
        places = after(positions, 1, 1)
        places = view(places, (1, learned, learned, width))
        places = transpose(transpose(places, 2, 3), 1, 2)
        places = to(bicubic(to(places, FP32), side), positions.dtype)
        places = transpose(transpose(places, 1, 2), 2, 3)
        places = view(places, (1, side * side, width))
        return cat([class_place, places], 1)


FORWARD = Dinov2
