"""ViT as torchvision 0.28 computes it (models/vision_transformer.py), with a cross-entropy of its logits.

Its attention is `nn.MultiheadAttention`, which has sequences before samples: one projection makes queries, keys and
values, whose parts are copied next to each other, and what leaves it has the samples inside.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import ACTIVATIONS, LOGITS, LayerNorm, Linear, Output, Recipe
from vramplan.replay.models.vit import labelled_images
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add, dropout
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import cat, contiguous, expand, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import DType, Shape, Tensor


class MultiheadAttention:
    """`nn.MultiheadAttention` of one input, without weights returned (torch/nn/functional.py of 2.13).

    Its layers are no modules that are called: it hands their weights to a function.
    """

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.in_proj_weight = tape.parameter("self_attention.in_proj_weight", (3 * width, width), dtype)
        self.in_proj_bias = tape.parameter("self_attention.in_proj_bias", (3 * width,), dtype)
        self.out_proj_weight = tape.parameter("self_attention.out_proj.weight", (width, width), dtype)
        self.out_proj_bias = tape.parameter("self_attention.out_proj.bias", (width,), dtype)

    def __call__(self, x: Tensor) -> Tensor:
        recipe = self.recipe
        batch, length, width = x.shape
        heads, size = recipe.shape.attention_heads, recipe.shape.head_size
        query = transpose(x, 0, 1)
        packed = self.projected(query)
        parts = [select(packed, 0) for _ in range(3)]
        del packed
        apart = [transpose(view(one, (length, batch * heads, size)), 0, 1) for one in parts]
        q, k, v = (view(one, (batch, heads, length, size)) for one in apart)
        del parts, apart
        output = scaled_dot_product(q, k, v, recipe.attention, recipe.attention_dropout, causal=False)
        output = contiguous(transpose(transpose(output, 0, 2), 1, 2))
        output = view(output, (batch * length, width))
        output = linear(output, self.out_proj_weight, self.out_proj_bias)
        output = view(output, (length, batch, width))
        return transpose(output, 0, 1)

    def projected(self, query: Tensor) -> Tensor:
        """_in_projection_packed: the three parts of one product, copied so that each is contiguous."""
        length, batch, width = query.shape
        proj = linear(query, self.in_proj_weight, self.in_proj_bias)
        proj = transpose(view(proj, (1, length, batch, 3, width)), 0, 3)
        return contiguous(view(proj, (3, length, batch, width)))


class Block:
    """EncoderBlock: pre-norm."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, inner = shape.hidden_size, shape.intermediate_size
        self.p, self.act = recipe.hidden_dropout, ACTIVATIONS[shape.activation]
        self.ln_1 = LayerNorm(tape, "ln_1", width, dtype)
        self.self_attention = MultiheadAttention(tape, recipe)
        self.ln_2 = LayerNorm(tape, "ln_2", width, dtype)
        self.linear_1 = Linear(tape, "mlp.0", width, inner, dtype, bias=True)
        self.linear_2 = Linear(tape, "mlp.3", inner, width, dtype, bias=True)

    def __call__(self, inputs: Tensor) -> Tensor:
        x = self.ln_1(inputs)
        x = self.self_attention(x)
        x = dropout(x, self.p)
        x = add(x, inputs)
        y = self.ln_2(x)
        y = self.mlp(y)
        return add(x, y)

    def mlp(self, x: Tensor) -> Tensor:
        """MLPBlock, a sequence of modules."""
        x = self.linear_1(x)
        x = self.act(x)
        x = dropout(x, self.p)
        x = self.linear_2(x)
        x = dropout(x, self.p)
        return x


class VisionTransformer:
    """VisionTransformer, and the cross-entropy of the loop around it, which may put checkpoints around its blocks."""

    peaks_published = True
    has_switch = False
    no_eager_attention = "torchvision's ViT calls scaled_dot_product_attention alone"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, patch = shape.hidden_size, shape.patch_size
        assert patch is not None
        assert shape.channels is not None
        self.tape, self.recipe, self.patch = tape, recipe, patch
        with tape.building("embeddings"):
            self.class_token = tape.parameter("class_token", (1, 1, width), dtype)
            self.patches = tape.parameter("conv_proj.weight", (width, shape.channels, patch, patch), dtype)
            self.patches_bias = tape.parameter("conv_proj.bias", (width,), dtype)
            self.positions = tape.parameter("encoder.pos_embedding", (1, shape.max_positions, width), dtype)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Images in the dtype of the weights, and the class of each."""
        return labelled_images(self.recipe)

    def buffers(self) -> list[int]:
        """None."""
        return []

    def __call__(self, pixel_values: Tensor, labels: Tensor) -> Output:
        """VisionTransformer.forward: the class token, classified."""
        tape, recipe = self.tape, self.recipe
        x = self.embed(pixel_values)
        x = self.encode(x)
        x = select(x, 1)
        with tape.building("head"):
            width, classes = recipe.shape.hidden_size, recipe.shape.classes
            head = Linear(tape, "heads.head", width, classes, recipe.weight_dtype, bias=True)
        logits = head(x)
        del x
        if recipe.loss == LOGITS:
            return Output(None, logits)
        return Output(entropy(logits, labels, recipe), logits)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """The class token before the patches, which stay until both are joined."""
        patches = self.cut(pixel_values)
        class_token = expand(self.class_token, (patches.shape[0], 1, patches.shape[2]))
        if self.tape.autocast is None:
            return cat([class_token, patches], 1)
        return cat([class_token, to(patches, class_token.dtype)], 1)  # autocast promotes the arguments of cat

    def encode(self, x: Tensor) -> Tensor:
        """Encoder.forward, which holds its input and the sum until it returns, as its caller does."""
        tape, recipe = self.tape, self.recipe
        _input = add(x, self.positions)
        hidden = dropout(_input, recipe.embedding_dropout)
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe), hidden)
        with tape.building("norm"):
            norm = LayerNorm(tape, "encoder.ln", recipe.shape.hidden_size, recipe.weight_dtype)
        return norm(hidden)

    def cut(self, pixel_values: Tensor) -> Tensor:
        """VisionTransformer._process_input."""
        x = conv2d(pixel_values, self.patches, self.patches_bias, stride=self.patch)
        batch, width, rows, columns = x.shape
        return transpose(view(x, (batch, width, rows * columns)), 1, 2)


FORWARD = VisionTransformer
