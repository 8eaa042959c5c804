"""BERT with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/bert/modeling_bert.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    LOGITS,
    SELECTIVE,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    decoder_of,
    times_head,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.recomputed import recomputable
from vramplan.replay.observers import Outer
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar, tanh
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import contiguous, select, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import INT64, Tensor


def eager_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> tuple[Tensor, Tensor]:
    """eager_attention_forward; no mask without padding."""
    weights = mul_scalar(matmul(query, transpose(key, 2, 3)))
    if mask is not None:
        weights = add(weights, mask)
    weights = softmax(weights)
    weights = dropout(weights, p)
    output = matmul(weights, value)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


class SelfAttention:
    """BertSelfAttention."""

    names = "attention.self.query", "attention.self.key", "attention.self.value"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.query, self.key, self.value = (Linear(tape, name, width, width, dtype, bias=True) for name in self.names)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, width = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        query = transpose(view(self.query(hidden), heads), 1, 2)
        key = transpose(view(self.key(hidden), heads), 1, 2)
        value = transpose(view(self.value(hidden), heads), 1, 2)
        output, weights = recomputable(recipe, self.core, query, key, value, mask)
        output = contiguous(view(output, (batch, length, width)))
        output = self.projected(output)
        return output, weights

    def projected(self, output: Tensor) -> Tensor:
        """The output as it is: BertSelfOutput has the projection."""
        return output

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        recipe = self.recipe
        if recipe.attention == "eager":
            return eager_attention(query, key, value, mask, recipe.attention_dropout)
        p = recipe.attention_dropout
        output = scaled_dot_product(query, key, value, recipe.attention, p, mask, causal=False)
        return contiguous(transpose(output, 1, 2)), None


class AddAndNorm:
    """BertSelfOutput and BertOutput: project, drop, add the residual, normalise."""

    def __init__(self, tape: Tape, recipe: Recipe, name: str, inputs: int) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.dense = Linear(tape, f"{name}.dense", inputs, width, dtype, bias=True)
        self.norm = LayerNorm(tape, f"{name}.LayerNorm", width, dtype)

    def __call__(self, hidden: Tensor, residual: Tensor) -> Tensor:
        hidden = self.dense(hidden)
        hidden = dropout(hidden, self.p)
        hidden = self.norm(add(hidden, residual))
        return hidden


class Block:
    """BertLayer: post-norm."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None) -> None:
        shape = recipe.shape
        self.mask = mask
        self.attention = self.self_attention(tape, recipe)
        self.attention_output = AddAndNorm(tape, recipe, "attention.output", shape.hidden_size)
        self.intermediate = Linear(
            tape, "intermediate.dense", shape.hidden_size, shape.intermediate_size, recipe.weight_dtype, bias=True
        )
        self.act = ACTIVATIONS[shape.activation]
        self.output = AddAndNorm(tape, recipe, "output", shape.intermediate_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        attention, _weights = self.attend(hidden)
        return self.feed_forward(attention)

    def self_attention(self, tape: Tape, recipe: Recipe) -> Any:
        """The attention of the block, without the projection of its output."""
        return SelfAttention(tape, recipe)

    def attend(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """BertAttention.forward."""
        output, weights = self.attention(hidden, self.mask)
        output = self.attention_output(output, hidden)
        return output, weights

    def feed_forward(self, attention: Tensor) -> Tensor:
        """BertLayer.feed_forward_chunk."""
        intermediate = self.activate(attention)
        output = self.output(intermediate, attention)
        return output

    def activate(self, hidden: Tensor) -> Tensor:
        """BertIntermediate.forward."""
        hidden = self.intermediate(hidden)
        hidden = self.act(hidden)
        return hidden


class Bert:
    """BertForMaskedLM or BertForSequenceClassification, with its loss."""

    peaks_published = True
    both_sides = True
    block_lists = ("layer",)
    selective: tuple[str, ...] = SELECTIVE
    compiled_graphs: int | None = 1
    takes_padding = True
    takes_virtual_tokens = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter("word_embeddings.weight", (shape.vocabulary_size, width), dtype)
            self.position_embeddings = tape.parameter("position_embeddings.weight", (shape.max_positions, width), dtype)
            self.token_type_embeddings = tape.parameter(
                "token_type_embeddings.weight", (shape.token_types, width), dtype
            )
            self.embedding_norm = LayerNorm(tape, "LayerNorm", width, dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: position ids and token type ids, int64."""
        return [8 * self.recipe.shape.max_positions] * 2

    def __call__(self, input_ids: Tensor, labels: Tensor, _attention_mask: Tensor | None = None) -> Output:
        return self.classify(input_ids, labels) if self.recipe.shape.task == "cls" else self.fill(input_ids, labels)

    def fill(self, input_ids: Tensor, labels: Tensor) -> Output:
        """BertForMaskedLM.forward."""
        shape = self.recipe.shape
        batch, length = input_ids.shape
        _sequence = self.encode(input_ids)
        scores = self.predict(_sequence)
        if self.recipe.loss == LOGITS:
            return Output(None, scores)
        rows = view(scores, (batch * length, shape.vocabulary_size))
        loss = entropy(rows, view(labels, (batch * length,)), self.recipe)
        return Output(loss, scores)

    def predict(self, hidden: Tensor) -> Tensor:
        """BertLMPredictionHead.forward: the decoder is tied to the word embeddings, its bias to the head's own."""
        tape, shape, dtype = self.tape, self.recipe.shape, self.recipe.weight_dtype
        with tape.building(HEAD):
            bias = tape.parameter("cls.predictions.bias", (shape.vocabulary_size,), dtype)
        with Outer(hidden, own=(bias,)):
            transformed = self.transform(hidden)
            with tape.building(HEAD):
                names = "cls.predictions.decoder.weight", "cls.predictions"
                decoder = decoder_of(tape, self.recipe, self.word_embeddings, *names)
            return times_head(transformed, decoder, bias)

    def transform(self, hidden: Tensor) -> Tensor:
        """BertPredictionHeadTransform.forward."""
        tape, shape, dtype = self.tape, self.recipe.shape, self.recipe.weight_dtype
        with tape.building(HEAD):
            dense = Linear(tape, "cls.transform.dense", shape.hidden_size, shape.hidden_size, dtype, bias=True)
            norm = LayerNorm(tape, "cls.transform.LayerNorm", shape.hidden_size, dtype)
        hidden = dense(hidden)
        hidden = ACTIVATIONS[shape.activation](hidden)
        hidden = norm(hidden)
        return hidden

    def classify(self, input_ids: Tensor, labels: Tensor) -> Output:
        """BertForSequenceClassification.forward: pooler, dropout, classifier."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        _sequence, pooled = self.encode_and_pool(input_ids)
        _pooler_output = pooled
        pooled = dropout(pooled, recipe.hidden_dropout)
        with tape.building(HEAD):
            classifier = Linear(tape, "classifier", shape.hidden_size, shape.classes, dtype, bias=True)
        logits = classifier(pooled)
        if recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)

    def encode_and_pool(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """BertModel.forward with its pooler: the first token, projected."""
        shape = self.recipe.shape
        _embedded = self.embed(input_ids)
        sequence = self.encoder(_embedded)
        first = select(sequence, 1)
        with self.tape.building("pooler"):
            pooler = Linear(
                self.tape, "pooler.dense", shape.hidden_size, shape.hidden_size, self.recipe.weight_dtype, bias=True
            )
        pooled = pooler(first)
        pooled = tanh(pooled)
        return sequence, pooled

    def encode(self, input_ids: Tensor) -> Tensor:
        """BertModel.forward without a pooler."""
        _embedded = self.embed(input_ids)
        return self.encoder(_embedded)

    def encoder(self, embedded: Tensor) -> Tensor:
        """BertEncoder.forward."""
        tape, recipe = self.tape, self.recipe
        mask = None
        if recipe.padded:
            mask = padded_mask(embedded, causal=False, additive=recipe.attention == "eager")
        return run_blocks(tape, recipe.segments, lambda i: self.block(mask), embedded, handed={"mask": mask})

    def block(self, mask: Tensor | None) -> Callable[[Tensor], Tensor]:
        """One layer of the encoder."""
        return Block(self.tape, self.recipe, mask)

    def embed(self, input_ids: Tensor) -> Tensor:
        """BertEmbeddings.forward: words, token types and positions."""
        tape, recipe = self.tape, self.recipe
        batch, length = input_ids.shape
        types = tape.new("gather", (1, length), INT64, False)
        _token_types = types.alias((batch, length), (0, 1), None)
        _token_types.batched = True
        _words = words(input_ids, self.word_embeddings)
        _types = embedding(_token_types, self.token_type_embeddings)
        embeddings = add(_words, _types)
        _positions = embedding(tape.constant((1, length), INT64, False), self.position_embeddings)
        embeddings = add(embeddings, _positions)
        embeddings = self.embedding_norm(embeddings)
        embeddings = dropout(embeddings, recipe.embedding_dropout)
        return embeddings


FORWARD = Bert
