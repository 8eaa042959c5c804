"""ViT with an image classification head, as transformers 5.23 computes it (models/vit/modeling_vit.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import Eager, attend
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.llama import eager_attention
from vramplan.replay.models.modules import ACTIVATIONS, LOGITS, SELECTIVE, LayerNorm, Linear, Output, Recipe
from vramplan.replay.observers import Outer
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add, dropout
from vramplan.replay.operators.views import cat, contiguous, expand, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Parameter, Shape, Tensor


def labelled_images(recipe: Recipe) -> tuple[tuple[str, Shape, DType], ...]:
    """Square images in the dtype of the weights, and the class of each."""
    assert recipe.image_size is not None
    assert recipe.shape.channels is not None
    image = (recipe.shape.channels, recipe.image_size, recipe.image_size)
    return ("pixel_values", image, recipe.weight_dtype), ("labels", (), INT64)


def behind_class_token(cls_token: Tensor, embeddings: Tensor) -> Tensor:
    """The class token [1, 1, H] before the patches [B, P, H] of each image.

    Source: transformers 5.23, models/vit/modeling_vit.py, ViTEmbeddings.forward.
    """
    cls_tokens = expand(cls_token, (embeddings.shape[0], 1, embeddings.shape[2]))
    if embeddings.tape.autocast is not None:
        embeddings = to(embeddings, cls_tokens.dtype)  # autocast promotes the arguments of cat
    return cat([cls_tokens, embeddings], 1)


class Attention:
    """ViTAttention."""

    eager: Eager = staticmethod(eager_attention)

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=shape.qkv_bias)
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=shape.qkv_bias)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=shape.qkv_bias)
        self.o_proj = Linear(tape, "o_proj", width, width, dtype, bias=True)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        batch, length, width = hidden.shape
        heads = (batch, length, recipe.shape.attention_heads, recipe.shape.head_size)
        query = transpose(view(self.q_proj(hidden), heads), 1, 2)
        key = transpose(view(self.k_proj(hidden), heads), 1, 2)
        value = transpose(view(self.v_proj(hidden), heads), 1, 2)
        output, weights = attend(recipe, query, key, value, None, causal=False, eager=self.eager)
        output = contiguous(view(output, (batch, length, width)))
        output = self.o_proj(output)
        return output, weights


class FeedForward:
    """ViTMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.act = ACTIVATIONS[shape.activation]
        self.fc1 = Linear(tape, "fc1", shape.hidden_size, shape.intermediate_size, dtype, bias=True)
        self.fc2 = Linear(tape, "fc2", shape.intermediate_size, shape.hidden_size, dtype, bias=True)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.fc1(hidden)
        hidden = self.act(hidden)
        hidden = self.fc2(hidden)
        return hidden


class Block:
    """ViTLayer: pre-norm."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.attention = Attention(tape, recipe)
        self.layernorm_before = LayerNorm(tape, "layernorm_before", width, dtype)
        self.layernorm_after = LayerNorm(tape, "layernorm_after", width, dtype)
        self.mlp = FeedForward(tape, recipe)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.layernorm_before(hidden)
        hidden, _weights = self.attention(hidden)
        hidden = dropout(hidden, self.p)
        hidden = add(hidden, residual)
        residual = hidden
        hidden = self.layernorm_after(hidden)
        hidden = self.mlp(hidden)
        hidden = dropout(hidden, self.p)
        hidden = add(hidden, residual)
        return hidden


class Vit:
    """ViTForImageClassification, with its loss."""

    selective = SELECTIVE
    block: type = Block

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, patch = shape.hidden_size, shape.patch_size
        assert patch is not None
        assert shape.channels is not None
        self.tape, self.recipe, self.patch = tape, recipe, patch
        with tape.building("embeddings"):
            self.cls_token = tape.parameter("cls_token", (1, 1, width), dtype)
            self.more_tokens()
            self.learned_positions()
            self.tokens_behind_positions()
            self.patches = tape.parameter("projection.weight", (width, shape.channels, patch, patch), dtype)
            self.patches_bias = tape.parameter("projection.bias", (width,), dtype)

    def more_tokens(self) -> None:
        """Tokens beside that of the class: none."""

    def learned_positions(self) -> None:
        """The positions, of the class token too."""
        recipe = self.recipe
        sizes = (1, recipe.shape.max_positions, recipe.shape.hidden_size)
        self.positions = self.tape.parameter("position_embeddings", sizes, recipe.weight_dtype)

    def tokens_behind_positions(self) -> None:
        """The same of those that are registered after the positions: none."""

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Images in the dtype of the weights, to which the model would cast them, and the class of each."""
        return labelled_images(self.recipe)

    def buffers(self) -> list[int]:
        """None."""
        return []

    def __call__(self, pixel_values: Tensor, labels: Tensor) -> Output:
        """ViTForImageClassification.forward: what is pooled, classified."""
        tape, recipe = self.tape, self.recipe
        sequence = self.encode(pixel_values)
        pooled = self.pool(sequence)
        classes, width = recipe.shape.classes, pooled.shape[-1]
        with tape.building("head"):
            classifier = Linear(tape, "classifier", width, classes, recipe.weight_dtype, bias=True)
        logits = classifier(pooled)
        if recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)

    def pool(self, sequence: Tensor) -> Tensor:
        """The class token."""
        return select(sequence, 1)

    def encode(self, pixel_values: Tensor) -> Tensor:
        """ViTModel.forward, without a pooler."""
        tape, recipe = self.tape, self.recipe
        with Outer(pixel_values, read=self.read()):
            _embedded = self.embed(pixel_values)
            hidden = run_blocks(tape, recipe.segments, lambda i: self.block(tape, recipe), _embedded)
            with tape.building("norm"):
                norm = LayerNorm(tape, "layernorm", recipe.shape.hidden_size, recipe.weight_dtype)
            sequence = norm(hidden)
        return sequence

    def read(self) -> tuple[Parameter, ...]:
        """What the model asks for itself: the dtype of the patches' weight, to which it casts the images."""
        return (self.patches,)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """ViTEmbeddings.forward: the class token before the patches, and positions."""
        with Outer(pixel_values, own=self.own_tensors()):
            embeddings = self.behind_tokens(self.cut(pixel_values))
            embeddings = add(embeddings, self.placed(pixel_values))
            embeddings = self.among_registers(embeddings)
            embeddings = dropout(embeddings, self.recipe.embedding_dropout)
        return embeddings

    def own_tensors(self) -> tuple[Parameter, ...]:
        """What the embeddings have of their own, beside the convolution."""
        return self.cls_token, self.positions

    def behind_tokens(self, patches: Tensor) -> Tensor:
        """The patches behind the class token."""
        return behind_class_token(self.cls_token, patches)

    def among_registers(self, embeddings: Tensor) -> Tensor:
        """The tokens as they are: there are no registers between them."""
        return embeddings

    def placed(self, pixel_values: Tensor) -> Tensor:
        """The learned positions."""
        return self.positions

    def cut(self, pixel_values: Tensor) -> Tensor:
        """ViTPatchEmbeddings.forward."""
        patches = conv2d(pixel_values, self.patches, self.patches_bias, stride=self.patch)
        batch, width, rows, columns = patches.shape
        return transpose(view(patches, (batch, width, rows * columns)), 1, 2)


FORWARD = Vit
