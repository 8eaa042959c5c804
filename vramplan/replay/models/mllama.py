"""Llama 3.2 Vision, as transformers 5.23 computes it (models/mllama/modeling_mllama.py): some blocks of the text look
at the images, which two encoders have read, in the place of the text.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.among_text import sort_parts, vision_width
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import MLP, Rotary
from vramplan.replay.models.llama import Block as TextBlock
from vramplan.replay.models.mllama_vision import TiledVisionModel, tiles_of
from vramplan.replay.models.modules import SELECTIVE, Linear, Output, Recipe, RMSNorm, Segment, output_embedding
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.positions import Positions
from vramplan.replay.models.recomputed import Context, cached
from vramplan.replay.operators.elementwise import add, mul, tanh
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.tiles import cross_mask
from vramplan.replay.operators.views import contiguous, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Shape, Tensor
from vramplan.values.model import ModelShape

MORE_TOKENS = 8  # rows of the table beyond the vocabulary: the token of an image, and what fills it up
PARTS = ("vision_encoder", "language_model", "projector", "lm_head")

LAST = "last"  # of the blocks that look at the images


class Seen:
    """What the text blocks are given of the images: hidden states, which of them a token sees, and whether any."""

    def __init__(self, states: Tensor, mask: Tensor, rows: Tensor) -> None:
        self.states, self.mask, self.rows = states, mask, rows


class CrossAttention:
    """MllamaTextCrossAttention: grouped-query, over the images; each head of queries and keys is normalised."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", hidden, query, dtype, bias=False)
        self.k_proj = Linear(tape, "k_proj", hidden, key, dtype, bias=False)
        self.v_proj = Linear(tape, "v_proj", hidden, key, dtype, bias=False)
        self.o_proj = Linear(tape, "o_proj", query, hidden, dtype, bias=False)
        self.q_norm = RMSNorm(tape, "q_norm", shape.head_size, dtype)
        self.k_norm = RMSNorm(tape, "k_norm", shape.head_size, dtype)

    def __call__(self, hidden: Tensor, states: Tensor, mask: Tensor) -> Context:
        recipe, (batch, length, _) = self.recipe, hidden.shape
        heads, size = recipe.shape.attention_heads, recipe.shape.head_size
        rows = states.shape[0] * states.shape[1] // batch
        of_heads = (batch, rows, recipe.shape.key_value_heads, size)
        query = self.q_proj(hidden)
        query = transpose(view(query, (batch, length, heads, size)), 1, 2)
        query = self.q_norm(query)
        key = self.k_proj(states)
        value = self.v_proj(states)
        key = transpose(view(key, of_heads), 1, 2)
        value = transpose(view(value, of_heads), 1, 2)
        key = self.k_norm(key)
        key, value = cached(key, value)
        output, weights = attend(recipe, query, key, value, mask, causal=False)
        output = contiguous(view(output, (batch, length, heads * size)))
        output = self.o_proj(output)
        return output, weights


class SelfBlock(TextBlock):
    """MllamaSelfAttentionDecoderLayer; it is given what the blocks beside it look at."""

    reads = "states"
    seen: Seen
    states: Tensor


