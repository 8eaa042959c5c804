"""ELECTRA with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/electra/modeling_electra.py): BERT with embeddings of a width of their own, without a pooler, and with other
heads.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.bert import Bert
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import LOGITS, LayerNorm, Linear, Output, Recipe, decoder_of, times_head
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.operators.elementwise import dropout, gelu
from vramplan.replay.operators.views import select
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape


def width_of(shape: ModelShape) -> int:
    """Elements of a token embedding."""
    return shape.embedding_size or shape.hidden_size


class Electra(Bert):
    """ElectraForMaskedLM or ElectraForSequenceClassification, with its loss."""

    peaks_published = False
    compiled_graphs = None  # no compiled step of it was traced
    takes_padding = True

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
        self.project = None
        if width != hidden:
            self.project = Linear(tape, "embeddings_project", width, hidden, dtype, bias=True)

    def embed(self, input_ids: Tensor) -> Tensor:
        """ElectraEmbeddings.forward, and the projection to the width of the blocks."""
        embedded = super().embed(input_ids)
        if self.project is not None:
            embedded = self.project(embedded)
        return embedded

    def predict(self, hidden: Tensor) -> Tensor:
        """ElectraGeneratorPredictions.forward, and the head, which is tied and has a bias of its own."""
        tape, shape, dtype = self.tape, self.recipe.shape, self.recipe.weight_dtype
        width = width_of(shape)
        with tape.building(HEAD):
            norm = LayerNorm(tape, "generator_predictions.LayerNorm", width, dtype)
            dense = Linear(tape, "generator_predictions.dense", shape.hidden_size, width, dtype, bias=True)
            head = decoder_of(tape, self.recipe, self.word_embeddings, "generator_lm_head.weight")
            bias = tape.parameter("generator_lm_head.bias", (shape.vocabulary_size,), dtype)
        scores = dense(hidden)
        scores = gelu(scores)
        scores = norm(scores)
        scores = times_head(scores, head, bias)
        return scores

    def classify(self, input_ids: Tensor, labels: Tensor) -> Output:
        """ElectraForSequenceClassification.forward: the first token through the head."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        _sequence = self.encode(input_ids)
        with tape.building(HEAD):
            dense = Linear(tape, "classifier.dense", width, width, dtype, bias=True)
            out_proj = Linear(tape, "classifier.out_proj", width, shape.classes, dtype, bias=True)
        x = select(_sequence, 1)
        x = dropout(x, recipe.hidden_dropout)
        x = dense(x)
        x = gelu(x)
        x = dropout(x, recipe.hidden_dropout)
        logits = out_proj(x)
        if recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)


FORWARD = Electra
