"""Megatron-LM's BERT, as megatron-core computes it (core/models/bert/{bert_model,bert_lm_head,pooler}.py).

Its blocks are those of GPT, which attend to both sides; only the ends differ. Names that start with an underscore are
locals of that code which outlive their use.
Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64); pretrain_bert.py of core 0.16 (get_batch, loss_func).
"""

from __future__ import annotations

from vramplan.engines.megatron.layers import gathered
from vramplan.engines.megatron.model import Megatron
from vramplan.engines.megatron.tensor_parallel import parallel_linear, scatter
from vramplan.engines.megatron.vocabulary import parallel_embedding, summed_loss
from vramplan.replay.models.modules import LayerNorm, Linear, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.operators.elementwise import add, dropout, gelu, tanh
from vramplan.replay.operators.ends import cross_entropy, embedding
from vramplan.replay.operators.views import contiguous, select, to, transpose
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Parameter, Tensor

KINDS_OF_TOKENS = 2  # num_tokentypes with --bert-binary-head, its default
ORDERS = 2  # whether the second sentence follows the first


class MegatronBert(Megatron):
    """BertModel of one stage, with the losses of pretrain_bert.py."""

    untraced = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        self.kinds: Parameter | None = None
        if recipe.slice.first:
            size = (KINDS_OF_TOKENS, recipe.shape.hidden_size)
            with tape.building(EMBEDDINGS):
                self.kinds = tape.parameter("tokentype_embeddings.weight", size, recipe.weight_dtype)

    def mask(self) -> Tensor | None:
        """bert_extended_attention_mask, of what is no padding; a fused core takes one number for each token."""
        tape, batch, length = self.tape, self.tape.batch, self.recipe.sequence_length
        _given = tape.new("padding_mask", (batch, length), INT64, True, category="inputs")
        if self.recipe.attention != "eager":
            return tape.new("lt", (batch, 1, 1, length), BOOL, True)
        both = tape.new("mul", (batch, length, length), INT64, True)
        del both
        return tape.new("lt", (batch, 1, length, length), BOOL, True)

    def embed(self, ids: Tensor, places: Tensor) -> Tensor:
        """LanguageModelEmbedding.forward, with the kinds of tokens."""
        tape, recipe = self.tape, self.recipe
        assert self.table is not None
        assert self.positions is not None
        assert self.kinds is not None
        hidden = parallel_embedding(ids, self.table, recipe.slice.tensor)
        hidden = add(hidden, embedding(places, self.positions))
        hidden = contiguous(transpose(hidden, 0, 1))
        kinds = tape.new("types", ids.shape, INT64, True, category="inputs")
        hidden = add(hidden, transpose(embedding(kinds, self.kinds), 0, 1))
        hidden = scatter(hidden, gathered(recipe))
        return dropout(hidden, recipe.embedding_dropout)

    def loss(self, state: list[Tensor], labels: Tensor, counted: Tensor) -> Tensor:
        """That of the hidden words, and that of the order of the sentences."""
        tape, recipe = self.tape, self.recipe
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        hidden = state.pop()
        with tape.building(HEAD):
            pooler = Linear(tape, "pooler.dense", width, width, dtype, bias=True)
            order = Linear(tape, "binary_head", width, ORDERS, dtype, bias=True)
            dense = Linear(tape, "lm_head.dense", width, width, dtype, bias=True)
            norm = LayerNorm(tape, "lm_head.layer_norm", width, dtype)
            bias = tape.parameter("output_layer.bias", (self.rows,), dtype)
        pooled = tanh(pooler(select(hidden, 0)))
        transformed = norm(gelu(dense(hidden)))
        logits = parallel_linear(transformed, self.head(), bias, gathered=gathered(recipe))
        _orders = order(pooled)
        state = [logits]
        del hidden, transformed, logits
        losses = self.losses(state, labels)
        follows = tape.new("is_random", (tape.batch,), INT64, True, category="inputs")
        of_order = cross_entropy(to(_orders, FP32), follows)
        return add(summed_loss(losses, counted), of_order)


FORWARD = MegatronBert
