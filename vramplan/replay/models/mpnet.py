"""MPNet with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/mpnet/modeling_mpnet.py): RoBERTa's embeddings and heads, and scores to which all blocks add one bias of
relative positions, a copy of it for each sample.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.bert import AddAndNorm
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import ACTIVATIONS, LayerNorm, Linear, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.roberta import Roberta, counted_places
from vramplan.replay.observers import Outer
from vramplan.replay.operators.biased import permute
from vramplan.replay.operators.elementwise import add, add_in_place, dropout, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import contiguous, expand, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Tensor

BUCKETS = 32  # relative_attention_num_buckets, the same in every released checkpoint


class Attention:
    """MPNetSelfAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        names = ("q", "k", "v", "o")
        self.q, self.k, self.v, self.o = (
            Linear(tape, f"attention.attn.{name}", width, width, dtype, bias=True) for name in names
        )

    def __call__(self, hidden: Tensor, mask: Tensor | None, bias: Tensor) -> Tensor:
        shape = self.recipe.shape
        batch, length, width = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        _q = transpose(view(self.q(hidden), heads), 1, 2)
        _k = transpose(view(self.k(hidden), heads), 1, 2)
        _v = transpose(view(self.v(hidden), heads), 1, 2)
        scores = matmul(_q, transpose(_k, 2, 3))
        scores = mul_scalar(scores)
        scores = add_in_place(scores, bias)
        if mask is not None:
            scores = add(scores, mask)
        probabilities = softmax(scores)
        probabilities = dropout(probabilities, self.recipe.attention_dropout)
        context = matmul(probabilities, _v)
        context = contiguous(permute(context, (0, 2, 1, 3)))
        context = view(context, (batch, length, width))
        return self.o(context)


class Block:
    """MPNetLayer: post-norm."""

    reads = "bias"  # the argument beside the hidden state that needs a gradient

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, bias: Tensor) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.mask, self.bias, self.p = mask, bias, recipe.hidden_dropout
        self.attention = Attention(tape, recipe)
        self.norm = LayerNorm(tape, "attention.LayerNorm", width, dtype)
        self.intermediate = Linear(tape, "intermediate.dense", width, shape.intermediate_size, dtype, bias=True)
        self.act = ACTIVATIONS[shape.activation]
        self.output = AddAndNorm(tape, recipe, "output", shape.intermediate_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        attention = self.attend(hidden)
        intermediate = self.activate(attention)
        return self.output(intermediate, attention)

    def attend(self, hidden: Tensor) -> Tensor:
        """MPNetAttention.forward."""
        _output = self.attention(hidden, self.mask, self.bias)
        return self.norm(add(dropout(_output, self.p), hidden))

    def activate(self, hidden: Tensor) -> Tensor:
        """MPNetIntermediate.forward."""
        hidden = self.intermediate(hidden)
        hidden = self.act(hidden)
        return hidden


class MPNet(Roberta):
    """MPNetForMaskedLM or MPNetForSequenceClassification, with its loss."""

    peaks_published = False
    compiled_graphs = None  # no compiled step of it was traced
    takes_padding = True
    no_fused_attention = "its code has none"
    named_units = "none"
    no_checkpointing = "Transformers' MPNet has no gradient checkpointing"  # supports_gradient_checkpointing

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.tape, self.recipe = tape, recipe
        self.lm_head = self.classifier = None
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter("word_embeddings.weight", (shape.vocabulary_size, width), dtype)
            self.position_embeddings = tape.parameter("position_embeddings.weight", (shape.max_positions, width), dtype)
            self.embedding_norm = LayerNorm(tape, "LayerNorm", width, dtype)
        table = (BUCKETS, shape.attention_heads)
        self.table = tape.parameter("encoder.relative_attention_bias.weight", table, dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: position ids, int64."""
        return [8 * self.recipe.shape.max_positions]

    def encode(self, input_ids: Tensor) -> Tensor:
        """MPNetModel.forward; the table of relative positions is used before the blocks, and registered after them."""
        _embedded = self.embed(input_ids)
        with Outer(_embedded, read=(self.table,)):
            hidden = self.encoder(_embedded)
        self.tape.parameters.remove(self.table)
        self.tape.parameters.append(self.table)
        return hidden

    def encoder(self, embedded: Tensor) -> Tensor:
        """MPNetEncoder.forward."""
        tape, recipe = self.tape, self.recipe
        mask = padded_mask(embedded, causal=False, additive=True) if recipe.padded else None
        bias = self.position_bias(embedded)
        last = recipe.shape.layers - 2  # whose backward first has the sum of two gradients of the bias

        def make(i: int) -> Any:
            return Block(tape, recipe, mask, bias)

        return run_blocks(tape, recipe.segments, make, embedded, kind=lambda i: i == last)

    def position_bias(self, embedded: Tensor) -> Tensor:
        """MPNetEncoder.compute_position_bias: [B, a, S, S], a number of the table for each pair of positions."""
        tape = self.tape
        batch, length, _ = embedded.shape
        heads = self.recipe.shape.attention_heads
        _context = tape.new("arange", (length, 1), INT64, False)
        _memory = tape.new("arange", (1, length), INT64, False)
        _relative = tape.new("sub", (length, length), INT64, False)
        _bucket = buckets(_relative)
        values = embedding(_bucket, self.table)
        values = view(permute(values, (2, 0, 1)), (1, heads, length, length))
        return contiguous(expand(values, (batch, heads, length, length)))

    def embed(self, input_ids: Tensor) -> Tensor:
        """MPNetEmbeddings.forward: words and positions, both looked up for each sample."""
        _position_ids = counted_places(input_ids, after_past=False)
        _words = embedding(input_ids, self.word_embeddings)
        _positions = embedding(_position_ids, self.position_embeddings)
        embeddings = add(_words, _positions)
        embeddings = self.embedding_norm(embeddings)
        embeddings = dropout(embeddings, self.recipe.embedding_dropout)
        return embeddings


def buckets(relative: Tensor) -> Tensor:
    """MPNetEncoder.relative_position_bucket: whole numbers [S, S], operator by operator."""
    tape, shape = relative.tape, relative.shape

    def number(operator: str, dtype: DType = INT64) -> Tensor:
        return tape.new(operator, shape, dtype, False)

    negative = number("neg")
    smaller = number("lt", BOOL)
    found = to(smaller, INT64)
    found = mul_scalar(found)
    del smaller
    found = number("add")
    _distance = number("abs")
    del negative
    _is_small = number("lt", BOOL)
    large = to(_distance, FP32)
    large = mul_scalar(large)
    large = number("log", FP32)
    large = mul_scalar(large)
    large = mul_scalar(large)
    large = to(large, INT64)
    large = number("add")
    full = number("full_like")
    large = number("minimum")
    del full
    chosen = number("where")
    del chosen  # which is added in place
    return found


FORWARD = MPNet
