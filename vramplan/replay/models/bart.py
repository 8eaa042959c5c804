"""BART with a language-model head, as transformers 5.23 computes it (models/bart/modeling_bart.py): two stacks,
learned positions, normalised after each residual sum. What its relatives have of it is here too.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import each_is_a_checkpoint, run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.gpt2 import causal_mask
from vramplan.replay.models.modules import ACTIVATIONS, LOGITS, SELECTIVE, LayerNorm, Linear, Output, Recipe, times_head
from vramplan.replay.models.part_names import EMBEDDINGS, NORMS
from vramplan.replay.models.recomputed import recomputable
from vramplan.replay.models.stacks import shift_right, split_at, text_pair
from vramplan.replay.observers import VirtualTokens
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.piecewise import clamp
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import contiguous, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import BOOL, FP16, FP32, INT64, DType, Shape, Tensor

POSITION_OFFSET = 2  # BartLearnedPositionalEmbedding: rows that stand for no position


class Attention:
    """BartAttention: of a sequence to itself, or to what the encoder gave."""

    key_bias = True

    def __init__(self, tape: Tape, recipe: Recipe, *, causal: bool = False) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe, self.causal = recipe, causal
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=self.key_bias)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=True)
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=True)
        self.out_proj = Linear(tape, "out_proj", width, width, dtype, bias=True)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, key_value: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        recipe, (batch, length, width) = self.recipe, hidden.shape
        shape = recipe.shape
        query = transpose(view(self.q_proj(hidden), (batch, length, shape.attention_heads, shape.head_size)), 1, 2)
        current = hidden if key_value is None else key_value
        key = self.k_proj(current)
        value = self.v_proj(current)
        kv_shape = (batch, current.shape[1], shape.attention_heads, shape.head_size)
        key = transpose(view(key, kv_shape), 1, 2)
        value = transpose(view(value, kv_shape), 1, 2)
        output, weights = recomputable(recipe, self.core, query, key, value, mask)
        output = contiguous(view(output, (batch, length, width)))
        output = self.out_proj(output)
        return output, weights

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        recipe = self.recipe
        if recipe.attention == "eager":
            return eager_attention(query, key, value, mask, recipe.attention_dropout)
        p = recipe.attention_dropout
        output = scaled_dot_product(query, key, value, recipe.attention, p, mask, causal=self.causal)
        return contiguous(transpose(output, 1, 2)), None


def eager_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> tuple[Tensor, Tensor]:
    """eager_attention_forward."""
    weights = mul_scalar(matmul(query, transpose(key, 2, 3)))
    if mask is not None:
        weights = add(weights, mask)
    weights = softmax(weights)
    weights = dropout(weights, p)
    output = matmul(weights, value)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


class Block:
    """BartEncoderLayer, or BartDecoderLayer with the encoder's result."""

    attention: type[Attention] = Attention

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        mask: Tensor | None,
        encoder: Tensor | None = None,
        cross_mask: Tensor | None = None,
    ) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.p, self.inner_p = recipe.hidden_dropout, recipe.activation_dropout
        self.mask, self.encoder, self.cross_mask = mask, encoder, cross_mask
        self.self_attn = self.attention(tape, recipe, causal=encoder is not None)
        self.self_attn_layer_norm = LayerNorm(tape, "self_attn_layer_norm", width, dtype)
        if encoder is not None:
            self.encoder_attn = self.attention(tape, recipe)
            self.encoder_attn_layer_norm = LayerNorm(tape, "encoder_attn_layer_norm", width, dtype)
        self.act = ACTIVATIONS[shape.activation]
        self.fc1 = Linear(tape, "fc1", width, shape.intermediate_size, dtype, bias=True)
        self.fc2 = Linear(tape, "fc2", shape.intermediate_size, width, dtype, bias=True)
        self.final_layer_norm = LayerNorm(tape, "final_layer_norm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden, _weights = self.self_attn(hidden, self.mask)
        hidden = dropout(hidden, self.p)
        hidden = add(residual, hidden)
        hidden = self.self_attn_layer_norm(hidden)
        if self.encoder is not None:
            residual = hidden
            hidden, _weights = self.encoder_attn(hidden, self.cross_mask, self.encoder)
            hidden = dropout(hidden, self.p)
            hidden = add(residual, hidden)
            hidden = self.encoder_attn_layer_norm(hidden)
        residual = hidden
        hidden = self.act(self.fc1(hidden))
        hidden = dropout(hidden, self.inner_p)
        hidden = self.fc2(hidden)
        hidden = dropout(hidden, self.p)
        hidden = add(residual, hidden)
        hidden = self.final_layer_norm(hidden)
        if self.encoder is None and hidden.dtype is FP16:
            look_for_infinities(hidden)
        return hidden


class PreNormBlock(Block):
    """MBartEncoderLayer, or MBartDecoderLayer with the encoder's result: normalised before each part."""

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.self_attn_layer_norm(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask)
        hidden = dropout(hidden, self.p)
        hidden = add(residual, hidden)
        if self.encoder is not None:
            residual = hidden
            hidden = self.encoder_attn_layer_norm(hidden)
            hidden, _weights = self.encoder_attn(hidden, self.cross_mask, self.encoder)
            hidden = dropout(hidden, self.p)
            hidden = add(residual, hidden)
        residual = hidden
        hidden = self.final_layer_norm(hidden)
        hidden = self.act(self.fc1(hidden))
        hidden = dropout(hidden, self.inner_p)
        hidden = self.fc2(hidden)
        hidden = dropout(hidden, self.p)
        hidden = add(residual, hidden)
        if self.encoder is None and hidden.dtype is FP16:
            hidden = clamp(hidden)
        return hidden


def look_for_infinities(hidden: Tensor) -> None:
    """`torch.isfinite(hidden).all()` of BartEncoderLayer, which finds none (aten TensorCompare.cpp, isfinite)."""
    tape = hidden.tape
    is_number = tape.like("eq", hidden, BOOL)
    absolute = tape.like("abs", hidden)
    below = tape.like("ne", hidden, BOOL)
    del absolute
    finite = tape.like("mul", hidden, BOOL)
    del is_number, below
    tape.new("all", (), BOOL, False)
    del finite


class Bart:
    """BartForConditionalGeneration, with its loss."""

    block_lists = ("encoder.layers", "decoder.layers")
    reads_first_stack = True
    selective = SELECTIVE
    compiled_graphs: int | None = 1
    equal_blocks = False  # of two stacks
    no_rounded_tables = "whose positions are asked of a class of its own (BartLearnedPositionalEmbedding)"
    takes_padding = True
    takes_virtual_tokens = True
    block: type[Block] = Block
    norms_embeddings = True  # before the first block of a stack
    norms_output = False  # after its last block
    biases_logits = True  # by a buffer
    rebinds_mask = True  # the decoder's padding mask of ones is in a variable that is then the causal mask
    rebinds_position_ids = False  # its places are in one that is then their rows

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        self.switched = each_is_a_checkpoint(recipe.segments)
        size = (shape.vocabulary_size, shape.hidden_size)
        with tape.building(EMBEDDINGS):
            self.shared = tape.parameter("shared.weight", size, recipe.weight_dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: final_logits_bias, in the dtype of the weights."""
        return [self.recipe.shape.vocabulary_size * self.recipe.buffer_dtype.itemsize]

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids and labels."""
        return text_pair(self.recipe)

    def __call__(self, input_ids: Tensor, labels: Tensor, *more: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        decoder_ids = more[0] if recipe.loss == LOGITS else self.shifted(labels)
        with tape.building("encoder"):
            _encoder_outputs = self.encode(input_ids)
        with tape.building("decoder"):
            _outputs = self.decode(decoder_ids, _encoder_outputs)
        logits = times_head(_outputs, self.shared)
        vocabulary = recipe.shape.vocabulary_size
        if self.biases_logits:
            logits = add(logits, tape.constant((1, vocabulary), recipe.buffer_dtype, False))
        if recipe.loss == LOGITS:
            return Output(None, (logits, _encoder_outputs))
        batch, length, _ = logits.shape
        rows = view(logits, (batch * length, vocabulary))
        loss = entropy(rows, view(labels, (batch * length,)), recipe)
        return Output(loss, (logits, _encoder_outputs))

    def shifted(self, labels: Tensor) -> Tensor:
        """The decoder's token ids."""
        return shift_right(labels)

    def encode(self, input_ids: Tensor) -> Tensor:
        """BartEncoder.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = self.encoded_words(input_ids)
        _positions = self.encoded_positions(input_ids)
        norm = self.norm()
        segments = split_at(recipe.segments, recipe.shape.layers)[0]
        embedded = [self.embedded(_embeds, _positions, norm)]
        mask = self.padding_mask(_embeds)

        def make(i: int) -> Block:
            return self.block(tape, recipe, mask)

        # what the first block is given is in no variable of its own: the second one's input takes its place
        handed = self.handed(mask=mask)
        hidden = run_blocks(tape, segments, make, embedded.pop(), handed=handed, switched=self.switched)
        return self.finished(hidden, norm)

    def decode(self, ids: Tensor, encoder: Tensor) -> Tensor:
        """BartDecoder.forward."""
        tape, recipe = self.tape, self.recipe
        _, length = ids.shape
        _embeds = self.words(ids)
        _position_ids = self.position_ids(length)
        _ones: Tensor | None = tape.new("ones", ids.shape, FP32, True)
        mask = self.mask(_embeds)
        if self.rebinds_mask:
            _ones = None
        cross_mask = self.padding_mask(encoder, length)
        _positions = self.decoded_positions(ids)
        if self.rebinds_position_ids:
            _position_ids = None
        norm = self.norm()
        layers = recipe.shape.layers
        segments = split_at(recipe.segments, layers)[1]

        def make(i: int) -> Block:
            return self.block(tape, recipe, mask, encoder, cross_mask)

        state = [self.embedded(_embeds, _positions, norm)]
        handed = self.handed(mask=mask, encoder=encoder)
        hidden = run_blocks(tape, segments, make, state, start=layers, handed=handed, switched=self.switched)
        return self.finished(hidden, norm)

    def handed(self, **arguments: Tensor | None) -> dict[str, Tensor | None]:
        """The positional arguments of a block beside the hidden state, where those of both stacks are checkpoints."""
        return arguments if self.switched else {}

    def mask(self, embeds: Tensor) -> Tensor | None:
        """create_causal_mask of a padding mask without padding (masking_utils.py): none for fused attention."""
        return causal_mask(embeds) if self.recipe.attention == "eager" else None

    def padding_mask(self, hidden: Tensor, queries: int | None = None) -> Tensor | None:
        """create_bidirectional_mask of the tokens of the encoder; none without padding."""
        if not self.recipe.padded:
            return None
        return padded_mask(hidden, causal=False, additive=self.recipe.attention == "eager", queries=queries)

    def words(self, ids: Tensor) -> Tensor:
        """BartScaledWordEmbedding.forward: scaled, also by 1."""
        scaled = mul_scalar(embedding(ids, self.shared, returned=False))
        return self.tape.looked_up(scaled, self.shared)

    def encoded_words(self, ids: Tensor) -> Tensor:
        """The embeddings of the encoder's tokens."""
        return self.tape.role(VirtualTokens).embedded(ids, self.words)

    def encoded_positions(self, ids: Tensor) -> Tensor:
        """Those of the encoder, which are looked up for each sample."""
        return self.look_up(self.tape.new("add", ids.shape, INT64, True))

    def position_ids(self, length: int) -> Tensor | None:
        """The places of the decoder's tokens, from which those of its table are made."""
        return self.tape.new("add", (length,), INT64, False)

    def decoded_positions(self, ids: Tensor) -> Tensor:
        """Those of the decoder, which are looked up once."""
        return self.look_up(self.tape.new("add", (1, ids.shape[1]), INT64, False))

    def look_up(self, ids: Tensor) -> Tensor:
        """BartLearnedPositionalEmbedding.forward."""
        shape = self.recipe.shape
        rows = (shape.max_positions + POSITION_OFFSET, shape.hidden_size)
        with self.tape.building(EMBEDDINGS):
            table = self.tape.parameter("embed_positions.weight", rows, self.recipe.weight_dtype)
        return embedding(ids, table)

    def embedded(self, words: Tensor, positions: Tensor, norm: LayerNorm | None) -> Tensor:
        """The state before the first block of a stack."""
        hidden = add(words, positions)
        if norm is not None:
            hidden = norm(hidden)
        return dropout(hidden, self.recipe.embedding_dropout)

    def norm(self) -> LayerNorm | None:
        """The normalisation of the embeddings."""
        if not self.norms_embeddings:
            return None
        with self.tape.building(EMBEDDINGS):
            return LayerNorm(self.tape, "layernorm_embedding", self.recipe.shape.hidden_size, self.recipe.weight_dtype)

    def finished(self, hidden: Tensor, norm: LayerNorm | None) -> Tensor:
        """The result of a stack. The norm of the embeddings is used before the blocks and registered after them, and
        optimizers step in that order.
        """
        for parameter in () if norm is None else (norm.weight, norm.bias):
            if parameter is not None:
                self.tape.parameters.remove(parameter)
                self.tape.parameters.append(parameter)
        if not self.norms_output:
            return hidden
        with self.tape.building(NORMS):
            last = LayerNorm(self.tape, "layer_norm", self.recipe.shape.hidden_size, self.recipe.weight_dtype)
        return last(hidden)


FORWARD = Bart
