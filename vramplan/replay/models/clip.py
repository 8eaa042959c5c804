"""CLIP, two encoders and a contrastive loss over the micro-batch, as transformers 5.23 computes it
(models/clip/modeling_clip.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import Eager
from vramplan.replay.models.gpt2 import causal_mask
from vramplan.replay.models.llama import eager_attention
from vramplan.replay.models.modules import ACTIVATIONS, LayerNorm, Linear, Output, Recipe, Segment
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.stacks import split_at
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.contrastive import at_end_of_text, div, exp, scale, similarities, spread, sum_last
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add, mul_scalar, pow_scalar
from vramplan.replay.operators.ends import cross_entropy, embedding
from vramplan.replay.operators.views import cat, contiguous, narrow, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Shape, Tensor
from vramplan.tuples import NamedTuple

# as the module has them, and so in the order in which optimizers step
PARTS = ("logit_scale", "text_encoder", "vision_encoder", "projections")


class Tower(NamedTuple):
    """The sizes of one of the two encoders."""

    dtype: DType
    layers: int
    hidden_size: int
    attention_heads: int
    intermediate_size: int
    activation: str
    attention: str
    attention_dropout: float
    causal: bool = False


def vision_tower(recipe: Recipe) -> Tower:
    """CLIPVisionConfig."""
    shape = recipe.shape
    assert shape.vision_layers is not None
    assert shape.vision_hidden_size is not None
    assert shape.vision_attention_heads is not None
    assert shape.vision_intermediate_size is not None
    assert shape.vision_activation is not None
    return Tower(
        recipe.weight_dtype,
        shape.vision_layers,
        shape.vision_hidden_size,
        shape.vision_attention_heads,
        shape.vision_intermediate_size,
        shape.vision_activation,
        recipe.attention,
        recipe.vision_attention_dropout,
    )


def text_tower(recipe: Recipe) -> Tower:
    """CLIPTextConfig."""
    shape = recipe.shape
    return Tower(
        recipe.weight_dtype,
        shape.layers,
        shape.hidden_size,
        shape.attention_heads,
        shape.intermediate_size,
        shape.activation,
        recipe.attention,
        recipe.attention_dropout,
        causal=True,
    )


class Attention:
    """CLIPAttention."""

    eager: Eager = staticmethod(eager_attention)

    def __init__(self, tape: Tape, tower: Tower) -> None:
        width, dtype = tower.hidden_size, tower.dtype
        self.tower = tower
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=True)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=True)
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=True)
        self.out_proj = Linear(tape, "out_proj", width, width, dtype, bias=True)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        tower = self.tower
        batch, length, width = hidden.shape
        heads = (batch, length, tower.attention_heads, width // tower.attention_heads)
        queries = self.q_proj(hidden)
        keys = self.k_proj(hidden)
        values = self.v_proj(hidden)
        queries = transpose(view(queries, heads), 1, 2)
        keys = transpose(view(keys, heads), 1, 2)
        values = transpose(view(values, heads), 1, 2)
        weights = None
        if tower.attention == "eager":
            output, weights = self.eager(queries, keys, values, mask, 1, tower.attention_dropout)
        else:
            output = scaled_dot_product(
                queries, keys, values, tower.attention, tower.attention_dropout, causal=tower.causal
            )
            output = contiguous(transpose(output, 1, 2))
        output = contiguous(view(output, (batch, length, width)))
        output = self.out_proj(output)
        return output, weights


class FeedForward:
    """CLIPMLP."""

    def __init__(self, tape: Tape, tower: Tower) -> None:
        self.act = ACTIVATIONS[tower.activation]
        self.fc1 = Linear(tape, "fc1", tower.hidden_size, tower.intermediate_size, tower.dtype, bias=True)
        self.fc2 = Linear(tape, "fc2", tower.intermediate_size, tower.hidden_size, tower.dtype, bias=True)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.fc1(hidden)
        hidden = self.act(hidden)
        hidden = self.fc2(hidden)
        return hidden


class Block:
    """CLIPEncoderLayer: pre-norm."""

    def __init__(self, tape: Tape, tower: Tower, mask: Tensor | None) -> None:
        self.self_attn = Attention(tape, tower)
        self.layer_norm1 = LayerNorm(tape, "layer_norm1", tower.hidden_size, tower.dtype)
        self.mlp = FeedForward(tape, tower)
        self.layer_norm2 = LayerNorm(tape, "layer_norm2", tower.hidden_size, tower.dtype)
        self.mask = mask

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.layer_norm1(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.layer_norm2(hidden)
        hidden = self.mlp(hidden)
        hidden = add(residual, hidden)
        return hidden


class VisionEmbeddings:
    """CLIPVisionEmbeddings: the class token before the patches, and positions."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype, width = recipe.shape, recipe.weight_dtype, vision_tower(recipe).hidden_size
        assert shape.patch_size is not None
        assert shape.channels is not None
        assert shape.image_size is not None
        self.tape, self.patch = tape, shape.patch_size
        patch = (width, shape.channels, shape.patch_size, shape.patch_size)
        self.positions = positions_of(shape.image_size, shape.patch_size)
        with tape.building(EMBEDDINGS):
            self.class_embedding = tape.parameter("class_embedding", (width,), dtype)
            self.patch_embedding = tape.parameter("patch_embedding.weight", patch, dtype)
            self.position_embedding = tape.parameter("position_embedding.weight", (self.positions, width), dtype)

    def __call__(self, pixel_values: Tensor) -> Tensor:
        patches = conv2d(pixel_values, self.patch_embedding, stride=self.patch)
        batch, width, rows, columns = patches.shape
        patches = self.tape.looked_up(patches, module=(self.patch_embedding,))
        patches = transpose(view(patches, (batch, width, rows * columns)), 1, 2)
        class_embeds = spread(self.class_embedding, (batch, 1, width))
        embeddings = joined(class_embeds, patches)
        ids = self.tape.constant((1, self.positions), INT64, False)
        embeddings = add(embeddings, embedding(ids, self.position_embedding, returned=False))
        return embeddings