class CrossBlock:
    """MllamaCrossAttentionDecoderLayer; it is given what the blocks beside it turn by."""

    reads = "states"  # the argument beside the hidden state that needs a gradient

    def __init__(self, tape: Tape, recipe: Recipe, seen: Seen, beside: tuple[Tensor | None, ...]) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.seen, self.states, self.beside = seen, seen.states, beside
        self.cross_attn_attn_gate = tape.parameter("cross_attn_attn_gate", (1,), dtype)
        self.cross_attn_mlp_gate = tape.parameter("cross_attn_mlp_gate", (1,), dtype)
        self.cross_attn = CrossAttention(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.mlp = MLP(tape, recipe)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", width, dtype)
        tape.beside_modules(self.cross_attn_attn_gate, self.cross_attn_mlp_gate)

    def __call__(self, hidden: Tensor) -> Tensor:
        seen = self.seen
        residual = hidden
        hidden = self.input_layernorm(hidden)
        hidden, _weights = self.cross_attn(hidden, self.states, seen.mask)
        hidden = add(residual, mul(tanh(self.cross_attn_attn_gate), hidden))
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        hidden = self.mlp(hidden)
        batch, _, length, _ = seen.rows.shape
        hidden = mul(seen.rows.alias((batch, length, 1), None, None), hidden)
        hidden = add(residual, mul(tanh(self.cross_attn_mlp_gate), hidden))
        return hidden


class Mllama(Positions):
    """MllamaForConditionalGeneration, with its loss."""

    block_lists = ("language_model.layers",)
    stored_lists = ("vision_model.transformer.layers", "vision_model.global_transformer.layers")
    selective = SELECTIVE
    head_losses = ("half-logits", "chunked:N", "fused")
    equal_blocks = False  # some look at the images
    no_int8 = "the projector of its images is given more than the three dimensions that bitsandbytes multiplies in int8"
    takes_padding = takes_packing = True
    no_reentrant = (
        "Transformers asks the patches of the images for a gradient, and backward would then go through what reads "
        "them once for each block that looks at them"
    )
    no_flat_policy = "under its mixed precision a trace has more than the replay"
    no_generation = "blocks that look at the images keep keys and values of those, whatever the length of the text"
    hands_groups_on = True  # `use_gqa_in_sdpa`
    vision: type[TiledVisionModel] = TiledVisionModel

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block looks at the images."""
        return block in shape.cross_attention_layers

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building("vision_encoder"):
            self.vision_model = self.vision(tape, recipe)
        rows = shape.vocabulary_size + MORE_TOKENS
        with tape.building("language_model"), tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter("embed_tokens.weight", (rows, shape.hidden_size), dtype)
        width = vision_width(recipe) * (1 + len(shape.vision_tapped_layers))
        with tape.building("projector"):
            self.projector = Linear(tape, "multi_modal_projector", width, shape.hidden_size, dtype, bias=True)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids, labels, the tiles of an image in the dtype of the weights, its shape, which tiles have something
        of it, and which tokens see which tiles; positions of packed sequences, and with padding a mask."""
        recipe = self.recipe
        shape, tokens, tiles = recipe.shape, (recipe.sequence_length,), tiles_of(recipe.shape)
        assert recipe.image_size is not None
        assert shape.channels is not None
        given: tuple[tuple[str, Shape, DType], ...] = (
            ("input_ids", tokens, INT64),
            ("labels", tokens, INT64),
            ("pixel_values", (1, tiles, shape.channels, recipe.image_size, recipe.image_size), recipe.weight_dtype),
            ("aspect_ratio_ids", (1,), INT64),
            ("aspect_ratio_mask", (1, tiles), INT64),
            ("cross_attention_mask", (*tokens, 1, tiles), INT64),
        )
        if recipe.packed:
            given = (*given, ("position_ids", tokens, INT64))
        return (*given, ("attention_mask", tokens, INT64)) if recipe.padded else given

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies of the text, kept twice, in fp32."""
        return [4 * (self.recipe.shape.head_size // 2)] * 2

    def __call__(
        self,
        input_ids: Tensor,
        labels: Tensor,
        pixel_values: Tensor,
        ratios: Tensor,
        tiles: Tensor,
        seen: Tensor,
        given: Tensor | None = None,
    ) -> Output:
        """MllamaForConditionalGeneration.forward."""
        self.take(given)
        hidden = self.model(input_ids, pixel_values, ratios)
        with self.tape.building("lm_head"):
            weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        output = causal_lm_output(hidden, weight, labels, self.recipe)
        sort_parts(self.tape, PARTS)
        return output

    def model(self, input_ids: Tensor, pixel_values: Tensor, ratios: Tensor) -> Tensor:
        """MllamaModel.forward."""
        tape, recipe = self.tape, self.recipe
        with tape.building("vision_encoder"):
            _features = self.vision_model(pixel_values, ratios)
        _, _, tiles, places, _ = _features.shape
        states = self.projector(_features)
        states = view(states, (tape.batch * tiles, places, recipe.shape.hidden_size))
        mask, rows = cross_mask(tape, input_ids.shape[1], tiles, places, recipe.weight_dtype)
        with tape.building("language_model"):
            return self.language_model(input_ids, Seen(states, mask, rows))

    def language_model(self, input_ids: Tensor, seen: Seen) -> Tensor:
        """MllamaTextModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = embedding(input_ids, self.embed_tokens)
        hidden = _embeds
        position_ids = self.position_ids(input_ids)
        if self.packed is None:
            position_ids = tape.new("add", (1, input_ids.shape[1]), INT64, False)
        mask = mask_of(hidden, recipe)
        rotary = self.cosines_and_sines(hidden, shape.head_size)

        def is_cross(i: int) -> bool:
            return self.block_kind(shape, i)

        def block(i: int) -> TextBlock | CrossBlock:
            return self.text_block(is_cross(i), seen, mask, position_ids, rotary)

        last = max(shape.cross_attention_layers, default=None)  # the first to have a gradient of what they look at

        def make_up(i: int) -> object:
            return LAST if i == last else is_cross(i)

        segments = self.text_segments()
        hidden = run_blocks(tape, segments, block, hidden, kind=is_cross, alike=False, make_up=make_up)
        return RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)

    def text_segments(self) -> Sequence[Segment]:
        """The blocks of the text, and which are checkpoints."""
        return self.recipe.segments

    def text_block(
        self, is_cross: bool, seen: Seen, mask: Tensor | None, position_ids: Tensor, rotary: Rotary
    ) -> TextBlock | CrossBlock:
        """A block of either kind, which is given what both look at."""
        if is_cross:
            return CrossBlock(self.tape, self.recipe, seen, (mask, position_ids, *rotary))
        block = SelfBlock(self.tape, self.recipe, mask, position_ids, rotary)
        block.seen, block.states = seen, seen.states
        return block


FORWARD = Mllama
