"""InternVL, whose images are cut into tiles and whose text is a Llama, a Qwen2 or a Qwen3, as transformers 5.23
computes it (models/internvl/modeling_internvl.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from math import isqrt

from vramplan.replay.models import clip, rope
from vramplan.replay.models.among_text import decoded, output_with_images, vision_width
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.clip import FeedForward, Tower, vision_tower
from vramplan.replay.models.dinov2 import eager_attention
from vramplan.replay.models.llama import Block as TextBlock
from vramplan.replay.models.modules import SELECTIVE_OP, LayerNorm, Linear, Output, Recipe, Segment
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.stacks import split_at
from vramplan.replay.models.vit import behind_class_token
from vramplan.replay.observers import Outer
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add, gelu, mul
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.multimodal import masked_scatter, tokens_of_images
from vramplan.replay.operators.views import after, contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Shape, Tensor

# as the module has them, and so in the order in which optimizers step


class Attention(clip.Attention):
    """InternVLVisionAttention."""

    eager = staticmethod(eager_attention)

    def __init__(self, tape: Tape, tower: Tower, *, bias: bool) -> None:
        width, dtype = tower.hidden_size, tower.dtype
        self.tower = tower
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=bias)
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=bias)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=bias)
        self.out_proj = Linear(tape, "projection_layer", width, width, dtype, bias=True)


class Block:
    """InternVLVisionLayer: a factor for each element of what attention and MLP give."""

    def __init__(self, tape: Tape, tower: Tower, *, bias: bool) -> None:
        width, dtype = tower.hidden_size, tower.dtype
        self.lambda_1 = tape.parameter("lambda_1", (width,), dtype)
        self.lambda_2 = tape.parameter("lambda_2", (width,), dtype)
        self.attention = Attention(tape, tower, bias=bias)
        self.mlp = FeedForward(tape, tower)
        self.layernorm_before = LayerNorm(tape, "layernorm_before", width, dtype)
        self.layernorm_after = LayerNorm(tape, "layernorm_after", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        _attended, _weights = self.attention(self.layernorm_before(hidden), None)
        _attended = mul(self.lambda_1, _attended)
        hidden = add(_attended, hidden)
        output = self.layernorm_after(hidden)
        output = self.mlp(output)
        output = mul(self.lambda_2, output)
        return add(output, hidden)


class VisionModel:
    """InternVLVisionModel, which has no norm after its blocks."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        assert shape.patch_size is not None
        assert shape.channels is not None
        self.tape, self.recipe, self.tower, self.patch = tape, recipe, vision_tower(recipe), shape.patch_size
        width = self.tower.hidden_size
        with tape.building(EMBEDDINGS):
            self.cls_token = tape.parameter("cls_token", (1, 1, width), dtype)
            self.positions = tape.parameter("position_embeddings", (1, shape.image_patches + 1, width), dtype)
            patch = (width, shape.channels, self.patch, self.patch)
            self.patches = tape.parameter("patch_embeddings.projection.weight", patch, dtype)
            self.patches_bias = tape.parameter("patch_embeddings.projection.bias", (width,), dtype)

    def __call__(self, pixel_values: Tensor, segments: tuple[Segment, ...]) -> Tensor:
        tape, tower, bias = self.tape, self.tower, self.recipe.shape.vision_qkv_bias is True
        _embedded = self.embed(pixel_values)
        return run_blocks(tape, segments, lambda i: Block(tape, tower, bias=bias), _embedded)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """InternVLVisionEmbeddings.forward: the class token before the patches, and positions."""
        with Outer(pixel_values, own=(self.cls_token, self.positions)):
            return add(behind_class_token(self.cls_token, self.cut(pixel_values)), self.positions)

    def cut(self, pixel_values: Tensor) -> Tensor:
        """InternVLVisionPatchEmbeddings.forward, of which Transformers asks a gradient for checkpoints."""
        patches = conv2d(pixel_values, self.patches, self.patches_bias, stride=self.patch)
        batch, width, rows, columns = patches.shape
        embeddings = transpose(view(patches, (batch, width, rows * columns)), 1, 2)
        return self.tape.looked_up(embeddings, module=(self.patches,))  # which it reads itself


