"""ModernBERT with a masked-language-model or a classification head, as transformers 5.23 computes it
(models/modernbert/modeling_modernbert.py): pre-norm blocks without biases, a fused projection of queries, keys and
values, rotary positions in fp32, a gated feed-forward layer. Every so many blocks one sees all tokens; the others see
those within a window to both sides, and have rotary positions of another base.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.llama import Rotary, rotary_embedding, rotate_half
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
)
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.windows import has_window, reaches_window, windowed_blocks
from vramplan.replay.operators.delta_rule import times_mask
from vramplan.replay.operators.elementwise import add, div_by, dropout, gelu, mul
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.experts import sum_middle
from vramplan.replay.operators.ragged import unbind
from vramplan.replay.operators.views import contiguous, select, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import index_tensors, padded_mask
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor, normalised
from vramplan.values.model import ModelShape


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: in fp32, each product over a copy of its own."""
    dtype, shape = query.dtype, (cos.shape[0], 1, *cos.shape[1:])
    cos, sin = cos.alias(shape, None, None), sin.alias(shape, None, None)
    query_embed = add(mul(to(query, FP32), cos), mul(rotate_half(to(query, FP32)), sin))
    key_embed = add(mul(to(key, FP32), cos), mul(rotate_half(to(key, FP32)), sin))
    query = to(query_embed, dtype)
    return query, to(key_embed, dtype)


def window_mask(hidden: Tensor, recipe: Recipe, seen: Tensor | None) -> Tensor | None:
    """create_bidirectional_sliding_window_mask: tokens whose distance is that of the window at most; `seen` are those
    that are no padding. None where the sequence does not reach the window and nothing is padded.

    Source: masking_utils.py, sliding_window_bidirectional_mask_function, sdpa_mask and eager_mask.
    """
    tape = hidden.tape
    batch, length, _ = hidden.shape
    if seen is None and not reaches_window(recipe.shape, length):
        return None
    whole = (1, 1, length, length)
    _padding = None if seen is None else tape.new("to", (batch, length), BOOL, True)
    _indices = index_tensors(tape, batch, length, heads=True)
    outer = None if seen is None else tape.new("ones", (), BOOL, False)
    mask = tape.new("ones", (), BOOL, False)
    distance = tape.new("sub", whole, INT64, False)
    distance = tape.new("abs", whole, INT64, False)
    near = tape.new("le", whole, BOOL, False)
    del distance
    mask = tape.new("bitwise_and", whole, BOOL, False)
    del near
    every = tape.new("ge", (1, 1, length, 1), BOOL, False)
    mask = tape.new("bitwise_and", whole, BOOL, False)
    del every
    shape = (batch, 1, length, length)
    if seen is not None:
        outer = tape.new("bitwise_and", whole, BOOL, False)
        del mask
        tokens = tape.new("index", (batch, 1, 1, length), BOOL, True)
        mask = tape.new("bitwise_and", shape, BOOL, True)
        del outer, tokens
    else:
        mask = mask.alias(shape, normalised(shape, (0, length * length, length, 1)), None)
    if recipe.attention == "eager":
        return tape.new("where", shape, hidden.dtype, True)
    return mask


class Attention:
    """ModernBertAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.recipe = recipe
        self.Wqkv = Linear(tape, "attn.Wqkv", width, 3 * width, dtype, bias=shape.qkv_bias)
        self.Wo = Linear(tape, "attn.Wo", width, width, dtype, bias=shape.output_bias)

    def __call__(self, hidden: Tensor, mask: Tensor | None, rotary: Rotary) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, width = hidden.shape
        _qkv = self.Wqkv(hidden)
        _qkv = view(_qkv, (batch, length, 3, shape.attention_heads, shape.head_size))
        query, key, value = unbind(_qkv, 2)
        query = transpose(query, 1, 2)
        key = transpose(key, 1, 2)
        value = transpose(value, 1, 2)
        query, key = apply_rotary(query, key, *rotary)
        output, weights = attend(recipe, query, key, value, mask, causal=False)
        output = contiguous(view(output, (batch, length, width)))
        output = dropout(self.Wo(output), recipe.attention_dropout)
        return output, weights


class MLP:
    """ModernBertMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.p, self.inner = recipe.activation_dropout, shape.intermediate_size
        self.Wi = Linear(tape, "mlp.Wi", shape.hidden_size, 2 * self.inner, dtype, bias=shape.mlp_bias)
        self.Wo = Linear(tape, "mlp.Wo", self.inner, shape.hidden_size, dtype, bias=shape.mlp_bias)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        value, gate = split(self.Wi(hidden), self.inner)
        return self.Wo(dropout(mul(self.act(value), gate), self.p))


class Block:
    """ModernBertEncoderLayer: pre-norm; the first one takes the normalised embeddings as they are."""

    def __init__(self, tape: Tape, recipe: Recipe, number: int, mask: Tensor | None, rotary: Rotary) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.attn_norm = LayerNorm(tape, "attn_norm", width, dtype, bias=False) if number else None
        self.attn = Attention(tape, recipe)
        self.mlp_norm = LayerNorm(tape, "mlp_norm", width, dtype, bias=False)
        self.mlp = MLP(tape, recipe)
        self.mask, self.rotary = mask, rotary

    def __call__(self, hidden: Tensor) -> Tensor:
        _output, _weights = self.attn(self.normed(hidden), self.mask, self.rotary)
        hidden = add(hidden, _output)
        hidden = add(hidden, self.mlp(self.mlp_norm(hidden)))
        return hidden

    def normed(self, hidden: Tensor) -> Tensor:
        """What attention is given."""
        return hidden if self.attn_norm is None else self.attn_norm(hidden)


