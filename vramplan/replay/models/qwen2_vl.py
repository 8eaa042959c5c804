"""Qwen2-VL, a vision encoder whose merged patches are tokens of a Qwen2, as transformers 5.23 computes it
(models/qwen2_vl/modeling_qwen2_vl.py).

The patches of all images stand behind each other, and attention takes one image after the other. Names that start with
an underscore are locals of that code which outlive their use; they keep their tensor alive here as they do there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.models.among_text import sort_parts, vision_width
from vramplan.replay.models.blocks import FLOATS, GivenRotary, run_blocks
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Block as TextBlock
from vramplan.replay.models.llama import Rotary, eager_attention, rotate_half
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    SELECTIVE_OP,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    RMSNorm,
    Segment,
    output_embedding,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.stacks import split_at
from vramplan.replay.observers import Kernels
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, gelu, mul, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import permute
from vramplan.replay.operators.multimodal import masked_scatter, rejoined_rows
from vramplan.replay.operators.patches import conv_of_patches
from vramplan.replay.operators.ragged import each_image, ends_of_pieces, joined, unbind
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Shape, Tensor

# as the module has them, and so in the order in which optimizers step
AXES = 3  # of positions: time, height, width


def apply_rotary_vision(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb_vision: in fp32, over heads."""
    dtype = query.dtype
    query, key = to(query, FP32), to(key, FP32)
    shape = (cos.shape[0], 1, cos.shape[1])
    cos, sin = to(cos.alias(shape, None, None), FP32), to(sin.alias(shape, None, None), FP32)
    query_embed = add(mul(query, cos), mul(rotate_half(query), sin))
    key_embed = add(mul(key, cos), mul(rotate_half(key), sin))
    query_embed = to(query_embed, dtype)
    key_embed = to(key_embed, dtype)
    return query_embed, key_embed


def unsqueezed(x: Tensor) -> Tensor:
    """[N, a, d] as [1, a, N, d]: two views."""
    x = transpose(x, 0, 1)
    return view(x, (1, *x.shape))


