"""ESM-2 with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/esm/modeling_esm.py): pre-norm blocks, rotary positions in fp32, and embeddings that are scaled by the share of
tokens that are masked. A head for contacts has weights that no loss depends on.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.bert import SelfAttention
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.llama import Rotary, rotary_embedding
from vramplan.replay.models.modernbert import apply_rotary
from vramplan.replay.models.modules import (
    LOGITS,
    SELECTIVE,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    output_embedding,
    times_head,
)
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.recomputed import recomputable
from vramplan.replay.models.roberta import ClassificationHead, counted_places
from vramplan.replay.observers import Outer
from vramplan.replay.operators.adapters import div
from vramplan.replay.operators.delta_rule import times_mask
from vramplan.replay.operators.elementwise import add, add_scalar, dropout, masked_fill, mul, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.piecewise import erf
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor


def gelu(x: Tensor) -> Tensor:
    """The gelu of ESM: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))."""
    return mul(mul_scalar(x), add_scalar(erf(mul_scalar(x))))


class Attention(SelfAttention):
    """EsmSelfAttention: queries are scaled before they are turned."""

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, rotary: Rotary | None = None
    ) -> tuple[Tensor, Tensor | None]:
        assert rotary is not None
        recipe, (batch, length, width) = self.recipe, hidden.shape
        heads = (batch, length, recipe.shape.attention_heads, recipe.shape.head_size)
        query = transpose(view(self.query(hidden), heads), 1, 2)
        key = transpose(view(self.key(hidden), heads), 1, 2)
        value = transpose(view(self.value(hidden), heads), 1, 2)
        query = mul_scalar(query)
        query, key = apply_rotary(query, key, *rotary)
        output, weights = recomputable(recipe, self.core, query, key, value, mask)
        output = contiguous(view(output, (batch, length, width)))
        return output, weights


class Block:
    """EsmLayer: pre-norm."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, rotary: Rotary) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, inner = shape.hidden_size, shape.intermediate_size
        self.mask, self.rotary, self.p = mask, rotary, recipe.hidden_dropout
        self.attention = Attention(tape, recipe)
        self.attention_output = Linear(tape, "attention.output.dense", width, width, dtype, bias=True)
        self.attention_norm = LayerNorm(tape, "attention.LayerNorm", width, dtype)
        self.intermediate = Linear(tape, "intermediate.dense", width, inner, dtype, bias=True)
        self.output = Linear(tape, "output.dense", inner, width, dtype, bias=True)
        self.norm = LayerNorm(tape, "LayerNorm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        _attention = self.attend(hidden)
        return self.feed_forward(_attention)

    def attend(self, hidden: Tensor) -> Tensor:
        """EsmAttention.forward, and EsmSelfOutput."""
        _normed = self.attention_norm(hidden)
        output, _weights = self.attention(_normed, self.mask, self.rotary)
        return self.projected(self.attention_output, output, hidden)

    def feed_forward(self, attention: Tensor) -> Tensor:
        """EsmLayer.feed_forward_chunk."""
        _normed = self.norm(attention)
        _intermediate = self.activate(_normed)
        return self.projected(self.output, _intermediate, attention)

    def activate(self, hidden: Tensor) -> Tensor:
        """EsmIntermediate.forward."""
        hidden = self.intermediate(hidden)
        hidden = gelu(hidden)
        return hidden

    def projected(self, dense: Linear, hidden: Tensor, residual: Tensor) -> Tensor:
        """EsmSelfOutput.forward, EsmOutput.forward."""
        hidden = dense(hidden)
        hidden = dropout(hidden, self.p)
        hidden = add(hidden, residual)
        return hidden


class Esm:
    """EsmForMaskedLM or EsmForSequenceClassification, with its loss."""

    both_sides = True
    counts_blocks = True  # the head for contacts
    block_lists = ("layer",)
    selective = SELECTIVE
    takes_padding = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        size = (shape.vocabulary_size, shape.hidden_size)
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter("word_embeddings.weight", size, recipe.weight_dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: position ids, int64, that nobody asks for, and inverse frequencies in fp32."""
        shape = self.recipe.shape
        return [8 * shape.max_positions, 4 * (shape.head_size // 2)]

    def __call__(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Output:
        if self.recipe.shape.task == "cls":
            return self.classify(input_ids, labels, attention_mask)
        return self.fill(input_ids, labels, attention_mask)

    def fill(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Output:
        """EsmForMaskedLM.forward."""
        vocabulary = self.recipe.shape.vocabulary_size
        batch, length = input_ids.shape
        _sequence = self.encode(input_ids, attention_mask)
        scores = self.predict(_sequence)
        if self.recipe.loss == LOGITS:
            return Output(None, scores)
        loss = entropy(view(scores, (batch * length, vocabulary)), view(labels, (batch * length,)), self.recipe)
        return Output(loss, scores)

    def predict(self, features: Tensor) -> Tensor:
        """EsmLMHead.forward: its bias is its own, and is added to what the tied decoder gives."""
        tape, recipe = self.tape, self.recipe
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        with tape.building(HEAD):
            bias = tape.parameter("lm_head.bias", (recipe.shape.vocabulary_size,), dtype)
            dense = Linear(tape, "lm_head.dense", width, width, dtype, bias=True)
            norm = LayerNorm(tape, "lm_head.layer_norm", width, dtype)
        decoder = output_embedding(tape, recipe, self.word_embeddings)
        with Outer(features, own=(bias,)):
            x = dense(features)
            x = gelu(x)
            x = norm(x)
            x = add(times_head(x, decoder), bias)
            return x

    def classify(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Output:
        """EsmForSequenceClassification.forward: the first token through the head."""
        _sequence = self.encode(input_ids, attention_mask)
        with self.tape.building(HEAD):
            classifier = ClassificationHead(self.tape, self.recipe)
        logits = classifier(_sequence)
        if self.recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, self.recipe)
        return Output(loss, logits)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """EsmModel.forward and EsmEncoder.forward."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        _embedded = self.embed(input_ids, attention_mask)
        mask = None
        if recipe.padded:
            mask = padded_mask(_embedded, causal=False, additive=recipe.attention == "eager")
        _position_ids = tape.new("arange", (input_ids.shape[1],), INT64, False)
        rotary = rotary_embedding(_embedded, shape.head_size)
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, rotary), _embedded)
        hidden = LayerNorm(tape, "emb_layer_norm_after", shape.hidden_size, dtype)(hidden)
        Linear(tape, "contact_head.regression", shape.layers * shape.attention_heads, 1, dtype, bias=True)
        return hidden

    def embed(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """EsmEmbeddings.forward with token_dropout: masked tokens are zeros, and the others are scaled by their share,
        which promotes halves to fp32.
        """
        tape, (batch, length) = self.tape, input_ids.shape
        _position_ids = counted_places(input_ids, after_past=False)
        _words = embedding(input_ids, self.word_embeddings)
        embeddings = masked_fill(_words, tape.new("eq", (batch, length, 1), BOOL, True))
        _lengths = None if attention_mask is None else tape.new("sum", (batch,), INT64, True)
        masked = tape.new("eq", (batch, length), BOOL, True)
        count = tape.new("sum", (batch,), INT64, True)
        del masked
        count = to(count, FP32)
        _share = tape.new("div", (batch,), FP32, True)
        del count
        scaled = mul_scalar(embeddings)
        divisor = tape.new("rsub", (batch,), FP32, True).alias((batch, 1, 1), None, None)
        embeddings = to(div(scaled, divisor), embeddings.dtype)
        del scaled, divisor
        if attention_mask is not None:
            embeddings = times_mask(embeddings, attention_mask.alias((batch, length, 1), None, None))
        return embeddings


FORWARD = Esm
