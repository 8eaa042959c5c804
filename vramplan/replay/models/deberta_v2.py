"""DeBERTa v2 and v3 with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/deberta_v2/modeling_deberta_v2.py): BERT's blocks, whose scores have two terms more, of the contents with the
relative positions and the other way round.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.bert import Bert
from vramplan.replay.models.bert import Block as BertBlock
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import LOGITS, SELECTIVE_OP, LayerNorm, Linear, Output, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.observers import Outer
from vramplan.replay.operators.biased import permute
from vramplan.replay.operators.elementwise import (
    add,
    add_in_place,
    add_scalar,
    dropout,
    gelu,
    masked_fill,
    mul,
    mul_scalar,
)
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.experts import gather_last
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.relative import gather_first, repeat_samples
from vramplan.replay.operators.views import contiguous, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Parameter, Tensor
from vramplan.values.model import ModelShape


def span_of(shape: ModelShape) -> int:
    """How many relative positions to each side are told apart."""
    assert shape.position_span is not None
    return shape.position_span


def for_each(places: Tensor, rows: int) -> Tensor:
    """Places [1, S, S] as they are for each head of each sample: a view."""
    _, length, width = places.shape
    seen = places.alias((rows, length, width), (0, width, 1), None)
    seen.batched = True
    return seen


class Attention:
    """DisentangledSelfAttention."""

    def __init__(self, tape: Tape, recipe: Recipe, relative: Tensor, positions: Tensor) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe, self.relative, self.positions = recipe, relative, positions
        names = ("query_proj", "key_proj", "value_proj")
        self.query, self.key, self.value = (
            Linear(tape, f"attention.self.{name}", width, width, dtype, bias=True) for name in names
        )

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, width = hidden.shape
        query = self.heads(self.query(hidden))
        key = self.heads(self.key(hidden))
        value = self.heads(self.value(hidden))
        scores = matmul(query, mul_scalar(transpose(key, 1, 2)))
        _relative = dropout(self.relative, recipe.hidden_dropout)
        _bias = self.bias(query, key, _relative)
        scores = add(scores, _bias)
        scores = view(scores, (batch, shape.attention_heads, length, length))
        _mask = hidden.tape.like("to", mask, BOOL)
        scores = masked_fill(scores, hidden.tape.like("bitwise_not", _mask))
        probabilities = softmax(scores)
        probabilities = dropout(probabilities, recipe.attention_dropout)
        context = matmul(view(probabilities, (batch * shape.attention_heads, length, length)), value)
        context = view(context, (batch, shape.attention_heads, length, shape.head_size))
        context = contiguous(permute(context, (0, 2, 1, 3)))
        return view(context, (batch, length, width))

    def heads(self, x: Tensor) -> Tensor:
        """transpose_for_scores: a copy with the heads of all samples in one row, [B a, S, d]."""
        shape = self.recipe.shape
        batch, length, width = x.shape
        heads = view(x, (batch, length, shape.attention_heads, shape.head_size))
        return view(
            contiguous(permute(heads, (0, 2, 1, 3))), (width // shape.head_size * batch, length, shape.head_size)
        )

    def bias(self, query: Tensor, key: Tensor, relative: Tensor) -> Tensor:
        """disentangled_attention_bias: the projections of the positions are those of the contents."""
        tape, shape = query.tape, self.recipe.shape
        rows = query.shape[0]
        times = rows // shape.attention_heads
        positions = view(relative, (1, *relative.shape))
        pos_query = repeat_samples(self.heads(self.query(positions)), times)
        pos_key = repeat_samples(self.heads(self.key(positions)), times)
        c2p = matmul(query, transpose(pos_key, 1, 2))
        moved = tape.like("add", self.positions)
        c2p_places = tape.like("clamp", self.positions)
        del moved
        c2p = gather_last(c2p, for_each(c2p_places, rows))
        score = add_scalar(mul_scalar(c2p))
        negative = tape.like("neg", self.positions)
        moved = tape.like("add", self.positions)
        del negative
        p2c_places = tape.like("clamp", self.positions)
        del moved
        p2c = matmul(key, transpose(pos_query, 1, 2))
        p2c = transpose(gather_last(p2c, for_each(p2c_places, rows)), 1, 2)
        return add_in_place(score, mul_scalar(p2c))


class Block(BertBlock):
    """DebertaV2Layer: post-norm."""

    mask: Tensor
    attention: Attention
    reads = "relative"  # the argument beside the hidden state that needs a gradient

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor, relative: Tensor, positions: Tensor) -> None:
        self.own = Attention, (relative, positions)
        super().__init__(tape, recipe, mask)
        del self.own

    @property
    def relative(self) -> Tensor:
        """The vectors of the relative positions."""
        return self.attention.relative

    @relative.setter
    def relative(self, relative: Tensor) -> None:
        self.attention.relative = relative

    def self_attention(self, tape: Tape, recipe: Recipe) -> Attention:
        """That of the contents and the relative positions."""
        kind, given = self.own
        return kind(tape, recipe, *given)

    def attend(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """DebertaV2Attention.forward."""
        output = self.attention(hidden, self.mask)
        return self.attention_output(output, hidden), None


class DebertaV2(Bert):
    """DebertaV2ForMaskedLM or DebertaV2ForSequenceClassification, with its loss."""

    peaks_published = False
    selective = SELECTIVE_OP
    compiled_graphs = None  # no compiled step of it was traced
    block_returns = 2  # the attention weights, which are none, beside the hidden state
    takes_padding = True
    no_fused_attention = "its code has none"
    no_reentrant = (
        "as backward of each block goes through the norm of the relative positions, whose graph is gone after the first"
    )

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter("word_embeddings.weight", (shape.vocabulary_size, width), dtype)
            self.types: Parameter | None = None
            if shape.token_types:
                size = (shape.token_types, width)
                self.types = tape.parameter("token_type_embeddings.weight", size, dtype)
            self.embedding_norm = LayerNorm(tape, "LayerNorm", width, dtype)
        self.rel_embeddings = tape.parameter("encoder.rel_embeddings.weight", (2 * span_of(shape), width), dtype)
        self.rel_norm = LayerNorm(tape, "encoder.LayerNorm", width, dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: position ids, int64."""
        return [8 * self.recipe.shape.max_positions]

    def encode(self, input_ids: Tensor) -> Tensor:
        """DebertaV2Model.forward: the results of all blocks live until it returns."""
        tape, recipe = self.tape, self.recipe
        batch, length = input_ids.shape
        if recipe.padded:
            _seen = tape.constant((batch, length), INT64, True)
        else:
            _seen = tape.new("ones", (batch, length), FP32, True)
        _types = tape.new("zeros", (batch, length), INT64, True)
        _embedded = self.embedded(input_ids, _types, _seen)
        with Outer(_embedded, _seen, read=(self.rel_embeddings,)):
            hidden = self.encoded(_embedded, tape.new("mul", (batch, 1, length, length), _seen.dtype, True))
        for parameter in (self.rel_embeddings, self.rel_norm.weight, self.rel_norm.bias):
            assert parameter is not None
            tape.parameters.remove(parameter)  # it is used before the blocks, and registered after them
            tape.parameters.append(parameter)
        return hidden

    def encoded(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """DebertaV2Encoder.forward."""
        tape, recipe, length = self.tape, self.recipe, embedded.shape[1]
        positions = self.relative_positions(length)
        relative = self.rel_norm(self.rel_embeddings)
        segments = recipe.segments
        last = segments[-1].blocks if segments[-1].checkpointed else 1
        before_last = sum(segment.times * segment.blocks for segment in segments) - last - 1
        _all: list[Tensor] = []
        return run_blocks(
            tape,
            segments,
            lambda i: Block(tape, recipe, mask, relative, positions),
            embedded,
            kind=lambda i: i == before_last,
            handed={"mask": mask},
            kept=_all,
        )

    def encode_and_pool(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """DebertaV2Model.forward and ContextPooler.forward: the first token, projected."""
        sequence = self.encode(input_ids)
        width = self.recipe.shape.hidden_size
        with self.tape.building("pooler"):
            pooler = Linear(self.tape, "pooler.dense", width, width, self.recipe.weight_dtype, bias=True)
        _first = select(sequence, 1)
        pooled = gelu(pooler(_first))
        return sequence, pooled

    def classify(self, input_ids: Tensor, labels: Tensor) -> Output:
        """DebertaV2ForSequenceClassification.forward: classes below 0 are left out of the loss."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        _sequence, pooled = self.encode_and_pool(input_ids)
        pooled = dropout(pooled, recipe.hidden_dropout)
        with tape.building(HEAD):
            classifier = Linear(tape, "classifier", shape.hidden_size, shape.classes, dtype, bias=True)
        logits = classifier(pooled)
        if recipe.loss == LOGITS:
            return Output(None, logits)
        batch = logits.shape[0]
        known = tape.new("ge", (batch,), BOOL, True)
        _places = tape.new("nonzero", (batch, 1), INT64, True)
        del known
        _chosen = gather_first(logits, _places)
        _labels = tape.new("gather", (batch,), INT64, True)
        loss = entropy(to(_chosen, FP32), _labels, recipe)
        return Output(loss, logits)

    def relative_positions(self, length: int) -> Tensor:
        """build_relative_position, [1, S, S]: every place less every other, in buckets that grow with the distance."""
        tape = self.tape
        return tape.new("to", (1, length, length), INT64, False)

    def embedded(self, input_ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """DebertaV2Embeddings.forward: words, and zeros where others have positions."""
        tape, recipe = self.tape, self.recipe
        words = embedding(input_ids, self.word_embeddings)
        _positions = tape.like("zeros_like", words)
        embeddings = words
        if self.types is not None:
            _types = embedding(types, self.types)
            embeddings = add(embeddings, _types)
        embeddings = self.embedding_norm(embeddings)
        batch, length = mask.shape
        mask = mask.alias((batch, length, 1), None, None)
        if mask.dtype is not embeddings.dtype:
            mask = tape.new("to", mask.shape, embeddings.dtype, True)
        embeddings = mul(embeddings, mask)
        return dropout(embeddings, recipe.embedding_dropout)


FORWARD = DebertaV2
