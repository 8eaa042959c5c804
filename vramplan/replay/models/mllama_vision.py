"""The two vision encoders of Llama 3.2 Vision, as transformers 5.23 computes them (models/mllama/modeling_mllama.py):
an image is tiles of patches, which attention takes all at once; the blocks of the second encoder are gated.

Transformers' switch for checkpoints reaches no block of either, so each is stored.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.among_text import vision_width
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.clip import joined, positions_of
from vramplan.replay.models.llama import eager_attention
from vramplan.replay.models.modules import ACTIVATIONS, LayerNorm, Linear, Recipe, Segment
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.recomputed import Context, recomputable
from vramplan.replay.observers import Outer
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.contrastive import spread
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add, mul, mul_scalar, tanh
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import stack_last
from vramplan.replay.operators.tiles import pad_rows, tile_mask
from vramplan.replay.operators.views import cat, contiguous, narrow, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape

ROWS = 8  # a tile is padded to a multiple of so many rows
LOCAL, GLOBAL = "transformer", "global_transformer"


def ratios_of(tiles: int) -> int:
    """Rows of a table that has one for each shape of an image of at most so many tiles, and one for none."""
    return 1 + sum(tiles // width for width in range(1, tiles + 1))


class VisionAttention:
    """MllamaVisionAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = vision_width(recipe), recipe.weight_dtype
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=False)
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=False)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=False)
        self.o_proj = Linear(tape, "o_proj", width, width, dtype, bias=False)

    def __call__(self, hidden: Tensor, mask: Tensor) -> Context:
        heads = self.recipe.shape.vision_attention_heads
        assert heads is not None
        batch, length, width = hidden.shape
        of_heads = (batch, length, heads, width // heads)
        query = self.q_proj(hidden)
        key = self.k_proj(hidden)
        value = self.v_proj(hidden)
        query = transpose(view(query, of_heads), 1, 2)
        key = transpose(view(key, of_heads), 1, 2)
        value = transpose(view(value, of_heads), 1, 2)
        output, weights = recomputable(self.recipe, self.core, query, key, value, mask)
        output = contiguous(view(output, (batch, length, width)))
        output = self.o_proj(output)
        return output, weights

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Context:
        """eager_attention_forward or sdpa_attention_forward; nothing is dropped."""
        if self.recipe.attention == "eager":
            return eager_attention(query, key, value, mask, 1, 0.0)
        output = scaled_dot_product(query, key, value, self.recipe.attention, 0.0, mask, causal=False)
        return contiguous(transpose(output, 1, 2)), None


class VisionFeedForward:
    """MllamaVisionMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, width, dtype = recipe.shape, vision_width(recipe), recipe.weight_dtype
        inner = shape.vision_intermediate_size
        assert inner is not None
        assert shape.vision_activation is not None
        self.act = ACTIVATIONS[shape.vision_activation]
        self.fc1 = Linear(tape, "fc1", width, inner, dtype, bias=True)
        self.fc2 = Linear(tape, "fc2", inner, width, dtype, bias=True)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.fc1(hidden)
        hidden = self.act(hidden)
        hidden = self.fc2(hidden)
        return hidden


class VisionBlock:
    """MllamaVisionEncoderLayer; the encoder keeps what each of them gives."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor, states: list[Tensor], *, gated: bool) -> None:
        width, dtype = vision_width(recipe), recipe.weight_dtype
        self.mask, self.states, self.gated = mask, states, gated
        if gated:
            self.gate_attn = tape.parameter("gate_attn", (1,), dtype)
            self.gate_ffn = tape.parameter("gate_ffn", (1,), dtype)
        self.self_attn = VisionAttention(tape, recipe)
        self.mlp = VisionFeedForward(tape, recipe)
        self.input_layernorm = LayerNorm(tape, "input_layernorm", width, dtype)
        self.post_attention_layernorm = LayerNorm(tape, "post_attention_layernorm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask)
        if self.gated:
            hidden = mul(tanh(self.gate_attn), hidden)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        hidden = self.mlp(hidden)
        if self.gated:
            hidden = mul(tanh(self.gate_ffn), hidden)
        hidden = add(residual, hidden)
        self.states.append(hidden)
        return hidden


class TileEmbedding:
    """MllamaPrecomputedAspectRatioEmbedding: a gated row for each tile of an image of a shape."""

    def __init__(self, tape: Tape, name: str, recipe: Recipe) -> None:
        tiles, width, dtype = tiles_of(recipe.shape), vision_width(recipe), recipe.weight_dtype
        self.rows = (tape.batch, tiles, 1, width)
        self.gate = tape.parameter(f"{name}.gate", (1,), dtype)
        self.embedding = tape.parameter(f"{name}.embedding.weight", (ratios_of(tiles), tiles * width), dtype)

    def __call__(self, hidden: Tensor, ratios: Tensor) -> Tensor:
        with Outer(hidden, own=(self.gate,)):
            embeddings = embedding(ratios, self.embedding, returned=False)
            embeddings = view(embeddings, self.rows)
            embeddings = mul(embeddings, tanh(self.gate))
            hidden = add(hidden, embeddings)
        return hidden


class PositionEmbedding:
    """MllamaPrecomputedPositionEmbedding: rows for the places in a tile, and for those in all tiles of a shape."""

    def __init__(self, tape: Tape, name: str, recipe: Recipe, places: int) -> None:
        tiles, width, dtype = tiles_of(recipe.shape), vision_width(recipe), recipe.weight_dtype
        self.rows = (tape.batch, tiles, places, width)
        self.gate = tape.parameter(f"{name}.gate", (1,), dtype)
        self.embedding = tape.parameter(f"{name}.embedding", (places, width), dtype)
        whole = (ratios_of(tiles), tiles * places * width)
        self.tile_embedding = tape.parameter(f"{name}.tile_embedding.weight", whole, dtype)

    def __call__(self, hidden: Tensor, ratios: Tensor) -> Tensor:
        with Outer(hidden, own=(self.gate, self.embedding)):
            _gated = mul(mul_scalar(tanh(self.gate)), self.embedding)
            hidden = add(hidden, view(_gated, (1, 1, *_gated.shape)))
            _tiles = embedding(ratios, self.tile_embedding, returned=False)
            _tiles = view(_tiles, self.rows)
            _gated_tiles = mul(tanh(self.gate), _tiles)
            hidden = add(hidden, _gated_tiles)
        return hidden


def tiles_of(shape: ModelShape) -> int:
    """Tiles that every image is filled up to."""
    assert shape.vision_tiles is not None
    return shape.vision_tiles


class TiledVisionModel:
    """MllamaVisionModel."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, width, dtype = recipe.shape, vision_width(recipe), recipe.weight_dtype
        assert shape.patch_size is not None
        assert shape.channels is not None
        assert shape.image_size is not None
        self.tape, self.recipe, self.patch = tape, recipe, shape.patch_size
        self.places = positions_of(shape.image_size, shape.patch_size)
        with tape.building(EMBEDDINGS):
            self.class_embedding = tape.parameter("class_embedding", (width,), dtype)
            patch = (width, shape.channels, self.patch, self.patch)
            self.patch_embedding = tape.parameter("patch_embedding.weight", patch, dtype)
            self.positions = PositionEmbedding(tape, "gated_positional_embedding", recipe, self.places)
            self.before = TileEmbedding(tape, "pre_tile_positional_embedding", recipe)
            self.between = TileEmbedding(tape, "post_tile_positional_embedding", recipe)
        self.layernorm_pre = LayerNorm(tape, "layernorm_pre", width, dtype)
        self.layernorm_post = LayerNorm(tape, "layernorm_post", width, dtype)

    def __call__(self, pixel_values: Tensor, ratios: Tensor) -> Tensor:
        """The hidden states of the last block and of some before, beside each other: [B, 1, T, P, ...]."""
        with Outer(pixel_values, own=(self.class_embedding,), read=(self.patch_embedding,)):
            return self.forward(pixel_values, ratios)

    def forward(self, pixel_values: Tensor, ratios: Tensor) -> Tensor:
        """MllamaVisionModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape, width = recipe.shape, vision_width(recipe)
        batch, media, tiles, channels, *edges = pixel_values.shape
        pixel_values = view(pixel_values, (batch * media * tiles, channels, *edges))
        _patches = conv2d(pixel_values, self.patch_embedding, stride=self.patch)
        _patches = tape.looked_up(_patches, module=(self.patch_embedding,))
        _, _, rows, columns = _patches.shape
        patches, places = rows * columns, self.places
        hidden = transpose(view(_patches, (batch * tiles, width, patches)), 1, 2)
        hidden = self.before(view(hidden, (batch, tiles, patches, width)), ratios)
        hidden = view(hidden, (batch * tiles, patches, width))
        hidden = joined(spread(self.class_embedding, (batch * tiles, 1, width)), hidden)
        hidden = self.positions(view(hidden, (batch, tiles, places, width)), ratios)
        hidden = self.layernorm_pre(hidden)
        missing = -places % ROWS
        hidden = pad_rows(hidden, missing)
        padded = (batch, tiles, places + missing, width)
        mask = tile_mask(tape, tiles, places + missing, recipe.weight_dtype)
        hidden = view(hidden, (batch, tiles * (places + missing), width))
        states = self.kept_states()
        ends = [one + 1 for one in shape.vision_tapped_layers]
        given, tapped = [hidden], []
        for first, end in zip([0, *ends], [*ends, shape.stored_blocks[0]], strict=True):
            if end > first:
                given = [self.encoded(LOCAL, given, states, mask, first, end)]
            tapped.append(given[0])
        hidden = given.pop()
        del tapped[-1]  # what is of the last block goes through the other encoder first
        hidden = self.layernorm_post(hidden)
        hidden = self.between(view(hidden, padded), ratios)
        given = [view(hidden, (batch, padded[1] * padded[2], width))]
        _global_states = self.kept_states()
        hidden = self.encoded(GLOBAL, given, _global_states, mask, 0, shape.stored_blocks[1])
        hidden = narrow(view(hidden, padded), 2, places)
        hidden = view(hidden, (batch, media, tiles, places, width))
        _between = stack_last(tapped)
        _between = narrow(view(_between, (*padded[:3], width * len(tapped))), 2, places)
        _between = view(_between, (batch, media, tiles, places, width * len(tapped)))
        return cat([hidden, _between], -1)

    def segments(self, blocks: int) -> Sequence[Segment]:
        """So many blocks, stored whatever the strategy."""
        return (Segment(1, blocks, False),)

    def kept_states(self) -> list[Tensor]:
        """What the encoder's own list keeps, of every block."""
        return []

    def encoded(
        self, name: str, given: list[Tensor], states: list[Tensor], mask: Tensor, first: int, end: int
    ) -> Tensor:
        """MllamaVisionEncoder.forward, of some of its blocks."""
        tape, recipe = self.tape, self.recipe
        shape, gated = recipe.shape, name == GLOBAL
        start = shape.blocks + first + (shape.stored_blocks[0] if gated else 0)
        segments = self.segments(end - first)

        def block(_: int) -> VisionBlock:
            return VisionBlock(tape, recipe, mask, states, gated=gated)

        with tape.building(name):
            return run_blocks(tape, segments, block, given, start=start, numbered_from=first)
