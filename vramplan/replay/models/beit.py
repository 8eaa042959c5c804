"""BEiT with an image classification head, as transformers 5.23 computes it (models/beit/modeling_beit.py): ViT with a
learned bias for each two places of an image.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import swin
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.llama import eager_attention
from vramplan.replay.models.modules import LayerNorm, Linear, Recipe
from vramplan.replay.models.vit import FeedForward, Vit
from vramplan.replay.observers import Outer
from vramplan.replay.operators.alternating import mean_over
from vramplan.replay.operators.biased import permute
from vramplan.replay.operators.dropped_paths import drop_path
from vramplan.replay.operators.elementwise import add, dropout, mul
from vramplan.replay.operators.images import bilinear
from vramplan.replay.operators.views import after, cat, contiguous, narrow, transpose, view
from vramplan.replay.operators.windows_of_images import of_places
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Parameter, Tensor

OF_CLASS = 3  # of the class token to the patches, of them to it, and of it to itself


class Bias:
    """BeitRelativePositionBias: a number of a table for each two places, interpolated to the patches of the image."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        assert shape.image_size is not None
        assert shape.patch_size is not None
        self.heads, self.edge = shape.attention_heads, 2 * (shape.image_size // shape.patch_size) - 1
        numbers = (self.edge**2 + OF_CLASS, self.heads)
        self.table = tape.parameter("relative_position_bias_table", numbers, recipe.weight_dtype)

    def __call__(self, edge: int) -> Tensor:
        heads, distances, tokens = self.heads, 2 * edge - 1, edge**2 + 1
        _old = narrow(self.table, 0, self.edge**2)
        _old = permute(view(_old, (1, self.edge, self.edge, heads)), (0, 3, 1, 2))
        _new = bilinear(_old, distances)
        _new = view(permute(_new, (0, 2, 3, 1)), (distances**2, heads))
        _table = cat([_new, after(self.table, 0, self.edge**2)], 0)
        bias = of_places(_table, tokens**2)
        bias = view(bias, (tokens, tokens, heads))
        return view(contiguous(permute(bias, (2, 0, 1))), (1, heads, tokens, tokens))


class Attention(swin.Attention):
    """BeitAttention, whose keys have no bias."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=True)
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=False)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=True)
        self.o_proj = Linear(tape, "o_proj", width, width, dtype, bias=True)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        batch, length, width = hidden.shape
        heads = (batch, length, recipe.shape.attention_heads, recipe.shape.head_size)
        query = transpose(view(self.q_proj(hidden), heads), 1, 2)
        key = transpose(view(self.k_proj(hidden), heads), 1, 2)
        value = transpose(view(self.v_proj(hidden), heads), 1, 2)
        if mask is None:
            output, weights = attend(recipe, query, key, value, None, causal=False, eager=eager_attention)
        else:
            output, weights = self.core(query, key, value, mask)
        output = contiguous(view(output, (batch, length, width)))
        output = self.o_proj(output)
        return output, weights


class Block:
    """BeitLayer: pre-norm, with a factor for each element of what attention and MLP give."""

    def __init__(self, tape: Tape, recipe: Recipe, edge: int, *, drops: bool) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p, self.edge, self.drops = recipe.hidden_dropout, edge, drops
        self.lambda_1 = tape.parameter("lambda_1", (width,), dtype)
        self.lambda_2 = tape.parameter("lambda_2", (width,), dtype)
        self.attention = Attention(tape, recipe)
        self.layernorm_before = LayerNorm(tape, "layernorm_before", width, dtype)
        self.layernorm_after = LayerNorm(tape, "layernorm_after", width, dtype)
        self.mlp = FeedForward(tape, recipe)
        self.bias = None
        if recipe.shape.positions == "relative":
            with tape.building("relative_position_bias"):
                self.bias = Bias(tape, recipe)

    def __call__(self, hidden: Tensor) -> Tensor:
        _bias = None if self.bias is None else self.bias(self.edge)
        residual = hidden
        hidden = self.layernorm_before(hidden)
        hidden, _weights = self.attention(hidden, _bias)
        hidden = dropout(hidden, self.p)
        hidden = mul(self.lambda_1, hidden)
        hidden = add(self.dropped(hidden), residual)
        residual = hidden
        hidden = self.layernorm_after(hidden)
        hidden = self.mlp(hidden)
        hidden = dropout(hidden, self.p)
        hidden = mul(self.lambda_2, hidden)
        hidden = add(self.dropped(hidden), residual)
        return hidden

    def dropped(self, hidden: Tensor) -> Tensor:
        """BeitDropPath, of all blocks but the first."""
        return drop_path(hidden) if self.drops else hidden


class Beit(Vit):
    """BeitForImageClassification, with its loss."""

    equal_blocks = False  # the first one drops no path
    adds_bias = True
    no_flash_attention = "scores have a bias of their places, which the kernel does not take"

    def learned_positions(self) -> None:
        """None: the biases tell where a patch is."""

    def encode(self, pixel_values: Tensor) -> Tensor:
        """BeitModel.forward, without its pooler: the mean of the patches is normalised, and not the patches."""
        tape, recipe = self.tape, self.recipe
        edge = pixel_values.shape[-1] // self.patch

        def block(i: int) -> Block:
            return Block(tape, recipe, edge, drops=recipe.shape.drops_paths and i > 0)

        _embedded = self.embed(pixel_values)
        return run_blocks(tape, recipe.segments, block, _embedded, kind=bool)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """BeitEmbeddings.forward: the class token before the patches."""
        with Outer(pixel_values, own=self.own_tensors()):
            embeddings = self.behind_tokens(self.cut(pixel_values))
            return dropout(embeddings, self.recipe.embedding_dropout)

    def own_tensors(self) -> tuple[Parameter, ...]:
        """The class token."""
        return (self.cls_token,)

    def pool(self, sequence: Tensor) -> Tensor:
        """BeitPooler.forward."""
        recipe = self.recipe
        with self.tape.building("pooler"):
            norm = LayerNorm(self.tape, "layernorm", recipe.shape.hidden_size, recipe.weight_dtype)
        return norm(mean_over(after(sequence, 1, 1), 1))


FORWARD = Beit
