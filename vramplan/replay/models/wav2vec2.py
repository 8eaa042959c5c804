"""Wav2Vec2 and HuBERT with a head for CTC, as transformers 5.23 computes them (models/wav2vec2/modeling_wav2vec2.py,
models/hubert/modeling_hubert.py): convolutions over the samples of a sound, one that tells places, and blocks that
normalise before or after.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.asked import asked
from vramplan.replay.models import bart
from vramplan.replay.models.blocks import each_is_a_checkpoint, run_blocks
from vramplan.replay.models.checkpointed import Checkpointed
from vramplan.replay.models.modules import ACTIVATIONS, LOGITS, SELECTIVE, LayerNorm, Linear, Output, Recipe
from vramplan.replay.models.part_names import HEAD, NORMS
from vramplan.replay.observers import Trained
from vramplan.replay.operators.convolution import conv1d
from vramplan.replay.operators.elementwise import add, dropout, gelu
from vramplan.replay.operators.indexing import unsqueeze
from vramplan.replay.operators.normalised import log_softmax
from vramplan.replay.operators.views import narrow, to, transpose
from vramplan.replay.operators.waveforms import ctc_loss, group_norm, letters, mask_rows, sum_all, weight_norm
from vramplan.replay.recorder import ASKED_VIEW, Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Parameter, Shape, Tensor
from vramplan.values.model import ModelShape

FEATURES = "feature_extractor"  # the part that `freeze_feature_encoder` freezes


class Convolution:
    """Wav2Vec2GroupNormConvLayer, Wav2Vec2LayerNormConvLayer or Wav2Vec2NoLayerNormConvLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, number: int) -> None:
        sound, dtype = recipe.shape.waveform, recipe.weight_dtype
        assert sound is not None
        inputs, outputs = sound.widths[number - 1] if number else 1, sound.widths[number]
        self.stride, self.outputs = sound.strides[number], outputs
        self.weight = tape.parameter("conv.weight", (outputs, inputs, sound.kernels[number]), dtype)
        self.bias = tape.parameter("conv.bias", (outputs,), dtype) if sound.bias else None
        self.norm: Callable[[Tensor], Tensor] | None = None
        if sound.norm == "layer":
            norm = LayerNorm(tape, "layer_norm", outputs, dtype)
            self.norm = lambda hidden: transpose(norm(transpose(hidden, 1, 2)), 1, 2)
        elif number == 0:
            with tape.building(NORMS):
                scale = tape.parameter("layer_norm.weight", (outputs,), dtype)
                shift = tape.parameter("layer_norm.bias", (outputs,), dtype)
            self.norm = lambda hidden: group_norm(hidden, scale, shift, outputs)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = conv1d(hidden, self.weight, self.bias, stride=self.stride)
        if self.norm is not None:
            hidden = self.norm(hidden)
        hidden = gelu(hidden)
        return hidden