class Projector:
    """InternVLMultiModalProjector."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        merge, outputs, dtype = recipe.shape.vision_merge, recipe.shape.hidden_size, recipe.weight_dtype
        assert merge is not None
        inputs = vision_width(recipe) * merge**2
        self.layer_norm = LayerNorm(tape, "layer_norm", inputs, dtype)
        self.linear_1 = Linear(tape, "linear_1", inputs, outputs, dtype, bias=True)
        self.linear_2 = Linear(tape, "linear_2", outputs, outputs, dtype, bias=True)

    def __call__(self, features: Tensor) -> Tensor:
        hidden = self.layer_norm(features)
        hidden = self.linear_1(hidden)
        hidden = gelu(hidden)
        hidden = self.linear_2(hidden)
        return hidden


def squares(features: Tensor, merge: int) -> Tensor:
    """InternVLModel.pixel_shuffle: a square of patches becomes one row, first of each line and then of each column."""
    batch, patches, width = features.shape
    edge = isqrt(patches)
    features = view(features, (batch, edge, edge, width))
    features = view(features, (batch, edge, edge // merge, width * merge))
    features = contiguous(transpose(features, 1, 2))
    features = view(features, (batch, edge // merge, edge // merge, width * merge**2))
    features = contiguous(transpose(features, 1, 2))
    return view(features, (batch, patches // merge**2, width * merge**2))


class InternVL:
    """InternVLForConditionalGeneration, with its loss."""

    vision: type = VisionModel
    connector: type = Projector
    block_lists = ("vision_tower.encoder.layer", "language_model.layers")
    equal_blocks = False  # there are two stacks of them
    takes_padding = True
    selective = SELECTIVE_OP
    head_losses = ("half-logits", "chunked:N", "fused")
    hands_groups_on = True  # of the text: `use_gqa_in_sdpa`

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building("vision_encoder"):
            self.vision_tower = self.vision(tape, recipe)
        with tape.building("projector"):
            self.projector = self.connector(tape, recipe)
        with tape.building("language_model"), tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter("embed_tokens.weight", (shape.vocabulary_size, shape.hidden_size), dtype)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids with a placeholder for each square of patches, labels, and the tiles of an image in the dtype of
        the weights; with padding a mask."""
        recipe = self.recipe
        shape, tokens = recipe.shape, (recipe.sequence_length,)
        assert shape.channels is not None
        assert shape.vision_tiles is not None
        assert recipe.image_size is not None
        tiles = (shape.vision_tiles, shape.channels, recipe.image_size, recipe.image_size)
        given = (
            ("input_ids", tokens, INT64),
            ("labels", tokens, INT64),
            ("pixel_values", tiles, recipe.weight_dtype),
        )
        return (*given, ("attention_mask", tokens, INT64)) if recipe.padded else given

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies of the text, kept twice, in fp32."""
        return [4 * (self.recipe.shape.head_size // 2)] * 2

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.recipe.shape.head_size)

    def __call__(self, input_ids: Tensor, labels: Tensor, pixel_values: Tensor, given: Tensor | None = None) -> Output:
        """InternVLForConditionalGeneration.forward."""
        hidden, _images = self.model(input_ids, pixel_values)
        return output_with_images(self.tape, self.recipe, hidden, _images, labels, self.embed_tokens)

    def model(self, input_ids: Tensor, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """InternVLModel.forward: the rows of the tiles take the places of their tokens."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        assert shape.vision_merge is not None
        vision, text = split_at(recipe.segments, shape.stacks[0])
        embeds = embedding(input_ids, self.embed_tokens)
        batch, tiles, *image = pixel_values.shape
        with tape.building("vision_encoder"):
            _last = self.vision_tower(view(pixel_values, (batch * tiles, *image)), vision)
        _projected = self.projector(squares(after(_last, 1, 1), shape.vision_merge))
        images = to(_projected, embeds.dtype)
        _mask = tokens_of_images(input_ids)
        embeds = masked_scatter(embeds, _mask, images)
        with tape.building("language_model"):
            return decoded(tape, recipe, embeds, text, TextBlock), images


FORWARD = InternVL
