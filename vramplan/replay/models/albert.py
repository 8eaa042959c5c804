"""ALBERT with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/albert/modeling_albert.py): BERT with embeddings of a width of their own, and one layer that all blocks are.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.bert import Bert, SelfAttention
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.electra import width_of
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    LOGITS,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    decoder_of,
    times_head,
)
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD, LAYERS
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, dropout, tanh
from vramplan.replay.operators.views import select
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import Tensor

CLASSIFIER_DROPOUT = 0.1  # classifier_dropout_prob, the same in every released checkpoint


class Attention(SelfAttention):
    """AlbertAttention, with the projection, the dropout and the norm of its output."""

    names = "attention.query", "attention.key", "attention.value"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.dense = Linear(tape, "attention.dense", width, width, dtype, bias=True)
        self.norm = LayerNorm(tape, "attention.LayerNorm", width, dtype)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        output, weights = super().__call__(hidden, mask)
        output = self.norm(add(hidden, output))
        return output, weights

    def projected(self, output: Tensor) -> Tensor:
        """The output through the projection and the dropout."""
        output = self.dense(output)
        output = dropout(output, self.recipe.hidden_dropout)
        return output


class Layer:
    """AlbertLayer: post-norm, and no dropout behind the feed-forward layer."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.norm = LayerNorm(tape, "full_layer_layer_norm", width, dtype)
        self.attention = Attention(tape, recipe)
        self.ffn = Linear(tape, "ffn", width, shape.intermediate_size, dtype, bias=True)
        self.ffn_output = Linear(tape, "ffn_output", shape.intermediate_size, width, dtype, bias=True)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        attention, _ = self.attention(hidden, mask)
        ffn = self.feed_forward(attention)
        hidden = self.norm(add(ffn, attention))
        return hidden

    def feed_forward(self, attention: Tensor) -> Tensor:
        """AlbertLayer.ff_chunk."""
        ffn = self.ffn(attention)
        ffn = self.act(ffn)
        ffn = self.ffn_output(ffn)
        return ffn


class Albert(Bert):
    """AlbertForMaskedLM or AlbertForSequenceClassification, with its loss."""

    peaks_published = False
    block_lists = ("albert_layers",)
    compiled_graphs = None  # no compiled step of it was traced
    takes_padding = True
    named_units = "none"
    no_checkpointing = "Transformers' ALBERT has no gradient checkpointing"  # supports_gradient_checkpointing

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, hidden = width_of(shape), shape.hidden_size
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter("word_embeddings.weight", (shape.vocabulary_size, width), dtype)
            self.position_embeddings = tape.parameter("position_embeddings.weight", (shape.max_positions, width), dtype)
            types = (shape.token_types, width)
            self.token_type_embeddings = tape.parameter("token_type_embeddings.weight", types, dtype)
            self.embedding_norm = LayerNorm(tape, "LayerNorm", width, dtype)
        self.project = Linear(tape, "embedding_hidden_mapping_in", width, hidden, dtype, bias=True)
        with tape.building(f"{LAYERS}.0"):
            self.layer = Layer(tape, recipe)

    def encoder(self, embedded: Tensor) -> Tensor:
        """AlbertTransformer.forward: each block is the same layer, whose weights wait for the gradients of all."""
        tape, recipe = self.tape, self.recipe
        mask = None
        if recipe.padded:
            mask = padded_mask(embedded, causal=False, additive=recipe.attention == "eager")

        def make(_: int) -> Callable[[Tensor], Tensor]:
            return lambda given: self.layer(given, mask)

        return run_blocks(tape, recipe.segments, make, [self.project(embedded)], kind=lambda i: i)

    def predict(self, hidden: Tensor) -> Tensor:
        """AlbertMLMHead.forward: the decoder is tied to the word embeddings, its bias to the head's own."""
        tape, shape, dtype = self.tape, self.recipe.shape, self.recipe.weight_dtype
        width = width_of(shape)
        with tape.building(HEAD):
            bias = tape.parameter("predictions.bias", (shape.vocabulary_size,), dtype)
            norm = LayerNorm(tape, "predictions.LayerNorm", width, dtype)
            dense = Linear(tape, "predictions.dense", shape.hidden_size, width, dtype, bias=True)
            names = "predictions.decoder.weight", "predictions"
            decoder = decoder_of(tape, self.recipe, self.word_embeddings, *names)
        with Outer(hidden, own=(bias,)):
            hidden = dense(hidden)
            hidden = ACTIVATIONS[shape.activation](hidden)
            hidden = norm(hidden)
            hidden = times_head(hidden, decoder, bias)
        return hidden

    def classify(self, input_ids: Tensor, labels: Tensor) -> Output:
        """AlbertForSequenceClassification.forward: pooler, dropout, classifier."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        _sequence = self.encode(input_ids)
        with tape.building("pooler"):
            pooler = Linear(tape, "pooler", shape.hidden_size, shape.hidden_size, dtype, bias=True)
        _pooler_output = pooled = tanh(pooler(select(_sequence, 1)))
        pooled = dropout(pooled, CLASSIFIER_DROPOUT)
        with tape.building(HEAD):
            classifier = Linear(tape, "classifier", shape.hidden_size, shape.classes, dtype, bias=True)
        logits = classifier(pooled)
        if recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)


FORWARD = Albert
