"""Nomic BERT with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/nomic_bert/modeling_nomic_bert.py): BERT with rotary positions, gated feed-forward layers and no biases inside
of its blocks.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.bert import Bert
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.dinov2 import eager_attention
from vramplan.replay.models.llama import MLP, Rotary, apply_rotary, rotary_embedding
from vramplan.replay.models.modules import SELECTIVE, LayerNorm, Linear, Recipe, words
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.operators.elementwise import add, dropout, tanh
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.views import contiguous, select, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import INT64, Tensor


class Attention:
    """NomicBertAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            Linear(tape, name, width, width, dtype, bias=False) for name in names
        )

    def __call__(self, hidden: Tensor, mask: Tensor | None, rotary: Rotary) -> tuple[Tensor, Tensor | None]:
        shape = self.recipe.shape
        batch, length, width = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        query = transpose(view(self.q_proj(hidden), heads), 1, 2)
        key = transpose(view(self.k_proj(hidden), heads), 1, 2)
        value = transpose(view(self.v_proj(hidden), heads), 1, 2)
        query, key = apply_rotary(query, key, *rotary)
        output, weights = attend(self.recipe, query, key, value, mask, causal=False, eager=eager_attention)
        output = contiguous(view(output, (batch, length, width)))
        output = self.o_proj(output)
        return output, weights


class Block:
    """NomicBertLayer: post-norm."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, positions: Tensor, rotary: Rotary) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p, self.mask, self.rotary = recipe.hidden_dropout, mask, rotary
        self.position_ids = positions  # an unused argument, which a checkpoint keeps nevertheless
        self.attention_norm = LayerNorm(tape, "post_attention_layernorm", width, dtype)
        self.mlp = MLP(tape, recipe)
        self.self_attn = Attention(tape, recipe)
        self.mlp_norm = LayerNorm(tape, "post_mlp_layernorm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        _output, _weights = self.self_attn(hidden, self.mask, self.rotary)
        hidden = add(residual, dropout(_output, self.p))
        hidden = self.attention_norm(hidden)
        residual = hidden
        hidden = self.mlp(hidden)
        hidden = add(residual, dropout(hidden, self.p))
        hidden = self.mlp_norm(hidden)
        return hidden


class NomicBert(Bert):
    """NomicBertForMaskedLM or NomicBertForSequenceClassification, with its loss."""

    peaks_published = False
    block_lists = ("layers",)
    selective = SELECTIVE
    compiled_graphs = None  # no compiled step of it was traced
    takes_padding = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter("word_embeddings.weight", (shape.vocabulary_size, width), dtype)
            types = (shape.token_types, width)
            self.token_type_embeddings = tape.parameter("token_type_embeddings.weight", types, dtype)
            self.embedding_norm = LayerNorm(tape, "LayerNorm", width, dtype)
        self.pooler = None
        if shape.task == "cls":  # registered before the blocks
            with tape.building("pooler"):
                self.pooler = Linear(tape, "pooler.dense", width, width, dtype, bias=True)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: ids of positions and of types, int64; the inverse frequencies, kept twice, in fp32."""
        shape = self.recipe.shape
        return [*[8 * shape.max_positions] * 2, *[4 * (shape.head_size // 2)] * 2]

    def encode(self, input_ids: Tensor) -> Tensor:
        """NomicBertModel.forward without a pooler."""
        tape, recipe = self.tape, self.recipe
        _position_ids = tape.new("arange", (1, input_ids.shape[1]), INT64, False)
        _embedded = self.embed(input_ids)
        mask = padded_mask(_embedded, causal=False, additive=recipe.attention == "eager") if recipe.padded else None
        rotary = rotary_embedding(_embedded, recipe.shape.head_size)

        def make(_: int) -> Any:
            return Block(tape, recipe, mask, _position_ids, rotary)

        return run_blocks(tape, recipe.segments, make, _embedded)

    def encode_and_pool(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """NomicBertModel.forward with its pooler: the first token, projected."""
        assert self.pooler is not None
        sequence = self.encode(input_ids)
        pooled = self.pooler(select(sequence, 1))
        pooled = tanh(pooled)
        return sequence, pooled

    def embed(self, input_ids: Tensor) -> Tensor:
        """NomicBertEmbeddings.forward: words and token types."""
        embeddings = words(input_ids, self.word_embeddings)
        _token_types = input_ids.tape.new("zeros", input_ids.shape, INT64, True)
        _types = embedding(_token_types, self.token_type_embeddings)
        embeddings = add(embeddings, _types)
        embeddings = self.embedding_norm(embeddings)
        embeddings = dropout(embeddings, self.recipe.embedding_dropout)
        return embeddings


FORWARD = NomicBert