class FeedForward:
    """Wav2Vec2FeedForward."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.act = ACTIVATIONS[shape.activation]
        self.inner_p, self.p = recipe.activation_dropout, recipe.hidden_dropout
        width, inside = shape.hidden_size, shape.intermediate_size
        self.intermediate_dense = Linear(tape, "intermediate_dense", width, inside, dtype, bias=True)
        self.output_dense = Linear(tape, "output_dense", inside, width, dtype, bias=True)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.intermediate_dense(hidden)
        hidden = self.act(hidden)
        hidden = dropout(hidden, self.inner_p)
        hidden = self.output_dense(hidden)
        hidden = dropout(hidden, self.p)
        return hidden


class Block:
    """Wav2Vec2EncoderLayer, or Wav2Vec2EncoderLayerStableLayerNorm, which normalises before."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p, self.pre_norm = recipe.hidden_dropout, recipe.shape.pre_norm
        self.attention = bart.Attention(tape, recipe)
        self.layer_norm = LayerNorm(tape, "layer_norm", width, dtype)
        self.feed_forward = FeedForward(tape, recipe)
        self.final_layer_norm = LayerNorm(tape, "final_layer_norm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        if self.pre_norm:
            hidden = self.layer_norm(hidden)
        hidden, _weights = self.attention(hidden, None)
        hidden = dropout(hidden, self.p)
        hidden = add(residual, hidden)
        if self.pre_norm:
            return add(hidden, self.feed_forward(self.final_layer_norm(hidden)))
        hidden = self.layer_norm(hidden)
        hidden = add(hidden, self.feed_forward(hidden))
        hidden = self.final_layer_norm(hidden)
        return hidden


class Places:
    """Wav2Vec2PositionalConvEmbedding: a convolution in groups, whose weight is a direction and a size."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        sound, width, dtype = recipe.shape.waveform, recipe.shape.hidden_size, recipe.weight_dtype
        assert sound is not None
        self.kernel, self.groups = sound.place_kernel, sound.place_groups
        with tape.building("pos_conv_embed"):
            self.bias = tape.parameter("conv.bias", (width,), dtype)
            kernel = (width, width // self.groups, self.kernel)
            self.size = tape.parameter("conv.parametrizations.weight.original0", (1, 1, self.kernel), dtype)
            self.direction = tape.parameter("conv.parametrizations.weight.original1", kernel, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = transpose(hidden, 1, 2)
        weight = weight_norm(self.direction, self.size)
        hidden = conv1d(hidden, weight, self.bias, stride=1, padding=self.kernel // 2, groups=self.groups)
        del weight
        if self.kernel % 2 == 0:
            hidden = narrow(hidden, 2, hidden.shape[2] - 1)
        hidden = gelu(hidden)
        return transpose(hidden, 1, 2)


class Wav2Vec2:
    """Wav2Vec2ForCTC or HubertForCTC, with its loss."""

    selective: tuple[str, ...] = SELECTIVE
    asks_no_inputs = True  # the switch for checkpoints asks tables alone of models that are given token ids first

    @staticmethod
    def no_int8(shape: ModelShape) -> str | None:
        """PyTorch refuses to write masked frames into what the function of bitsandbytes gave, which nothing copied."""
        sound = shape.waveform
        if sound is None or not (sound.masks and sound.masked_share) or sound.projection_dropout:
            return None
        return (
            "frames are masked in place in what its projection gave, which PyTorch refuses (apply_spec_augment: false)"
        )

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.tape, self.recipe = tape, recipe
        sound, shape, dtype = recipe.shape.waveform, recipe.shape, recipe.weight_dtype
        assert sound is not None
        self.sound, self.is_hubert = sound, shape.transformers_model_type == "hubert"
        self.masked: Parameter | None = None
        if sound.masked_share:
            self.masked = tape.parameter("masked_spec_embed", (shape.hidden_size,), dtype)

    def buffers(self) -> list[int]:
        """There are none."""
        return []

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """The samples of a sound in the dtype of the weights, and the letters that are said."""
        recipe = self.recipe
        letters_of = recipe.target_length or 1
        given = ("input_values", (recipe.sequence_length,), recipe.weight_dtype)
        return given, ("labels", (letters_of,), INT64)

    def __call__(self, samples: Tensor, labels: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        _hidden, _features = self.encode(samples)
        hidden = dropout(_hidden, self.sound.final_dropout)
        with tape.building(HEAD):
            lm_head = Linear(
                tape, "lm_head", recipe.shape.hidden_size, recipe.shape.vocabulary_size, recipe.weight_dtype, bias=True
            )
        logits = lm_head(hidden)
        if recipe.loss == LOGITS:
            return Output(None, logits)
        _mask = tape.new("ones_like", samples.shape, INT64, True)
        frames = self.lengths(samples.shape[0])
        targets, lengths, _letters = letters(labels)
        probabilities = transpose(log_softmax(logits, FP32), 0, 1)
        loss = sum_all(ctc_loss(probabilities, targets, frames, lengths))
        return Output(loss, logits)

    def lengths(self, batch: int) -> Tensor:
        """_get_feat_extract_output_lengths of a mask: how many frames each sound has."""
        tape = self.tape
        found = tape.new("sum", (batch,), INT64, True)
        for _ in self.sound.widths:
            less = tape.new("sub", (batch,), INT64, True)
            divided = tape.new("div", (batch,), INT64, True)
            del less
            found = tape.new("add", (batch,), INT64, True)
            del divided
        return found

    def encode(self, samples: Tensor) -> tuple[Tensor, Tensor | None]:
        """Wav2Vec2Model.forward: the hidden state, and the features that are returned beside it."""
        tape, recipe, sound = self.tape, self.recipe, self.sound
        _extracted = transpose(self.extract(samples), 1, 2)
        with tape.building("feature_projection"):
            norm = (
                LayerNorm(tape, "layer_norm", sound.widths[-1], recipe.weight_dtype) if sound.projection_norm else None
            )
            projection = Linear(
                tape, "projection", sound.widths[-1], recipe.shape.hidden_size, recipe.weight_dtype, bias=True
            )
        _normed = _extracted if norm is None else norm(_extracted)
        if not self.is_hubert:
            _extracted = _normed
        hidden = dropout(projection(_normed), sound.projection_dropout)
        if self.is_hubert:
            del _normed
        _masked = self.mask(hidden)
        del hidden
        with tape.building("encoder"):
            encoded = self.run(_masked)
        return encoded, None if self.is_hubert else _extracted

    def extract(self, samples: Tensor) -> Tensor:
        """Wav2Vec2FeatureEncoder.forward: the input is asked for its gradient unless `freeze_feature_encoder` was."""
        tape, recipe = self.tape, self.recipe
        layers = []
        with tape.building(FEATURES), tape.building("conv_layers"):
            start = len(tape.parameters)
            for number in range(len(self.sound.widths)):
                with tape.building(str(number)):
                    layers.append(Convolution(tape, recipe, number))
            trained = any(one.node is not None for one in tape.parameters[start:])
        hidden = unsqueeze(samples, 1)
        if not tape.no_grad and (trained or tape.role(Trained).adapter is not None):
            hidden = asked(hidden, ASKED_VIEW)
        for layer in layers:
            is_checkpoint = each_is_a_checkpoint(recipe.segments)
            run = Checkpointed(tape, layer, (), recipe.segments[0].selects) if is_checkpoint else layer
            hidden = run(hidden)
        return hidden

    def mask(self, hidden: Tensor) -> Tensor:
        """_mask_hidden_states: one learned vector in the place of some frames."""
        sound, tape = self.sound, self.tape
        if self.masked is None or not sound.masks:
            return hidden
        batch, frames, _ = hidden.shape
        mask = tape.new("to", (batch, frames), BOOL, True)
        vector = to(self.masked, hidden.dtype)
        is_view = not sound.projection_dropout
        return mask_rows(hidden, mask, vector, sound.masked(frames), is_view=is_view)

    def run(self, hidden: Tensor) -> Tensor:
        """Wav2Vec2Encoder.forward, or Wav2Vec2EncoderStableLayerNorm's."""
        tape, recipe = self.tape, self.recipe
        places = Places(tape, recipe)
        norm = LayerNorm(tape, "layer_norm", recipe.shape.hidden_size, recipe.weight_dtype)
        _places = places(hidden)
        hidden = add(hidden, _places)
        if not recipe.shape.pre_norm:
            hidden = norm(hidden)
        state = [dropout(hidden, recipe.embedding_dropout)]
        del hidden
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe), state)
        return norm(hidden) if recipe.shape.pre_norm else hidden


FORWARD = Wav2Vec2
