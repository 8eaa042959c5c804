"""RoBERTa, XLM-RoBERTa and CamemBERT with a masked-language-model or a classification head, as transformers 5.23
computes them (models/roberta/modeling_roberta.py): BERT with positions counted from the tokens, and other heads.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.bert import Bert
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import LOGITS, LayerNorm, Linear, Output, Recipe, decoder_of, times_head
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, add_scalar, dropout, gelu, mul, tanh
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.views import select, to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, INT32, INT64, Parameter, Tensor

HEAD_FIRST = ("xlm-roberta", "camembert")
"""Types that register the head before the embeddings."""


class LMHead:
    """RobertaLMHead: the decoder is tied to the word embeddings, its bias to the head's own."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.recipe = recipe
        self.bias = tape.parameter("lm_head.bias", (shape.vocabulary_size,), dtype)
        self.dense = Linear(tape, "lm_head.dense", shape.hidden_size, shape.hidden_size, dtype, bias=True)
        self.layer_norm = LayerNorm(tape, "lm_head.layer_norm", shape.hidden_size, dtype)

    def __call__(self, features: Tensor, word_embeddings: Parameter) -> Tensor:
        with Outer(features, own=(self.bias,)):
            x = self.dense(features)
            x = gelu(x)  # whatever the activation of the blocks is
            x = self.layer_norm(x)
            with features.tape.building(HEAD):
                names = "lm_head.decoder.weight", "lm_head"
                decoder = decoder_of(features.tape, self.recipe, word_embeddings, *names)
            x = times_head(x, decoder, self.bias)
        return x


class ClassificationHead:
    """RobertaClassificationHead."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.dense = Linear(tape, "classifier.dense", shape.hidden_size, shape.hidden_size, dtype, bias=True)
        self.out_proj = Linear(tape, "classifier.out_proj", shape.hidden_size, shape.classes, dtype, bias=True)

    def __call__(self, features: Tensor) -> Tensor:
        x = select(features, 1)
        x = dropout(x, self.p)
        x = self.dense(x)
        x = tanh(x)
        x = dropout(x, self.p)
        x = self.out_proj(x)
        return x


class Roberta(Bert):
    """RobertaForMaskedLM or RobertaForSequenceClassification, with its loss.

    Optimizers step in the order in which weights are registered: XLM-RoBERTa and CamemBERT register their head first,
    in which the word embeddings come at the end.
    """

    compiled_graphs: int | None = 1
    takes_padding = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.tape, self.recipe = tape, recipe
        self.lm_head: LMHead | None = None
        self.classifier: ClassificationHead | None = None
        if shape.transformers_model_type in HEAD_FIRST:
            self.make_head()
        types = (shape.token_types, width)
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter("word_embeddings.weight", (shape.vocabulary_size, width), dtype)
            self.token_type_embeddings = tape.parameter("token_type_embeddings.weight", types, dtype)
            self.embedding_norm = LayerNorm(tape, "LayerNorm", width, dtype)
            self.position_embeddings = tape.parameter("position_embeddings.weight", (shape.max_positions, width), dtype)

    def make_head(self) -> None:
        """The head of the task."""
        with self.tape.building(HEAD):
            if self.recipe.shape.task == "cls":
                self.classifier = ClassificationHead(self.tape, self.recipe)
            else:
                self.lm_head = LMHead(self.tape, self.recipe)

    def predict(self, hidden: Tensor) -> Tensor:
        """The scores of RobertaForMaskedLM.forward."""
        if self.lm_head is None:
            self.make_head()
        assert self.lm_head is not None
        return self.lm_head(hidden, self.word_embeddings)

    def classify(self, input_ids: Tensor, labels: Tensor) -> Output:
        """RobertaForSequenceClassification.forward: the first token through the head."""
        _sequence = self.encode(input_ids)
        if self.classifier is None:
            self.make_head()
        assert self.classifier is not None
        logits = self.classifier(_sequence)
        if self.recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, self.recipe)
        return Output(loss, logits)

    def embed(self, input_ids: Tensor) -> Tensor:
        """RobertaEmbeddings.forward: words, token types and positions, both looked up for each sample."""
        position_ids = counted_places(input_ids)
        _token_types = input_ids.tape.new("gather", input_ids.shape, INT64, True)
        _words = embedding(input_ids, self.word_embeddings)
        _types = embedding(_token_types, self.token_type_embeddings)
        embeddings = add(_words, _types)
        _positions = embedding(position_ids, self.position_embeddings)
        embeddings = add(embeddings, _positions)
        embeddings = self.embedding_norm(embeddings)
        embeddings = dropout(embeddings, self.recipe.embedding_dropout)
        return embeddings


def counted_places(input_ids: Tensor, *, after_past: bool = True) -> Tensor:
    """RobertaEmbeddings.create_position_ids_from_input_ids: counted from the tokens that are no padding. With
    `after_past` the length of a cache is added, also where there is none.
    """
    tape, shape = input_ids.tape, input_ids.shape
    mask = to(tape.new("ne", shape, BOOL, True), INT32)
    counted = to(tape.new("cumsum", shape, INT64, True), INT32)
    if after_past:
        counted = add_scalar(counted)
    indices = mul(counted, mask)
    return add_scalar(to(indices, INT64))


FORWARD = Roberta
