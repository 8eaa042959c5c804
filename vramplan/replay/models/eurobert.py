"""EuroBERT with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/eurobert/modeling_eurobert.py): Llama whose tokens see those behind them too.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.llama import Attention, Block, Llama, eager_attention, repeat_kv
from vramplan.replay.models.modules import LOGITS, SELECTIVE, Linear, Output, output_embedding, times_head
from vramplan.replay.models.part_names import HEAD
from vramplan.replay.operators.alternating import mean_over
from vramplan.replay.operators.attention import LARGEST_FLASH_HEAD, scaled_dot_product
from vramplan.replay.operators.delta_rule import times_mask
from vramplan.replay.operators.elementwise import div_by, gelu
from vramplan.replay.operators.experts import sum_middle
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import FP32, INT64, Tensor


class BothSides(Attention):
    """EuroBertAttention."""

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        recipe = self.recipe
        groups, p = recipe.shape.attention_heads // recipe.shape.key_value_heads, recipe.attention_dropout
        if recipe.attention == "eager":
            return eager_attention(query, key, value, mask, groups, p)
        if mask is not None or key.shape[-1] > LARGEST_FLASH_HEAD:
            key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        output = scaled_dot_product(query, key, value, recipe.attention, p, mask, causal=False)
        return contiguous(transpose(output, 1, 2)), None


class EuroBertBlock(Block):
    """EuroBertDecoderLayer."""

    attention = BothSides


class EuroBert(Llama):
    """EuroBertForMaskedLM or EuroBertForSequenceClassification, with its loss."""

    both_sides = True
    selective = SELECTIVE
    compiled_graphs = None  # no compiled step of it was traced
    text_block = EuroBertBlock
    takes_padding = True

    def __call__(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Output:
        hidden = self.model(input_ids)
        if self.recipe.shape.task == "cls":
            return self.classify(hidden, labels, attention_mask)
        return self.fill(hidden, labels)

    def masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """That of a padding: create_bidirectional_mask."""
        recipe = self.recipe
        additive = recipe.attention == "eager"
        return (padded_mask(hidden, causal=False, additive=additive) if recipe.padded else None), None

    def fill(self, hidden: Tensor, labels: Tensor) -> Output:
        """EuroBertForMaskedLM.forward, and ForMaskedLMLoss, which casts the logits (loss/loss_utils.py)."""
        tape, recipe = self.tape, self.recipe
        vocabulary = recipe.shape.vocabulary_size
        batch, length = labels.shape
        weight = output_embedding(tape, recipe, self.embed_tokens)
        with tape.building(HEAD):
            named = "lm_head.bias", (vocabulary,), recipe.weight_dtype
            bias = tape.parameter(*named) if recipe.shape.mlp_bias else None  # the switch of both
        scores = times_head(hidden, weight, bias)
        if recipe.loss == LOGITS:
            return Output(None, scores)
        rows = view(to(scores, FP32), (batch * length, vocabulary))
        loss = entropy(rows, view(labels, (batch * length,)), recipe)
        return Output(loss, scores)

    def classify(self, hidden: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Output:
        """EuroBertForSequenceClassification.forward: every token is classified, and their mean is the answer."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        with tape.building(HEAD):
            dense = Linear(tape, "dense", shape.hidden_size, shape.hidden_size, dtype, bias=True)
            classifier = Linear(tape, "classifier", shape.hidden_size, shape.classes, dtype, bias=True)
        x = dense(hidden)
        x = gelu(x)
        logits = classifier(x)
        if attention_mask is None:
            logits = mean_over(logits, 1)
        else:
            batch, length = attention_mask.shape
            total = sum_middle(times_mask(logits, attention_mask.alias((batch, length, 1), None, None)))
            logits = div_by(total, tape.new("sum", (batch, 1), INT64, True))
            del total
        if recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)


FORWARD = EuroBert
