"""GPT as nanoGPT computes it (karpathy/nanoGPT, model.py), with its loss.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import LayerNorm, Linear, Output, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, dropout, gelu
from vramplan.replay.operators.ends import cross_entropy, embedding
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import contiguous, split, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, Tensor
from vramplan.values.model import ModelShape


class Attention:
    """CausalSelfAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.c_attn = Linear(tape, "attn.c_attn", width, 3 * width, dtype, bias=True)
        self.c_proj = Linear(tape, "attn.c_proj", width, width, dtype, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        recipe = self.recipe
        batch, length, width = x.shape
        heads = (batch, length, recipe.shape.attention_heads, recipe.shape.head_size)
        q, k, v = split(self.c_attn(x), width)
        k = transpose(view(k, heads), 1, 2)
        q = transpose(view(q, heads), 1, 2)
        v = transpose(view(v, heads), 1, 2)
        y = scaled_dot_product(q, k, v, recipe.attention, recipe.hidden_dropout, None)
        y = view(contiguous(transpose(y, 1, 2)), (batch, length, width))
        y = dropout(self.c_proj(y), recipe.hidden_dropout)
        return y


class MLP:
    """MLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.c_fc = Linear(tape, "mlp.c_fc", width, 4 * width, dtype, bias=True)
        self.c_proj = Linear(tape, "mlp.c_proj", 4 * width, width, dtype, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        x = gelu(x)
        x = self.c_proj(x)
        x = dropout(x, self.p)
        return x


class Block:
    """Block."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.ln_1 = LayerNorm(tape, "ln_1", width, dtype)
        self.attn = Attention(tape, recipe)
        self.ln_2 = LayerNorm(tape, "ln_2", width, dtype)
        self.mlp = MLP(tape, recipe)

    def __call__(self, x: Tensor) -> Tensor:
        x = add(x, self.attn(self.ln_1(x)))
        x = add(x, self.mlp(self.ln_2(x)))
        return x


class GPT:
    """GPT: one dropout for all, and a head that is tied to the embedding."""

    block_lists = ("h",)
    compiled_graphs = 1
    no_checkpointing = "nanoGPT checkpoints nothing"
    no_eager_attention = "nanoGPT calls scaled_dot_product_attention alone"

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Whether it is a GPT-2 with its usual widths."""
        plain = shape.task == "lm" and shape.tied_embeddings and shape.intermediate_size == 4 * shape.hidden_size
        return plain and shape.attention_heads * shape.head_size == shape.hidden_size

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.wte = tape.parameter("wte", (shape.vocabulary_size, shape.hidden_size), dtype)
            self.wpe = tape.parameter("wpe", (shape.max_positions, shape.hidden_size), dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers of the module."""
        return []

    def __call__(self, idx: Tensor, targets: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        batch, length = idx.shape
        _pos = tape.new("arange", (length,), INT64, False)
        _tok_emb = embedding(idx, self.wte)
        _pos_emb = embedding(_pos, self.wpe)
        x = dropout(add(_tok_emb, _pos_emb), recipe.embedding_dropout)
        state = [x]
        del x
        x = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe), state)
        x = LayerNorm(tape, "ln_f", recipe.shape.hidden_size, recipe.weight_dtype)(x)
        logits = linear(x, self.wte)
        rows = view(logits, (batch * length, recipe.shape.vocabulary_size))
        loss = cross_entropy(rows, view(targets, (batch * length,)))
        return Output(loss, logits)


FORWARD = GPT
