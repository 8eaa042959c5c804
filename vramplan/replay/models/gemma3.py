"""Gemma 3 for text, as transformers 5.23 computes it (models/gemma3/modeling_gemma3.py): Gemma 2 without a bound on the
scores, with normalised queries and keys; most blocks have a window and rotary positions of their own.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.four_norms import SandwichBlock
from vramplan.replay.models.gemma import TABLE, RMSNorm, scaled_embedding, scales
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Rotary, apply_rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Output, Recipe, output_embedding
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.positions import Positions
from vramplan.replay.models.projections import three
from vramplan.replay.models.recomputed import cached
from vramplan.replay.models.windows import are_alike, has_window, masks_of_kinds, reached_mask
from vramplan.replay.operators.views import contiguous, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape


class Attention:
    """Gemma3Attention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", hidden, query, dtype, bias=shape.qkv_bias)
        self.k_proj = Linear(tape, "k_proj", hidden, key, dtype, bias=shape.qkv_bias)
        self.v_proj = Linear(tape, "v_proj", hidden, key, dtype, bias=shape.qkv_bias)
        self.o_proj = Linear(tape, "o_proj", query, hidden, dtype, bias=shape.output_bias)
        self.q_norm = RMSNorm(tape, "q_norm", shape.head_size, dtype)
        self.k_norm = RMSNorm(tape, "k_norm", shape.head_size, dtype)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        first, second, third = three(self, hidden)
        query = transpose(view(first(), heads), 1, 2)
        key = transpose(view(second(), kv_heads), 1, 2)
        value = transpose(view(third(), kv_heads), 1, 2)
        query = self.q_norm(query)
        key = self.k_norm(key)
        query, key = apply_rotary(query, key, *rotary)
        key, value = cached(key, value)
        output, weights = attend(recipe, query, key, value, mask, position_ids)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = self.o_proj(output)
        return output, weights


class Block(SandwichBlock):
    """Gemma3DecoderLayer."""

    attention = Attention
    norm = RMSNorm


class Gemma3(Positions):
    """Gemma3ForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    compiled_graphs = 1
    head_losses = HEAD_LOSSES
    takes_padding = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    takes_packing = True
    takes_virtual_tokens = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter(TABLE, (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype)

    def kinds(self) -> set[bool]:
        """Whether there are blocks that see everything, and blocks with a window."""
        shape = self.recipe.shape
        return {self.block_kind(shape, i) for i in range(shape.layers)}

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block sees everything, as every so many do; each kind has its mask and its rotary positions.

        Source: Gemma3TextConfig.__post_init__.
        """
        return not has_window(shape, block)

    def is_full(self, block: int) -> bool:
        """The same of a block of this model."""
        return self.block_kind(self.recipe.shape, block)

    def masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The masks of blocks without and with a window; both are always made (Gemma3TextModel.forward)."""
        recipe = self.recipe
        if recipe.attention == "eager" or recipe.padded or (recipe.packed and not recipe.returns_cache):
            return masks_of_kinds(hidden, recipe)
        return None, None if are_alike(recipe) else reached_mask(hidden, recipe)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the scale of the embeddings, and per kind the inverse frequencies, twice, in fp32."""
        return [*scales(self.tape), *[4 * (self.recipe.shape.head_size // 2)] * 2 * len(self.kinds())]

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """Gemma3TextModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = scaled_embedding(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        masks = self.masks(_embeds)
        hidden = _embeds
        rotary = {full: self.cosines_and_sines(hidden, recipe.shape.head_size) for full in self.kinds()}

        def block(i: int) -> Block:
            full = self.is_full(i)
            return Block(tape, recipe, masks[not full], position_ids, rotary[full])

        hidden = run_blocks(tape, recipe.segments, block, hidden, kind=self.is_full, alike=are_alike(recipe))
        hidden = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Gemma3
