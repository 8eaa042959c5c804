"""SigLIP, two encoders and a loss of each pair by itself over the micro-batch, or its vision encoder with a classifier,
as transformers 5.23 computes it (models/siglip/modeling_siglip.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models import clip
from vramplan.replay.models.among_text import sort_parts
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.clip import Attention, FeedForward, Tower, vision_tower
from vramplan.replay.models.entropy import entropy
from vramplan.replay.models.modules import LOGITS, LayerNorm, Linear, Output, Recipe, Segment
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.stacks import split_at
from vramplan.replay.models.vit import labelled_images
from vramplan.replay.operators.alternating import mean_over
from vramplan.replay.operators.contrastive import div, exp, repeat_samples, similarities, vector_norm
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add, mul, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import split_along
from vramplan.replay.operators.loss_parts import log_sigmoid, sum_last
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import linear, matmul
from vramplan.replay.operators.views import contiguous, narrow, select, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, SQUARED, DType, Shape, Tensor
from vramplan.values.model import ModelShape

# as the module has them, and so in the order in which optimizers step
PARTS = ("logit_scale", "text_encoder", "vision_encoder", "head")


class Block:
    """SiglipEncoderLayer: pre-norm; no token is masked."""

    def __init__(self, tape: Tape, tower: Tower) -> None:
        self.layer_norm1 = LayerNorm(tape, "layer_norm1", tower.hidden_size, tower.dtype)
        self.self_attn = Attention(tape, tower)
        self.layer_norm2 = LayerNorm(tape, "layer_norm2", tower.hidden_size, tower.dtype)
        self.mlp = FeedForward(tape, tower)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.layer_norm1(hidden)
        hidden, _ = self.self_attn(hidden, None)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.layer_norm2(hidden)
        hidden = self.mlp(hidden)
        hidden = add(residual, hidden)
        return hidden


class VisionModel:
    """SiglipVisionModel without a head."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        assert shape.patch_size is not None
        assert shape.channels is not None
        self.tape, self.tower, self.patch, self.positions = (
            tape,
            vision_tower(recipe),
            shape.patch_size,
            shape.image_patches,
        )
        # of a model of images alone no such gradient is asked: modeling_utils.py, gradient_checkpointing_enable
        self.is_asked = shape.takes_text
        width = self.tower.hidden_size
        with tape.building(EMBEDDINGS):
            patch = (width, shape.channels, self.patch, self.patch)
            self.patch_embedding = tape.parameter("patch_embedding.weight", patch, dtype)
            self.patch_bias = tape.parameter("patch_embedding.bias", (width,), dtype)
            self.position_embedding = tape.parameter("position_embedding.weight", (self.positions, width), dtype)

    def __call__(
        self, pixel_values: Tensor, segments: tuple[Segment, ...], head: Callable[[Tensor], object] | None = None
    ) -> Tensor:
        """The last hidden state, of which a head makes something else while the embeddings are still there."""
        return self.with_hidden_state(pixel_values, segments, head)[1]

    def with_hidden_state(
        self, pixel_values: Tensor, segments: tuple[Segment, ...], head: Callable[[Tensor], object] | None = None
    ) -> tuple[Tensor, Tensor, int]:
        """The same, before it what the last block gives, and after how many nodes that is there."""
        tape, tower = self.tape, self.tower
        _hidden = self.embed(pixel_values)
        selected = run_blocks(tape, segments, lambda i: Block(tape, tower), _hidden)
        first = len(tape.nodes)
        last = LayerNorm(tape, "post_layernorm", tower.hidden_size, tower.dtype)(selected)
        if head is not None:
            head(last)
        return selected, last, first

    def embed(self, pixel_values: Tensor) -> Tensor:
        """SiglipVisionEmbeddings.forward."""
        _patches = conv2d(pixel_values, self.patch_embedding, self.patch_bias, stride=self.patch)
        if self.is_asked:
            _patches = self.tape.looked_up(_patches, module=(self.patch_embedding, self.patch_bias))
        batch, width, rows, columns = _patches.shape
        embeddings = transpose(view(_patches, (batch, width, rows * columns)), 1, 2)
        ids = self.tape.constant((1, self.positions), INT64, False)
        return add(embeddings, embedding(ids, self.position_embedding, returned=False))


class ReadLinear(Linear):
    """NonDynamicallyQuantizableLinear, whose weight MultiheadAttention reads itself: Transformers leaves it whole."""

    quantizes = False


