"""Classification of sequences by a causal model: a projection of every token, of which that of the last one counts.

The code of all families is the same, as transformers 5.23 has it (modeling_layers.py, GenericForSequenceClassification;
models/gpt2/modeling_gpt2.py, GPT2ForSequenceClassification and its kin). A token that pads is set, as the code demands
for more than one sequence. Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import LOGITS, Linear, Output, Recipe
from vramplan.replay.models.part_names import HEAD
from vramplan.replay.operators.indexing import index_rows_of
from vramplan.replay.tensors import BOOL, INT32, INT64, Tensor


class Score(Linear):
    """The head, whose weight is the last one that the model names: Transformers never quantizes it.

    Source: transformers 5.23, quantizers/base.py, get_keys_to_not_convert.
    """

    quantizes = False


def classify(hidden: Tensor, labels: Tensor, recipe: Recipe) -> Output:
    """The head `score`, the last token that is no padding, and the loss over the classes."""
    tape, (batch, length, width) = hidden.tape, hidden.shape
    with tape.building(HEAD):
        score = Score(tape, "score", width, recipe.shape.classes, recipe.weight_dtype, bias=False)
    _logits = score(hidden)
    differs = tape.new("ne", (batch, length), BOOL, True)
    _non_pad_mask = tape.new("to", (batch, length), INT32, True)
    del differs
    _token_indices = tape.new("arange", (length,), INT32, False)
    places = tape.new("mul", (batch, length), INT32, True)
    last = tape.new("argmax", (batch,), INT64, True)
    del places
    pooled = index_rows_of(_logits, last)
    if recipe.loss == LOGITS:
        return Output(None, pooled)
    return Output(entropy(pooled, labels, recipe), pooled)
