"""DistilBERT with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/distilbert/modeling_distilbert.py): BERT without token types, without a pooler, and with other heads.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.bert import Bert, SelfAttention
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
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.operators.elementwise import add, dropout, relu
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.views import select
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, Tensor


class DistilAttention(SelfAttention):
    """DistilBertSelfAttention, which has the projection of its output."""

    names = "attention.q_lin", "attention.k_lin", "attention.v_lin"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        width = recipe.shape.hidden_size
        self.out = Linear(tape, "attention.out_lin", width, width, recipe.weight_dtype, bias=True)

    def projected(self, output: Tensor) -> Tensor:
        """By `out_lin`, inside the module of the attention."""
        return self.out(output)


class DistilBlock:
    """TransformerBlock: post-norm."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.mask, self.p = mask, recipe.hidden_dropout
        self.attention = DistilAttention(tape, recipe)
        self.sa_layer_norm = LayerNorm(tape, "sa_layer_norm", width, dtype)
        self.lin1 = Linear(tape, "ffn.lin1", width, shape.intermediate_size, dtype, bias=True)
        self.lin2 = Linear(tape, "ffn.lin2", shape.intermediate_size, width, dtype, bias=True)
        self.act = ACTIVATIONS[shape.activation]
        self.output_layer_norm = LayerNorm(tape, "output_layer_norm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        attention, _weights = self.attention(hidden, self.mask)
        attention = self.sa_layer_norm(add(attention, hidden))
        output = self.feed_forward(attention)
        output = self.output_layer_norm(add(output, attention))
        return output

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """FFN.ff_chunk."""
        x = self.lin1(hidden)
        x = self.act(x)
        x = self.lin2(x)
        x = dropout(x, self.p)
        return x


class DistilBert(Bert):
    """DistilBertForMaskedLM or DistilBertForSequenceClassification, with its loss."""

    peaks_published = True
    compiled_graphs = None  # no compiled step of it was traced
    takes_padding = True
    no_all_linear_classifier = "as PEFT takes the classifier for one of them, which is a module to save, and ends"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter("word_embeddings.weight", (shape.vocabulary_size, width), dtype)
            self.position_embeddings = tape.parameter("position_embeddings.weight", (shape.max_positions, width), dtype)
            self.embedding_norm = LayerNorm(tape, "LayerNorm", width, dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: position ids, int64."""
        return [8 * self.recipe.shape.max_positions]

    def predict(self, hidden: Tensor) -> Tensor:
        """The scores of DistilBertForMaskedLM.forward: the projector is tied and has a bias of its own."""
        tape, shape, dtype = self.tape, self.recipe.shape, self.recipe.weight_dtype
        width = shape.hidden_size
        with tape.building(HEAD):
            transform = Linear(tape, "vocab_transform", width, width, dtype, bias=True)
            norm = LayerNorm(tape, "vocab_layer_norm", width, dtype)
            projector = decoder_of(tape, self.recipe, self.word_embeddings, "vocab_projector.weight")
            bias = tape.parameter("vocab_projector.bias", (shape.vocabulary_size,), dtype)
        scores = transform(hidden)
        scores = ACTIVATIONS[shape.activation](scores)
        scores = norm(scores)
        scores = times_head(scores, projector, bias)
        return scores

    def classify(self, input_ids: Tensor, labels: Tensor) -> Output:
        """DistilBertForSequenceClassification.forward: the first token, projected."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        _sequence = self.encode(input_ids)
        with tape.building(HEAD):
            first = Linear(tape, "pre_classifier", shape.hidden_size, shape.hidden_size, dtype, bias=True)
            classifier = Linear(tape, "classifier", shape.hidden_size, shape.classes, dtype, bias=True)
        pooled = select(_sequence, 1)
        pooled = first(pooled)
        pooled = relu(pooled)
        pooled = dropout(pooled, recipe.hidden_dropout)
        logits = classifier(pooled)
        if recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)

    def block(self, mask: Tensor | None) -> Callable[[Tensor], Tensor]:
        """One layer of Transformer."""
        return DistilBlock(self.tape, self.recipe, mask)

    def embed(self, input_ids: Tensor) -> Tensor:
        """Embeddings.forward: words and positions."""
        _, length = input_ids.shape
        _words = embedding(input_ids, self.word_embeddings)
        _positions = embedding(self.tape.constant((1, length), INT64, False), self.position_embeddings)
        embeddings = add(_words, _positions)
        embeddings = self.embedding_norm(embeddings)
        embeddings = dropout(embeddings, self.recipe.embedding_dropout)
        return embeddings


FORWARD = DistilBert