class PoolingHead:
    """SiglipMultiheadAttentionPoolingHead: one query of its own looks at all patches.

    Source: torch/nn/modules/activation.py, MultiheadAttention.forward; torch/nn/functional.py,
    multi_head_attention_forward with `need_weights`, whose mean over the heads nobody uses.
    """

    def __init__(self, tape: Tape, tower: Tower) -> None:
        width, dtype = tower.hidden_size, tower.dtype
        self.tape, self.heads = tape, tower.attention_heads
        self.probe = tape.parameter("probe", (1, 1, width), dtype)
        self.in_weight = tape.parameter("in_proj_weight", (3 * width, width), dtype)
        self.in_bias = tape.parameter("in_proj_bias", (3 * width,), dtype)
        self.out_proj = ReadLinear(tape, "attention.out_proj", width, width, dtype, bias=True)
        self.layernorm = LayerNorm(tape, "layernorm", width, dtype)
        self.mlp = FeedForward(tape, tower)

    def __call__(self, hidden: Tensor) -> Tensor:
        _probe = repeat_samples(self.probe, hidden.shape[0])
        hidden = self.attend(_probe, hidden)
        _residual = hidden
        hidden = self.layernorm(hidden)
        hidden = add(_residual, self.mlp(hidden))
        return select(hidden, 1)

    def attend(self, probe: Tensor, hidden: Tensor) -> Tensor:
        """The result [B, 1, P] of patches [B, S, P]."""
        batch, length, width = hidden.shape
        heads, size = batch * self.heads, width // self.heads
        query, key, value = self.projected(transpose(probe, 0, 1), transpose(hidden, 0, 1))
        query = mul_scalar(transpose(view(query, (1, heads, size)), 0, 1))
        key = transpose(view(key, (length, heads, size)), 0, 1)
        value = transpose(view(value, (length, heads, size)), 0, 1)
        weights = matmul(query, transpose(key, 1, 2))
        del query, key
        weights = softmax(weights)
        output = matmul(weights, value)
        del value
        output = view(transpose(output, 0, 1), (batch, width))
        output = linear(output, self.out_proj.weight, self.out_proj.bias)
        output = view(output, (1, batch, width))
        _mean = mean_over(view(weights, (batch, self.heads, 1, length)), 1)
        return transpose(output, 0, 1)

    def projected(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """_in_projection_packed, where keys and values are made of the same tensor."""
        width = query.shape[-1]
        length, batch, _ = key.shape
        weight_q, weight_kv = split_along(self.in_weight, (width, 2 * width), 0)
        bias_q, bias_kv = split_along(self.in_bias, (width, 2 * width), 0)
        queries = linear(query, weight_q, bias_q)
        both = linear(key, weight_kv, bias_kv)
        both = view(both, (length, batch, 2, width))
        both = contiguous(transpose(transpose(both, 1, 2), 0, 1))
        return queries, select(both, 0), select(both, 0)


class TextModel(clip.TextModel):
    """SiglipTextModel."""

    def __call__(self, input_ids: Tensor, segments: tuple[Segment, ...], start: int) -> tuple[Tensor, Tensor]:
        """The last hidden state, and its last token projected."""
        tape, tower = self.tape, self.tower
        hidden = self.embed(input_ids)
        _outputs = run_blocks(tape, segments, lambda i: Block(tape, tower), hidden, start=start)
        last = LayerNorm(tape, "final_layer_norm", tower.hidden_size, tower.dtype)(_outputs)
        assert self.recipe.shape.projection_size is not None
        size = self.recipe.shape.projection_size
        head = Linear(tape, "head", tower.hidden_size, size, tower.dtype, bias=True)
        return last, head(select(last, 1))

    def embed(self, input_ids: Tensor) -> Tensor:
        """SiglipTextEmbeddings.forward."""
        _words = embedding(input_ids, self.token_embedding)
        ids = narrow(self.tape.constant((1, self.recipe.shape.max_positions), INT64, False), 1, input_ids.shape[1])
        _positions = embedding(ids, self.position_embedding)
        return add(_words, _positions)


class Siglip:
    """SiglipModel or SiglipForImageClassification, with its loss."""

    equal_blocks = False  # there may be two stacks of them

    @staticmethod
    def lists_of(shape: ModelShape) -> tuple[str, ...]:
        """Those of the images, and beside them those of the text."""
        return ("vision_model.encoder.layers", "text_model.encoder.layers")[: len(shape.stacks)]

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.tape, self.recipe = tape, recipe
        if recipe.shape.takes_text:
            with tape.building("text_encoder"):
                self.text_model = TextModel(tape, recipe)
        with tape.building("vision_encoder"):
            self.vision_model = VisionModel(tape, recipe)
        if recipe.shape.takes_text:
            with tape.building("logit_scale"):
                self.logit_scale = tape.parameter("logit_scale", (1,), recipe.weight_dtype)
                self.logit_bias = tape.parameter("logit_bias", (1,), recipe.weight_dtype)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """An image in the dtype of the weights, to which the model would cast it, and a text or a class."""
        image, labels = labelled_images(self.recipe)
        if not self.recipe.shape.takes_text:
            return image, labels
        return image, ("input_ids", (self.recipe.sequence_length,), INT64)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: positions of the text and of the patches, int64."""
        shape = self.recipe.shape
        return [8 * shape.max_positions, 8 * shape.image_patches][not shape.takes_text :]

    def __call__(self, pixel_values: Tensor, other: Tensor) -> Output:
        """What the task asks of the vision encoder."""
        if self.recipe.shape.takes_text:
            output = self.compared(pixel_values, other)
        else:
            output = self.classified(pixel_values, other)
        sort_parts(self.tape, PARTS)
        return output

    def vision(self, pixel_values: Tensor, segments: tuple[Segment, ...]) -> tuple[Tensor, Tensor, int]:
        """SiglipVisionModel.forward: the last hidden state, what is pooled from it, and after how many nodes."""
        tape = self.tape
        found: list[tuple[Tensor, int]] = []

        def pool(last: Tensor) -> None:
            first = len(tape.nodes)
            found.append((PoolingHead(tape, self.vision_model.tower)(last), first))

        with tape.building("vision_encoder"):
            last = self.vision_model(pixel_values, segments, pool)
        ((pooled, first),) = found
        return last, pooled, first

    def classified(self, pixel_values: Tensor, labels: Tensor) -> Output:
        """SiglipForImageClassification.forward: the mean of the patches; what is pooled lives on unused."""
        tape, recipe = self.tape, self.recipe
        _last, _pooled, first = self.vision(pixel_values, recipe.segments)
        dead = first, len(tape.nodes)
        mean = mean_over(_last, 1)
        with tape.building("head"):
            width, classes = mean.shape[-1], recipe.shape.classes
            classifier = Linear(tape, "classifier", width, classes, recipe.weight_dtype, bias=True)
        logits = classifier(mean)
        loss = None if recipe.loss == LOGITS else entropy(logits, labels, recipe)
        tape.abandon(*dead)
        return Output(loss, logits)

    def compared(self, pixel_values: Tensor, input_ids: Tensor) -> Output:
        """SiglipModel.forward."""
        vision, text = split_at(self.recipe.segments, self.vision_model.tower.layers)
        images, image_embeds, _ = self.vision(pixel_values, vision)
        with self.tape.building("text_encoder"):
            texts, text_embeds = self.text_model(input_ids, text, self.vision_model.tower.layers)
        _image_output, _text_output = image_embeds, text_embeds
        image_embeds = div(image_embeds, vector_norm(image_embeds))
        text_embeds = div(text_embeds, vector_norm(text_embeds))
        logits = similarities(text_embeds, transpose(image_embeds, 0, 1))
        logits = add(mul(logits, exp(self.logit_scale)), self.logit_bias)
        loss = self.loss(logits)
        return Output(loss, (logits, image_embeds, text_embeds, images, texts, _image_output, _text_output))

    def loss(self, logits: Tensor) -> Tensor:
        """Whether each text belongs to each image, of all pairs of the micro-batch."""
        tape, pairs = self.tape, logits.shape
        _eye = tape.new("eye", pairs, FP32, SQUARED)
        ones = tape.like("ones_like", logits)
        negative = tape.like("neg", ones)
        del ones
        twice = tape.like("mul", _eye)
        _signs = tape.like("add", _eye)
        del negative, twice
        _log_likelihood = log_sigmoid(mul(_signs, logits))
        _likelihood = mul_scalar(sum_last(_log_likelihood))
        return mean_over(_likelihood, 0)


FORWARD = Siglip
