"""Gemma 4 for text, as transformers 5.23 computes it (models/gemma4/modeling_gemma4.py): Gemma 3 with heads of another
size in the blocks without a window, values that are normalised too, and of some models experts beside each MLP.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.models import gemma
from vramplan.replay.models.blocks import each_is_a_checkpoint, run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.experts import GatedMLP, GroupedExperts
from vramplan.replay.models.gemma import scaled_embedding, scales
from vramplan.replay.models.gemma3 import Gemma3
from vramplan.replay.models.gemma4_router import Router
from vramplan.replay.models.layer_inputs import TABLE as OF_LAYERS
from vramplan.replay.models.layer_inputs import LayerInput, LayerInputs
from vramplan.replay.models.llama import Rotary, rotate_half
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Recipe
from vramplan.replay.models.recomputed import cached
from vramplan.replay.models.shared_keys import OWN, REUSES, STORES, SharedKeys, saved_again
from vramplan.replay.models.windows import has_window
from vramplan.replay.observers import Outer, Sharding
from vramplan.replay.operators.attention import LARGEST_FLASH_HEAD
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul, pow_scalar
from vramplan.replay.operators.indexing import scale_in_place_by
from vramplan.replay.operators.views import contiguous, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape

LAYER = 2  # the dimension of the inputs [B, S, L, P] that counts blocks


class RMSNorm(gemma.RMSNorm):
    """Gemma4RMSNorm with a weight."""

    def composed(self, hidden: Tensor) -> Tensor:
        """The norm as the model's code has it."""
        output = normed(to(hidden, FP32))
        output = mul(output, to(self.weight, FP32))
        return to(output, hidden.dtype)


def normed(x: Tensor) -> Tensor:
    """Gemma4RMSNorm._norm: a power in the place of the square root."""
    mean_squared = add_scalar(mean_last(pow_scalar(x)))
    return mul(x, pow_scalar(mean_squared))


