"""Whisper with its language-model head, as transformers 5.23 computes it (models/whisper/modeling_whisper.py): two
convolutions over the frames of a sound, two stacks of blocks that normalise first, learned positions.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import bart
from vramplan.replay.models.blocks import each_is_a_checkpoint, run_blocks
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.gpt2 import causal_mask
from vramplan.replay.models.modules import LOGITS, SELECTIVE, LayerNorm, Output, Recipe, times_head
from vramplan.replay.models.part_names import EMBEDDINGS, NORMS
from vramplan.replay.models.recomputed import recomputable
from vramplan.replay.models.stacks import shift_right, split_at
from vramplan.replay.operators.convolution import conv1d
from vramplan.replay.operators.elementwise import add, dropout, gelu, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.sinks import rows_of_table
from vramplan.replay.operators.views import contiguous, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Parameter, Shape, Tensor

KERNEL, STRIDE = 3, 2  # of the convolutions; the second one takes every other frame


class Attention(bart.Attention):
    """WhisperAttention: of a sequence to itself, or to what the encoder gave."""

    key_bias = False

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, key_value: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        recipe, (batch, length, width) = self.recipe, hidden.shape
        heads, size = recipe.shape.attention_heads, recipe.shape.head_size
        query = mul_scalar(self.q_proj(hidden))
        query = contiguous(transpose(view(query, (batch, length, heads, size)), 1, 2))
        current = hidden if key_value is None else key_value
        kv_shape = (batch, current.shape[1], heads, size)
        key = contiguous(transpose(view(self.k_proj(current), kv_shape), 1, 2))
        value = contiguous(transpose(view(self.v_proj(current), kv_shape), 1, 2))
        output, weights = recomputable(recipe, self.core, query, key, value, mask)
        output = contiguous(view(output, (batch, length, width)))
        output = self.out_proj(output)
        return output, weights


class Block(bart.PreNormBlock):
    """WhisperEncoderLayer, or WhisperDecoderLayer with the encoder's result."""

    attention = Attention


class Whisper:
    """WhisperForConditionalGeneration, with its loss."""

    block_lists = ("encoder.layers", "decoder.layers")
    reads_first_stack = True
    selective = SELECTIVE
    equal_blocks = False  # of two stacks
    no_flat_training = "a flat parameter cannot hold its frozen position embeddings beside trained weights"
    asks_no_inputs = True  # the switch for checkpoints asks tables alone of models that are given token ids first
    no_rounded_tables = "whose positions are rows of a weight, not looked up in a table (WhisperPositionalEmbedding)"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.tape, self.recipe = tape, recipe

    def buffers(self) -> list[int]:
        """There are none."""
        return []

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """The frames of a sound in the dtype of the weights, and labels, which the decoder's token ids are made from.

        Where the caller makes the loss of the logits the collator made the ids.
        """
        recipe, shape = self.recipe, self.recipe.shape
        assert shape.mel_bins is not None
        assert shape.audio_positions is not None
        frames = (shape.mel_bins, STRIDE * shape.audio_positions)
        given = ("input_features", frames, recipe.weight_dtype), ("labels", (recipe.sequence_length,), INT64)
        if recipe.loss == LOGITS:
            return *given, ("decoder_input_ids", (recipe.sequence_length,), INT64)
        return given

    def __call__(self, features: Tensor, labels: Tensor, *more: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        decoder_ids = more[0] if recipe.loss == LOGITS else shift_right(labels)
        with tape.building("encoder"):
            _encoder_outputs = self.encode(features)
        with tape.building("decoder"):
            _outputs, table = self.decode(decoder_ids, _encoder_outputs)
        logits = times_head(_outputs, table)
        if recipe.loss == LOGITS:
            return Output(None, (logits, _encoder_outputs))
        batch, length, vocabulary = logits.shape
        rows = view(logits, (batch * length, vocabulary))
        loss = entropy(rows, view(labels, (batch * length,)), recipe)
        return Output(loss, (logits, _encoder_outputs))

    def encode(self, features: Tensor) -> Tensor:
        """WhisperEncoder.forward: every sound is as long."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        assert shape.mel_bins is not None
        assert shape.audio_positions is not None
        with tape.building(EMBEDDINGS):
            first = self.convolution("conv1", shape.mel_bins)
            second = self.convolution("conv2", width)
            size = (shape.audio_positions, width)
            table = tape.parameter("embed_positions.weight", size, dtype, trainable=False)
        _embeds = gelu(tape.looked_up(conv1d(features, *first, stride=1, padding=1), module=first))
        _embeds = gelu(conv1d(_embeds, *second, stride=STRIDE, padding=1))
        _embeds = transpose(_embeds, 1, 2)
        _places = tape.new("arange", (shape.audio_positions,), INT64, False)
        embedded = [dropout(add(_embeds, embedding(_places, table, returned=False)), recipe.embedding_dropout)]
        segments = split_at(recipe.segments, shape.layers)[0]

        def make(i: int) -> Block:
            return Block(tape, recipe, None)

        hidden = run_blocks(tape, segments, make, embedded, switched=each_is_a_checkpoint(recipe.segments))
        return self.norm()(hidden)

    def convolution(self, name: str, channels: int) -> tuple[Parameter, Parameter]:
        """Weight and bias of one of the two."""
        width, dtype = self.recipe.shape.hidden_size, self.recipe.weight_dtype
        weight = self.tape.parameter(f"{name}.weight", (width, channels, KERNEL), dtype)
        return weight, self.tape.parameter(f"{name}.bias", (width,), dtype)

    def decode(self, ids: Tensor, encoder: Tensor) -> tuple[Tensor, Parameter]:
        """WhisperDecoder.forward: positions are looked up for each sample; and the table of the tokens."""
        tape, recipe = self.tape, self.recipe
        shape, dtype = recipe.shape, recipe.weight_dtype
        batch, length = ids.shape
        with tape.building(EMBEDDINGS):
            table = tape.parameter("embed_tokens.weight", (shape.vocabulary_size, shape.hidden_size), dtype)
            places = tape.parameter("embed_positions.weight", (shape.max_positions, shape.hidden_size), dtype)
        _embeds = tape.looked_up(embedding(ids, table, returned=False), table)
        arange = tape.new("arange", (length,), INT64, False)
        _positions = tape.new("add", (length,), INT64, False)
        del arange
        _positions = tape.new("repeat", (batch, length), INT64, True)
        _rows = rows_of_table(places, _positions)
        state = [dropout(add(_embeds, _rows), recipe.embedding_dropout)]
        mask = causal_mask(_embeds) if recipe.attention == "eager" else None
        segments = split_at(recipe.segments, shape.layers)[1]

        def make(i: int) -> Block:
            return Block(tape, recipe, mask, encoder)

        # the positional arguments of a block, where those of both stacks are checkpoints
        switched = each_is_a_checkpoint(recipe.segments)
        handed = {"mask": mask, "encoder": encoder} if switched else {}
        hidden = run_blocks(tape, segments, make, state, start=shape.layers, handed=handed, switched=switched)
        return self.norm()(hidden), table

    def norm(self) -> LayerNorm:
        """The normalisation behind the blocks of a stack."""
        with self.tape.building(NORMS):
            return LayerNorm(self.tape, "layer_norm", self.recipe.shape.hidden_size, self.recipe.weight_dtype)


FORWARD = Whisper