class ModernBert:
    """ModernBertForMaskedLM or ModernBertForSequenceClassification, with its loss."""

    both_sides = True
    selective = SELECTIVE
    takes_padding = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            size = (shape.vocabulary_size, shape.hidden_size)
            self.tok_embeddings = tape.parameter("tok_embeddings.weight", size, dtype)
            self.norm = LayerNorm(tape, "norm", shape.hidden_size, dtype, bias=False)

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window; each kind has its mask and its rotary positions."""
        return has_window(shape, block)

    @staticmethod
    def made_of(shape: ModelShape, number: int) -> bool:
        """Whether a block has a norm before its attention, as all but the first have."""
        return number > 0

    @staticmethod
    def full_blocks(shape: ModelShape) -> int:
        """Blocks whose attention has no window."""
        return shape.layers - windowed_blocks(shape)

    def kinds(self) -> set[bool]:
        """Whether there are blocks that have a window, and blocks that have none."""
        shape = self.recipe.shape
        return {has_window(shape, i) for i in range(shape.layers)}

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies of each kind of block, twice, in fp32."""
        return [4 * (self.recipe.shape.head_size // 2)] * 2 * len(self.kinds())

    def __call__(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Output:
        if self.recipe.shape.task == "cls":
            return self.classify(input_ids, labels, attention_mask)
        return self.fill(input_ids, labels, attention_mask)

    def fill(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Output:
        """ModernBertForMaskedLM.forward, and ForMaskedLMLoss, which casts the logits (loss/loss_utils.py)."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        batch, length = input_ids.shape
        _hidden = self.encode(input_ids, attention_mask)
        scores = self.head(_hidden)
        with tape.building(HEAD):
            bias = tape.parameter("decoder.bias", (shape.vocabulary_size,), dtype)
            decoder = decoder_of(tape, recipe, self.tok_embeddings, "decoder.weight")
        scores = times_head(scores, decoder, bias)
        if recipe.loss == LOGITS:
            return Output(None, scores)
        rows = view(to(scores, FP32), (batch * length, shape.vocabulary_size))
        loss = entropy(rows, view(labels, (batch * length,)), recipe)
        return Output(loss, scores)

    def classify(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Output:
        """ModernBertForSequenceClassification.forward: the first token, or the mean of all, through the head."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        _hidden = self.encode(input_ids, attention_mask)
        if shape.mean_pooling:
            batch, length, _ = _hidden.shape
            _mask = tape.new("ones", (batch, length), BOOL, True) if attention_mask is None else attention_mask
            total = sum_middle(times_mask(_hidden, _mask.alias((batch, length, 1), None, None)))
            pooled = div_by(total, tape.new("sum", (batch, 1), INT64, True))
            del total
        else:
            pooled = select(_hidden, 1)
        _last = pooled
        pooled = self.head(pooled)
        pooled = dropout(pooled, recipe.hidden_dropout)
        with tape.building(HEAD):
            classifier = Linear(tape, "classifier", shape.hidden_size, shape.classes, dtype, bias=True)
        logits = classifier(pooled)
        if recipe.loss == LOGITS:
            return Output(None, logits)
        loss = entropy(logits, labels, recipe)
        return Output(loss, logits)

    def head(self, hidden: Tensor) -> Tensor:
        """ModernBertPredictionHead.forward."""
        tape, width, dtype = self.tape, self.recipe.shape.hidden_size, self.recipe.weight_dtype
        with tape.building(HEAD):
            dense = Linear(tape, "head.dense", width, width, dtype, bias=False)
            norm = LayerNorm(tape, "head.norm", width, dtype, bias=False)
        return norm(gelu(dense(hidden)))

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """ModernBertModel.forward: the embeddings live until it returns, as the arguments of the masks."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _positions = tape.new("arange", (1, input_ids.shape[1]), INT64, False)
        _embedded = dropout(self.norm(embedding(input_ids, self.tok_embeddings)), recipe.embedding_dropout)
        masks = self.masks(_embedded, attention_mask)
        rotary = {kind: rotary_embedding(_embedded, shape.head_size) for kind in self.kinds()}

        def block(i: int) -> Block:
            kind = has_window(shape, i)
            return Block(tape, recipe, i, masks[kind], rotary[kind])

        hidden = run_blocks(
            tape,
            recipe.segments,
            block,
            _embedded,
            kind=lambda i: has_window(shape, i),
            alike=(masks[False] is None) is (masks[True] is None),
            make_up=lambda i: self.made_of(shape, i),
        )
        return LayerNorm(tape, "final_norm", shape.hidden_size, recipe.weight_dtype, bias=False)(hidden)

    def masks(self, hidden: Tensor, attention_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The masks of blocks without and with a window: both are made whatever blocks there are."""
        recipe = self.recipe
        full = None
        if recipe.padded:
            full = padded_mask(hidden, causal=False, additive=recipe.attention == "eager")
        return full, window_mask(hidden, recipe, attention_mask if recipe.padded else None)


FORWARD = ModernBert