def plain_norm(hidden: Tensor) -> Tensor:
    """Gemma4RMSNorm without a weight."""
    output = normed(to(hidden, FP32))
    return to(output, hidden.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """apply_rotary_pos_emb, of queries or keys [B, S, a, d]."""
    shape = (*cos.shape[:2], 1, cos.shape[2])
    cos, sin = cos.alias(shape, None, None), sin.alias(shape, None, None)
    return add(mul(x, cos), mul(rotate_half(x), sin))


def is_full(shape: ModelShape, block: int) -> bool:
    """Whether a block sees everything: every so many do, and the last one (Gemma4TextConfig.__post_init__)."""
    return not has_window(shape, block) or block + 1 == shape.layers


def recipe_of_kind(recipe: Recipe, *, full: bool) -> Recipe:
    """The recipe of blocks that see everything: their heads have another size, which flash may not take.

    Keys and values of such heads are repeated for their query heads, so that the memory-efficient kernel runs.
    Source: transformers 5.23, integrations/sdpa_attention.py, use_gqa_in_sdpa.
    """
    shape = recipe.shape
    if not full:
        return recipe
    heads, size = shape.full_key_value_heads or shape.key_value_heads, shape.full_head_size or shape.head_size
    attention = recipe.attention
    if attention == "flash" and size > LARGEST_FLASH_HEAD:
        attention = "efficient"
    return recipe._replace(attention=attention, shape=shape._replace(key_value_heads=heads, head_size=size))


class Attention:
    """Gemma4TextAttention; one that takes keys and values of a block before has none of its own."""

    def __init__(self, tape: Tape, recipe: Recipe, shared: SharedKeys, *, full: bool, mode: str) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.tape, self.recipe, self.shared, self.full, self.mode = tape, recipe, shared, full, mode
        self.q_proj = Linear(tape, "q_proj", hidden, query, dtype, bias=shape.qkv_bias)
        self.q_norm = RMSNorm(tape, "q_norm", shape.head_size, dtype)
        self.v_proj: Linear | None = None
        if mode != REUSES:
            self.make_keys(key)
        self.o_proj = Linear(tape, "o_proj", query, hidden, dtype, bias=shape.output_bias)

    def make_keys(self, size: int) -> None:
        """What makes keys and values of so many elements."""
        tape, shape, dtype = self.tape, self.recipe.shape, self.recipe.weight_dtype
        self.k_norm = RMSNorm(tape, "k_norm", shape.head_size, dtype)
        self.k_proj = Linear(tape, "k_proj", shape.hidden_size, size, dtype, bias=shape.qkv_bias)
        if not (shape.keys_as_values and self.full):
            self.v_proj = Linear(tape, "v_proj", shape.hidden_size, size, dtype, bias=shape.qkv_bias)

    def __call__(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        position_ids: Tensor,
        rotary: Rotary,
        before: list[Sequence[Any]] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`before`: what recomputation has saved on the way to the hidden state, where that is not all so far."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        graph = before.pop() if before else saved_again(tape)
        batch, length, _ = hidden.shape
        query = view(self.q_proj(hidden), (batch, length, shape.attention_heads, shape.head_size))
        query = self.q_norm(query)
        query = turned(query, *rotary)
        query = transpose(query, 1, 2)
        if self.mode == REUSES:
            key, value = self.shared.pairs[self.full]
        else:
            others = len(saved_again(tape))
            key, value = self.keys_and_values(hidden, rotary)
            graph = (*graph, *saved_again(tape)[others:])
            key, value = cached(key, value)
        if self.mode == STORES:
            self.shared.put(self.full, (key, value), graph)
        del graph
        output, weights = attend(recipe, query, key, value, mask, position_ids)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = self.o_proj(output)
        return output, weights

    def keys_and_values(self, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Those of this block."""
        shape = self.recipe.shape
        heads = (*hidden.shape[:2], shape.key_value_heads, shape.head_size)
        key = view(self.k_proj(hidden), heads)
        value = key if self.v_proj is None else view(self.v_proj(hidden), heads)
        key = self.k_norm(key)
        key = turned(key, *rotary)
        key = transpose(key, 1, 2)
        value = plain_norm(value)
        value = transpose(value, 1, 2)
        return key, value


class Block:
    """Gemma4TextDecoderLayer."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        i: int,
        mask: Tensor | None,
        position_ids: Tensor,
        rotary: Rotary,
        shared: SharedKeys,
        layer_input: Tensor | None,
    ) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, full, mode = shape.hidden_size, is_full(shape, i), sharing_of(shape, i)
        own = recipe_of_kind(recipe, full=full)
        self.self_attn = Attention(tape, own, shared, full=full, mode=mode)
        wide = 2 if shape.wide_sharing_layers and mode == REUSES else 1
        self.mlp = GatedMLP(tape, recipe, wide * shape.intermediate_size)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", width, dtype)
        self.pre_feedforward_layernorm = RMSNorm(tape, "pre_feedforward_layernorm", width, dtype)
        self.post_feedforward_layernorm = RMSNorm(tape, "post_feedforward_layernorm", width, dtype)
        self.layer_input = layer_input
        self.takes_input = None if shape.layer_input_size is None else LayerInput(tape, recipe, RMSNorm)
        self.mixture = None if shape.experts is None else Mixture(tape, recipe)
        self.mask, self.rotary = mask, rotary
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless
        # a buffer of one number
        self.layer_scalar = tape.constant((1,), tape.role(Sharding).buffer_dtype or dtype, False)

    def __call__(self, hidden: Tensor) -> Tensor:
        with Outer(
            hidden
        ):  # the scale at its end is an operator of the block itself, for which a checkpoint runs again
            return self.forward(hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """Gemma4TextDecoderLayer.forward."""
        residual = hidden
        hidden = self.input_layernorm(hidden)
        _beside: object
        hidden, _beside = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = self.post_attention_layernorm(hidden)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.pre_feedforward_layernorm(hidden)
        hidden = self.mlp(hidden)
        if self.mixture is not None:
            hidden_1 = self.mixture.post_feedforward_layernorm_1(hidden)
            hidden_flat = view(residual, (residual.shape[0] * residual.shape[1], residual.shape[2]))
            with Outer(hidden_flat, whole=self.mixture.parameters):
                _beside, top_k_weights, top_k_index = self.mixture.router(hidden_flat)
                hidden_2 = self.mixture.pre_feedforward_layernorm_2(hidden_flat)
                hidden_2 = self.mixture.experts(hidden_2, top_k_index, top_k_weights)
            hidden_2 = view(hidden_2, residual.shape)
            hidden_2 = self.mixture.post_feedforward_layernorm_2(hidden_2)
            hidden = add(hidden_1, hidden_2)
        hidden = self.post_feedforward_layernorm(hidden)
        hidden = add(residual, hidden)
        if self.takes_input is not None:
            assert self.layer_input is not None
            residual = hidden
            hidden = self.takes_input(hidden, self.layer_input)
            hidden = add(residual, hidden)
        return scale_in_place_by(hidden, self.layer_scalar)


class Mixture:
    """What Gemma4TextDecoderLayer has beside the MLP: a router, experts, and their norms."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype, first = recipe.shape.hidden_size, recipe.weight_dtype, len(tape.parameters)
        self.router = Router(tape, recipe, plain_norm)
        self.experts = GroupedExperts(tape, recipe)
        self.parameters = tuple(tape.parameters[first:])
        self.post_feedforward_layernorm_1 = RMSNorm(tape, "post_feedforward_layernorm_1", width, dtype)
        self.post_feedforward_layernorm_2 = RMSNorm(tape, "post_feedforward_layernorm_2", width, dtype)
        self.pre_feedforward_layernorm_2 = RMSNorm(tape, "pre_feedforward_layernorm_2", width, dtype)


def sharing_of(shape: ModelShape, block: int) -> str:
    """Whether a block has keys and values of its own, hands them on, or takes those of the last one of its kind.

    Source: Gemma4TextConfig.kv_sharing_modes.
    """
    return sharing_of_kinds(shape, block, lambda i: is_full(shape, i))


def sharing_of_kinds(shape: ModelShape, block: int, is_full: Callable[[int], bool]) -> str:
    """The same where another function says which blocks see everything."""
    first = shape.layers - shape.key_value_sharing_layers
    if first == shape.layers:
        return OWN
    if block >= first:
        return REUSES
    full = is_full(block)
    later = any(is_full(i) == full for i in range(block + 1, first))
    return OWN if later else STORES


class Gemma4(Gemma3):
    """Gemma4ForCausalLM, with its loss."""

    equal_blocks = False  # the last one has no window, and what makes the inputs of all grows with their number
    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    takes_packing = True

    @staticmethod
    def windowed(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window."""
        return not is_full(shape, block)

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block sees everything; each kind has its mask and its rotary positions."""
        return is_full(shape, block)

    @staticmethod
    def full_blocks(shape: ModelShape) -> int:
        """How many blocks see everything."""
        return sum(is_full(shape, i) for i in range(shape.layers))

    def buffers(self) -> list[int]:
        """Bytes of the buffers: scales of embeddings and of blocks, and per kind the frequencies, twice, in fp32."""
        shape = self.recipe.shape
        sizes = [recipe_of_kind(self.recipe, full=full).shape.head_size for full in self.kinds()]
        frequencies = [4 * (size // 2) for size in sizes for _ in range(2)]
        return [*scales(self.tape, OF_LAYERS), *frequencies, *[4] * shape.layers]

    def model(self, input_ids: Tensor) -> Tensor:
        """Gemma4TextModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = scaled_embedding(input_ids, self.embed_tokens)
        _layer_inputs = None
        last = len(tape.parameters)
        if shape.layer_input_size is not None:
            _layer_inputs = LayerInputs(tape, recipe, RMSNorm)(input_ids, _embeds)
        later = tape.parameters[last:]  # they are registered after the blocks
        del tape.parameters[last:]
        position_ids = self.position_ids(input_ids)
        masks = self.masks(_embeds)
        hidden = _embeds
        sizes = {full: recipe_of_kind(recipe, full=full).shape.head_size for full in self.kinds()}
        rotary = {full: self.cosines_and_sines(hidden, size) for full, size in sizes.items()}
        _shared = SharedKeys()

        checkpointed = each_is_a_checkpoint(recipe.segments)

        def handed(_: int) -> dict[str, Tensor | None]:
            """The input of a block is handed to its checkpoint, which keeps it like the hidden state."""
            given = None if _layer_inputs is None or not checkpointed else select(_layer_inputs, LAYER)
            return {"layer_input": given}

        def block(i: int) -> Block:
            full = self.is_full(i)
            given = None if _layer_inputs is None or checkpointed else select(_layer_inputs, LAYER)
            return Block(tape, recipe, i, masks[not full], position_ids, rotary[full], _shared, given)

        make_ups = [(self.is_full(i), sharing_of(shape, i)) for i in range(shape.layers)]

        def kind(i: int) -> tuple[object, ...]:
            """The last block that takes keys and values makes the gradients of them that the others add theirs to."""
            full, mode = make_ups[i]
            return full, mode, mode == REUSES and make_ups[i] not in make_ups[i + 1 :]

        hidden = run_blocks(
            *(tape, recipe.segments, block, hidden),
            kind=kind,
            alike=False,
            make_up=make_ups.__getitem__,
            handed=handed,
            every=shape.key_value_sharing_layers > 0,
        )
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        tape.parameters += later
        return hidden


FORWARD = Gemma4