class VisionAttention:
    """VisionAttention: one projection, and the images one by one."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = vision_width(recipe), recipe.weight_dtype
        self.recipe = recipe
        self.turned = tape.role(Kernels).rotary_of_images or apply_rotary_vision
        self.qkv = Linear(tape, "qkv", width, 3 * width, dtype, bias=True)
        self.proj = Linear(tape, "proj", width, width, dtype, bias=True)

    def __call__(self, hidden: Tensor, lengths: Sequence[int], rotary: Rotary) -> Tensor:
        rows, width = hidden.shape
        heads = self.recipe.shape.vision_attention_heads
        assert heads is not None
        query, key, value = unbind(permute(view(self.qkv(hidden), (rows, 3, heads, width // heads)), (1, 0, 2, 3)))
        query, key = self.turned(query, key, *rotary)
        query, key, value = unsqueezed(query), unsqueezed(key), unsqueezed(value)
        _outputs = each_image(query, key, value, lengths, self.attend)
        output = joined(_outputs)
        output = contiguous(view(output, (rows, width)))
        output = self.proj(output)
        return output

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """eager_attention_forward or sdpa_attention_forward of one piece."""
        attention = self.recipe.attention
        if attention == "eager":
            return eager_attention(query, key, value, None, 1, 0.0)[0]
        output = scaled_dot_product(query, key, value, attention, 0.0, causal=False)
        return contiguous(transpose(output, 1, 2))


class VisionMlp:
    """VisionMlp."""

    names = ("fc1", "fc2")

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, width, dtype = recipe.shape, vision_width(recipe), recipe.weight_dtype
        assert shape.vision_intermediate_size is not None
        assert shape.vision_activation is not None
        first, second = self.names
        self.fc1 = Linear(tape, first, width, shape.vision_intermediate_size, dtype, bias=True)
        self.fc2 = Linear(tape, second, shape.vision_intermediate_size, width, dtype, bias=True)
        self.act = ACTIVATIONS[shape.vision_activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class VisionBlock:
    """Qwen2VLVisionBlock: pre-norm."""

    norm: type[LayerNorm | RMSNorm] = LayerNorm
    feed_forward: type[Any] = VisionMlp
    floats = FLOATS

    def __init__(self, tape: Tape, recipe: Recipe, lengths: Sequence[int], held: Tensor, rotary: Rotary | None) -> None:
        width, dtype = vision_width(recipe), recipe.weight_dtype
        self.norm1 = self.norm(tape, "norm1", width, dtype)
        self.norm2 = self.norm(tape, "norm2", width, dtype)
        self.attn = VisionAttention(tape, recipe)
        self.mlp = self.feed_forward(tape, recipe)
        self.lengths = lengths
        self.cos: Tensor | None = None
        self.sin: Tensor | None = None
        if rotary is not None:
            self.cos, self.sin = rotary
        self.cu_seqlens = held  # an argument, which a checkpoint keeps

    def __call__(self, hidden: Tensor) -> Tensor:
        assert self.cos is not None
        assert self.sin is not None
        hidden = add(hidden, self.attn(self.norm1(hidden), self.lengths, (self.cos, self.sin)))
        hidden = add(hidden, self.mlp(self.norm2(hidden)))
        return hidden


class PatchMerger:
    """PatchMerger: a square of patches becomes a token."""

    norm: type[LayerNorm | RMSNorm] = LayerNorm

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, width, dtype = recipe.shape, vision_width(recipe), recipe.weight_dtype
        assert shape.vision_merge is not None
        self.width = width * shape.vision_merge**2
        self.ln_q = self.norm(tape, "ln_q", width, dtype)
        self.first = Linear(tape, "mlp.0", self.width, self.width, dtype, bias=True)
        self.second = Linear(tape, "mlp.2", self.width, shape.hidden_size, dtype, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        merged = (rows * width // self.width, self.width)
        return self.second(gelu(self.first(view(self.ln_q(x), merged))))


class VisionModel:
    """Qwen2VisionTransformerPretrainedModel."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building("vision_encoder"), tape.building(EMBEDDINGS):
            self.proj = tape.parameter("patch_embed.proj.weight", (vision_width(recipe), *shape.patch), dtype)

    def __call__(self, pixel_values: Tensor, segments: tuple[Segment, ...]) -> tuple[Tensor, Tensor]:
        """The last hidden state, and the tokens that are made of it."""
        tape, recipe = self.tape, self.recipe
        _position_ids = tape.new("cat", (pixel_values.shape[0], 2), INT64, True)
        cu_seqlens = ends_of_pieces(tape, 1)
        hidden = tape.looked_up(conv_of_patches(pixel_values, self.proj), module=(self.proj,))  # which it reads itself
        rotary = self.rotary(hidden)
        first = [hidden]  # the loop over the blocks holds no more than the latest
        del hidden
        lengths = (recipe.shape.image_patches,)
        given = GivenRotary(tape, segments, rotary)
        own = given.own
        with tape.building("vision_encoder"):
            hidden = run_blocks(
                tape,
                segments,
                lambda i: VisionBlock(tape, recipe, lengths, cu_seqlens, own),
                first,
                handed=given.handed,
            )
        with tape.building("projector"):
            self.merger = PatchMerger(tape, recipe)
        merged = self.merger(hidden)
        return hidden, merged

    def rotary(self, hidden: Tensor) -> Rotary:
        """Qwen2VLVisionRotaryEmbedding.forward: cosines and sines [N, d] in fp32, of height and width."""
        tape, rows, size = self.tape, hidden.shape[0], self.recipe.shape.vision_head_size
        quarter = (rows, 2, size // 4)
        positions = tape.new("to", (rows, 2, 1), FP32, True)
        frequencies = tape.new("mul", quarter, FP32, True)
        del positions
        cos = mul_scalar(tape.new("cos", quarter, FP32, True))
        sin = mul_scalar(tape.new("sin", quarter, FP32, True))
        del frequencies
        cos = self.recomposed(cos, size)
        sin = self.recomposed(sin, size)
        return cos, sin

    def recomposed(self, values: Tensor, size: int) -> Tensor:
        """recomposition_frequencies: both axes side by side, twice."""
        rows = values.shape[0]
        _both = self.tape.new("cat", (rows, size // 2), FP32, True)
        return self.tape.new("cat", (rows, size), FP32, True)


class Qwen2VL:
    """Qwen2VLForConditionalGeneration, with its loss."""

    block_lists = ("visual.blocks", "language_model.layers")
    hands_groups_on = True  # of the text: `use_gqa_in_sdpa`
    equal_blocks = False  # there are two stacks of them
    takes_padding = True
    head_losses = ("half-logits", "chunked:N", "fused")
    selective = SELECTIVE_OP
    takes_samples_apart = True  # each_image
    kept_of_samples = (INT64.itemsize,)  # rope_deltas
    vision: type[VisionModel] = VisionModel

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        self.visual = self.vision(tape, recipe)
        with tape.building("language_model"), tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter("embed_tokens.weight", (shape.vocabulary_size, shape.hidden_size), dtype)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids with a placeholder for each merged patch, labels, patches in the dtype of the weights, what kind
        each token is, and the grid of each image; with padding a mask."""
        recipe = self.recipe
        shape, tokens = recipe.shape, (recipe.sequence_length,)
        of_patch = 1
        for n in shape.patch:
            of_patch *= n
        given = (
            ("input_ids", tokens, INT64),
            ("labels", tokens, INT64),
            ("pixel_values", (shape.image_patches, of_patch), recipe.weight_dtype),
            ("mm_token_type_ids", tokens, INT64),
            ("image_grid_thw", (AXES,), INT64),
        )
        return (*given, ("attention_mask", tokens, INT64)) if recipe.padded else given

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies of images and of text, kept twice, in fp32."""
        shape = self.recipe.shape
        return [*[4 * (shape.vision_head_size // 4)] * 2, *[4 * (shape.head_size // 2)] * 2]

    def __call__(
        self,
        input_ids: Tensor,
        labels: Tensor,
        pixel_values: Tensor,
        token_types: Tensor,
        grid: Tensor,
        given: Tensor | None = None,
    ) -> Output:
        """Qwen2VLForConditionalGeneration.forward."""
        hidden = self.model(input_ids, pixel_values)
        with self.tape.building("lm_head"):
            weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        output = causal_lm_output(hidden, weight, labels, self.recipe)
        sort_parts(self.tape)
        return output

    def model(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        """Qwen2VLModel.forward: the images' rows take the places of their tokens."""
        tape, recipe = self.tape, self.recipe
        vision, text = split_at(recipe.segments, recipe.shape.stacks[0])
        embeds = embedding(input_ids, self.embed_tokens)
        _last, _merged = self.visual(rows_of(pixel_values), vision)
        images = rejoined_rows(_merged)
        images = to(images, embeds.dtype)
        _mask = tape.new("eq", input_ids.shape, BOOL, True)
        _videos = tape.new("eq", input_ids.shape, BOOL, True)
        embeds = masked_scatter(embeds, _mask, images)
        _position_ids = tape.new("zeros", (AXES, *input_ids.shape), INT64, True)
        with tape.building("language_model"):
            return self.language_model(embeds, text)

    def language_model(self, embeds: Tensor, segments: tuple[Segment, ...]) -> Tensor:
        """Qwen2VLTextModel.forward, from embeddings."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        mask = mask_of(embeds, recipe)
        hidden = embeds
        rotary = self.rotary(hidden)
        hidden = run_blocks(
            tape, segments, lambda i: TextBlock(tape, recipe, mask, None, rotary), hidden, start=shape.stacks[0]
        )
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden

    def rotary(self, hidden: Tensor) -> Rotary:
        """Qwen2VLRotaryEmbedding.forward: cosines and sines [B, S, d], each frequency of one of the three axes."""
        tape, (batch, length, _), size = self.tape, hidden.shape, self.recipe.shape.head_size
        half = (AXES, batch, length, size // 2)
        positions = tape.new("to", (AXES, batch, length, 1), FP32, True)
        frequencies = tape.new("mul", half, FP32, True)
        del positions
        cos = mul_scalar(tape.new("cos", half, FP32, True))
        sin = mul_scalar(tape.new("sin", half, FP32, True))
        sin = self.recomposed(sin, size)
        cos = self.recomposed(cos, size)
        del frequencies
        return to(cos, hidden.dtype), to(sin, hidden.dtype)

    def recomposed(self, values: Tensor, size: int) -> Tensor:
        """recomposition_frequencies: a section of each axis, twice."""
        _, batch, length, _ = values.shape
        _sections = self.tape.new("cat", (batch, length, size // 2), FP32, True)
        return self.tape.new("cat", (batch, length, size), FP32, True)


def rows_of(pixel_values: Tensor) -> Tensor:
    """The patches of all images, one row each: the processor gives them so."""
    batch, patches, elements = pixel_values.shape
    return pixel_values.alias((batch * patches, elements), None, None)


FORWARD = Qwen2VL