def joined(first: Tensor, second: Tensor) -> Tensor:
    """`torch.cat` along the sequence, whose arguments autocast promotes."""
    if first.tape.autocast is not None:
        second = to(second, first.dtype)
    return cat([first, second], 1)


def positions_of(image_size: int, patch_size: int) -> int:
    """The patches of an image and its class token."""
    return (image_size // patch_size) ** 2 + 1


class VisionModel:
    """CLIPVisionModel up to the last hidden state of its blocks."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.tape, self.recipe, self.tower = tape, recipe, vision_tower(recipe)
        self.embeddings = VisionEmbeddings(tape, recipe)
        self.pre_layrnorm = LayerNorm(tape, "pre_layrnorm", self.tower.hidden_size, recipe.weight_dtype)

    def __call__(self, pixel_values: Tensor, segments: tuple[Segment, ...]) -> tuple[Tensor, Tensor]:
        """The last hidden state and what is pooled from it."""
        tape, tower = self.tape, self.tower
        hidden = self.embeddings(pixel_values)
        hidden = self.pre_layrnorm(hidden)
        last = run_blocks(tape, segments, lambda i: Block(tape, tower, None), hidden)
        pooled = select(last, 1)
        pooled = LayerNorm(tape, "post_layernorm", tower.hidden_size, tower.dtype)(pooled)
        return last, pooled

    def with_hidden_state(
        self, pixel_values: Tensor, used: tuple[Segment, ...], unused: tuple[Segment, ...]
    ) -> tuple[Tensor, Tensor, Tensor, tuple[int, int, int]]:
        """The same, and before it the hidden state after the `used` blocks.

        The last result is which nodes come after it: from the first of the `unused` blocks to the first of the pooling
        to the end.
        """
        tape, tower = self.tape, self.tower
        hidden = self.embeddings(pixel_values)
        hidden = self.pre_layrnorm(hidden)
        selected = run_blocks(tape, used, lambda i: Block(tape, tower, None), hidden)
        first = len(tape.nodes)
        start = sum(one.times * one.blocks for one in used)
        last = run_blocks(tape, unused, lambda i: Block(tape, tower, None), selected, start=start, numbered_from=start)
        pooling = len(tape.nodes)
        pooled = select(last, 1)
        pooled = LayerNorm(tape, "post_layernorm", tower.hidden_size, tower.dtype)(pooled)
        return selected, last, pooled, (first, pooling, len(tape.nodes))


class TextModel:
    """CLIPTextModel."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.tape, self.recipe, self.tower = tape, recipe, text_tower(recipe)
        with tape.building(EMBEDDINGS):
            self.token_embedding = tape.parameter("token_embedding.weight", (shape.vocabulary_size, width), dtype)
            self.position_embedding = tape.parameter("position_embedding.weight", (shape.max_positions, width), dtype)

    def __call__(self, input_ids: Tensor, segments: tuple[Segment, ...], start: int) -> tuple[Tensor, Tensor]:
        """The last hidden state and what is pooled from it."""
        tape, tower = self.tape, self.tower
        hidden = self.embed(input_ids)
        mask = causal_mask(hidden) if self.recipe.attention == "eager" else None
        _outputs = run_blocks(tape, segments, lambda i: Block(tape, tower, mask), hidden, start=start)
        last = LayerNorm(tape, "final_layer_norm", tower.hidden_size, tower.dtype)(_outputs)
        pooled = at_end_of_text(last, input_ids)
        return last, pooled

    def embed(self, input_ids: Tensor) -> Tensor:
        """CLIPTextEmbeddings.forward."""
        _words = embedding(input_ids, self.token_embedding)
        _positions = embedding(
            narrow(self.tape.constant((1, self.recipe.shape.max_positions), INT64, False), 1, input_ids.shape[1]),
            self.position_embedding,
        )
        embeddings = add(_words, _positions)
        return embeddings


def unit(vector: Tensor) -> Tensor:
    """A vector divided by its norm, _get_vector_norm."""
    return div(vector, norm(vector))


def norm(vector: Tensor) -> Tensor:
    """_get_vector_norm: operator by operator."""
    squares = pow_scalar(vector)
    total = sum_last(squares)
    return pow_scalar(total)


class LastLinear(Linear):
    """The layer of the model's last parameter, which Transformers quantizes never (get_keys_to_not_convert)."""

    quantizes = False


class Clip:
    """CLIPModel, with its loss."""

    block_lists = ("vision_model.encoder.layers", "text_model.encoder.layers")
    equal_blocks = False  # there are two stacks of them

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        assert shape.projection_size is not None
        self.tape, self.recipe = tape, recipe
        with tape.building("text_encoder"):
            self.text_model = TextModel(tape, recipe)
        with tape.building("vision_encoder"):
            self.vision_model = VisionModel(tape, recipe)
        width = self.vision_model.tower.hidden_size
        with tape.building("projections"):
            self.visual_projection = Linear(tape, "visual_projection", width, shape.projection_size, dtype, bias=False)
            self.text_projection = LastLinear(
                tape, "text_projection", shape.hidden_size, shape.projection_size, dtype, bias=False
            )
        with tape.building("logit_scale"):
            self.logit_scale = tape.parameter("logit_scale", (), dtype)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """An image in the dtype of the weights, to which the model would cast it, and a text."""
        recipe = self.recipe
        assert recipe.image_size is not None
        assert recipe.shape.channels is not None
        image = (recipe.shape.channels, recipe.image_size, recipe.image_size)
        return ("pixel_values", image, recipe.weight_dtype), ("input_ids", (recipe.sequence_length,), INT64)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: positions of the text and of the patches, int64."""
        return [8 * self.recipe.shape.max_positions, 8 * self.vision_model.embeddings.positions]

    def __call__(self, pixel_values: Tensor, input_ids: Tensor) -> Output:
        """CLIPModel.forward."""
        recipe = self.recipe
        vision, text = split_at(recipe.segments, self.vision_model.tower.layers)
        images, image_embeds = self.image_features(pixel_values, vision)
        texts, text_embeds = self.text_features(input_ids, text)
        _image_output, _text_output = image_embeds, text_embeds
        image_embeds = unit(image_embeds)
        text_embeds = unit(text_embeds)
        logits = similarities(text_embeds, transpose(image_embeds, 0, 1))
        logits = scale(logits, exp(self.logit_scale))
        loss = self.loss(logits)
        self.tape.parameters.sort(key=lambda one: PARTS.index(one.part[0]))
        return Output(loss, (logits, image_embeds, text_embeds, images, texts, _image_output, _text_output))

    def image_features(self, pixel_values: Tensor, segments: tuple[Segment, ...]) -> tuple[Tensor, Tensor]:
        """CLIPModel.get_image_features."""
        with self.tape.building("vision_encoder"):
            last, pooled = self.vision_model(pixel_values, segments)
        return last, self.visual_projection(pooled)

    def text_features(self, input_ids: Tensor, segments: tuple[Segment, ...]) -> tuple[Tensor, Tensor]:
        """CLIPModel.get_text_features."""
        with self.tape.building("text_encoder"):
            last, pooled = self.text_model(input_ids, segments, self.vision_model.tower.layers)
        return last, self.text_projection(pooled)

    def loss(self, similarity: Tensor) -> Tensor:
        """image_text_contrastive_loss: each text finds its image, each image its text."""
        caption_loss = self.contrastive_loss(similarity)
        image_loss = self.contrastive_loss(transpose(similarity, 0, 1))
        return mul_scalar(add(caption_loss, image_loss))

    def contrastive_loss(self, logits: Tensor) -> Tensor:
        """contrastive_loss."""
        return cross_entropy(logits, self.tape.new("arange", logits.shape[:1], INT64, True))


FORWARD = Clip
