"""Gemma 3n for text, as transformers 5.23 computes it (models/gemma3n/modeling_gemma3n.py): Gemma 4's attention,
several hidden states side by side, a narrow layer beside each attention, and feed-forward layers of which some are
sparse.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import gemma4
from vramplan.replay.models.altup import AltUp, Projections, States, Unquantized
from vramplan.replay.models.blocks import each_is_a_checkpoint, run_blocks
from vramplan.replay.models.gemma import scaled_embedding, scaled_rows, scales
from vramplan.replay.models.gemma3 import Gemma3
from vramplan.replay.models.gemma4 import LAYER, RMSNorm, plain_norm, sharing_of_kinds, turned
from vramplan.replay.models.layer_inputs import TABLE as OF_LAYERS
from vramplan.replay.models.layer_inputs import LayerInput
from vramplan.replay.models.layer_inputs import LayerInputs as Gemma4LayerInputs
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import ACTIVATIONS, HEAD_LOSSES, SELECTIVE, Linear, Recipe
from vramplan.replay.models.shared_keys import REUSES, SharedKeys, saved_again
from vramplan.replay.models.windows import has_window
from vramplan.replay.observers import Sharding, VirtualTokens
from vramplan.replay.operators.alternating import add_to_rest, deviation_last
from vramplan.replay.operators.elementwise import add, mean_last, mul, mul_scalar, relu
from vramplan.replay.operators.indexing import scale_in_place_by
from vramplan.replay.operators.latent import sub
from vramplan.replay.operators.views import clone, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor
from vramplan.values.model import Alternating, ModelShape


def alternating_of(shape: ModelShape) -> Alternating:
    """The hidden states side by side of a model that has some."""
    found = shape.alternating
    assert found is not None
    return found


class Attention(gemma4.Attention):
    """Gemma3nTextAttention: keys are ready before values are projected."""

    def make_keys(self, size: int) -> None:
        """What makes keys and values of so many elements."""
        tape, shape, dtype = self.tape, self.recipe.shape, self.recipe.weight_dtype
        self.k_proj = Linear(tape, "k_proj", shape.hidden_size, size, dtype, bias=shape.qkv_bias)
        self.v_proj = Linear(tape, "v_proj", shape.hidden_size, size, dtype, bias=shape.qkv_bias)
        self.k_norm = RMSNorm(tape, "k_norm", shape.head_size, dtype)

    def keys_and_values(self, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Those of this block."""
        assert self.v_proj is not None
        shape = self.recipe.shape
        heads = (*hidden.shape[:2], shape.key_value_heads, shape.head_size)
        key = self.k_norm(view(self.k_proj(hidden), heads))
        key = turned(key, *rotary)
        key = transpose(key, 1, 2)
        value = plain_norm(view(self.v_proj(hidden), heads))
        return key, transpose(value, 1, 2)


class LayerInputs(Gemma4LayerInputs):
    """Gemma3nTextModel.get_per_layer_inputs and project_per_layer_inputs."""

    def __call__(self, input_ids: Tensor, embeds: Tensor) -> Tensor:
        shape = (*embeds.shape[:2], self.layers, self.size)
        given = not embeds.tape.role(VirtualTokens).puts_some  # embedded tokens say nothing of the rows of a table
        inputs = view(scaled_rows(in_table(input_ids), self.table), shape) if given else None
        projected = self.projection(embeds)
        projected = scale_in_place_by(projected, buffer_of(embeds))
        projected = view(projected, shape)
        projected = self.norm(projected)
        if inputs is None:
            return projected
        return mul(add(projected, inputs), buffer_of(embeds))


def buffer_of(like: Tensor) -> Tensor:
    """A buffer of one number, in the dtype of a tensor."""
    stored = like.tape.role(Sharding).buffer_dtype or like.dtype
    return to(like.tape.constant((), stored, False), like.dtype)


class MLP:
    """Gemma3nTextMLP: gated; of sparse blocks what is less than so many deviations above the mean is left out."""

    def __init__(self, tape: Tape, recipe: Recipe, *, sparse: bool) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.gate_proj = Linear(tape, "gate_proj", hidden, inner, dtype, bias=False)
        self.up_proj = Linear(tape, "up_proj", hidden, inner, dtype, bias=False)
        self.down_proj = Linear(tape, "down_proj", inner, hidden, dtype, bias=False)
        self.act, self.sparse = ACTIVATIONS[shape.activation], sparse

    def __call__(self, hidden: Tensor) -> Tensor:
        gate = self.gate_proj(hidden)
        if self.sparse:
            gate = gaussian_top_k(gate)
        activations = self.act(gate)
        up = self.up_proj(hidden)
        return self.down_proj(mul(activations, up))


def gaussian_top_k(inputs: Tensor) -> Tensor:
    """Gemma3nTextMLP._gaussian_topk."""
    tape = inputs.tape
    _target = tape.new("full", (), FP32, False)
    multiplier = tape.new("mul", (), FP32, False)
    multiplier = to(multiplier, inputs.dtype)
    mean = mean_last(inputs)
    deviation = deviation_last(inputs)
    cutoff = add(mean, mul(deviation, multiplier))
    return relu(sub(inputs, cutoff))


class Laurel:
    """Gemma3nTextLaurelBlock."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, rank, dtype = recipe.shape.hidden_size, alternating_of(recipe.shape).laurel_rank, recipe.weight_dtype
        self.linear_left = Linear(tape, "linear_left", width, rank, dtype, bias=False)
        self.linear_right = Linear(tape, "linear_right", rank, width, dtype, bias=False)
        self.post_laurel_norm = RMSNorm(tape, "post_laurel_norm", width, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        laurel = self.linear_left(hidden)
        laurel = self.linear_right(laurel)
        normed = self.post_laurel_norm(laurel)
        return add(hidden, normed)


class Block:
    """Gemma3nTextDecoderLayer."""

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
        width, full, own = shape.hidden_size, not has_window(shape, i), alternating_of(shape)
        self.self_attn = Attention(tape, recipe, shared, full=full, mode=sharing_of(shape, i))
        self.mlp = MLP(tape, recipe, sparse=i < own.sparse_layers)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", width, dtype)
        self.pre_feedforward_layernorm = RMSNorm(tape, "pre_feedforward_layernorm", width, dtype)
        self.post_feedforward_layernorm = RMSNorm(tape, "post_feedforward_layernorm", width, dtype)
        self.altup = AltUp(tape, recipe, own.states)
        self.laurel = Laurel(tape, recipe)
        self.takes_input = LayerInput(tape, recipe, RMSNorm)
        self.layer_input, self.mask, self.rotary = layer_input, mask, rotary
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        predictions = self.altup.predict(hidden)
        active = select(predictions, 0)
        _normed = self.input_layernorm(active)
        before = [saved_again(hidden.tape)]
        laurel = self.laurel(_normed)
        attended, _weights = self.self_attn(_normed, self.mask, self.position_ids, self.rotary, before)
        attended = self.post_attention_layernorm(attended)
        _gated = add(active, attended)
        attended_laurel = mul_scalar(add(_gated, laurel))
        _norm = self.pre_feedforward_layernorm(attended_laurel)
        _fed = self.mlp(_norm)
        _fed_norm = self.post_feedforward_layernorm(_fed)
        _activated = add(attended_laurel, _fed_norm)
        corrected = self.altup.correct(predictions, _activated)
        first = clone(select(corrected, 0))
        first = self.altup.scaled(first)
        assert self.layer_input is not None
        own = self.takes_input
        first = own.gate(first)
        first = own.act(first)
        first = mul(first, self.layer_input)
        first = own.projection(first)
        first = own.norm(first)
        return add_to_rest(corrected, first)


def sharing_of(shape: ModelShape, block: int) -> str:
    """Whether a block has keys and values of its own, hands them on, or takes those of the last one of its kind."""
    return sharing_of_kinds(shape, block, lambda i: not has_window(shape, i))


class Gemma3n(Gemma3):
    """Gemma3nForCausalLM, with its loss."""

    equal_blocks = False  # what makes the inputs of all grows with their number
    has_tensor_plan = False
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    takes_packing = True
    takes_virtual_tokens = True
    left_unquantized = ("correction_coefs", "prediction_coefs")

    def buffers(self) -> list[int]:
        """Bytes of the buffers: scales of embeddings, layer inputs and blocks, and per kind the frequencies, twice."""
        shape = self.recipe.shape
        frequencies = [4 * (shape.head_size // 2)] * 2 * len(self.kinds())
        return [*scales(self.tape, OF_LAYERS), *frequencies, *[4] * (2 + shape.layers)]

    def model(self, input_ids: Tensor) -> Tensor:
        """Gemma3nTextModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        own = alternating_of(shape)
        _embeds = scaled_embedding(input_ids, self.embed_tokens)
        last = len(tape.parameters)
        _layer_inputs = LayerInputs(tape, recipe, RMSNorm)(input_ids, _embeds)
        into = Projections(tape, recipe, "altup_projections", own.states)
        # the last layer of a model with a tied head stays as it is (quantizers/base.py, get_keys_to_not_convert)
        last_kind = Unquantized if shape.tied_embeddings else Linear
        back = Projections(tape, recipe, "altup_unembed_projections", own.states, last_kind)
        later = tape.parameters[last:]  # they are registered after the blocks
        del tape.parameters[last:]
        position_ids = self.position_ids(input_ids)
        masks = self.masks(_embeds)
        states = States(_embeds.dtype)
        state = [states.expanded(_embeds, into)]
        rotary = {full: self.cosines_and_sines(_embeds, shape.head_size) for full in self.kinds()}
        _shared = SharedKeys()
        checkpointed = each_is_a_checkpoint(recipe.segments)

        def handed(_: int) -> dict[str, Tensor | None]:
            """The input of a block is handed to its checkpoint, which keeps it like the hidden state."""
            return {"layer_input": select(_layer_inputs, LAYER) if checkpointed else None}

        def block(i: int) -> Block:
            given = None if checkpointed else select(_layer_inputs, LAYER)
            full = self.is_full(i)
            return Block(tape, recipe, i, masks[not full], position_ids, rotary[full], _shared, given)

        make_ups = [(self.is_full(i), sharing_of(shape, i), i < own.sparse_layers) for i in range(shape.layers)]

        def kind(i: int) -> tuple[object, ...]:
            """The last block that takes keys and values makes the gradients of them that the others add theirs to."""
            full, mode, sparse = make_ups[i]
            return full, mode, sparse, mode == REUSES and make_ups[i] not in make_ups[i + 1 :]

        hidden = run_blocks(
            *(tape, recipe.segments, block, state),
            kind=kind,
            alike=False,
            make_up=make_ups.__getitem__,
            handed=handed,
            every=shape.key_value_sharing_layers > 0,
        )
        hidden = states.joined(hidden, back)
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        tape.parameters += later
        return hidden


def in_table(input_ids: Tensor) -> Tensor:
    """The tokens that the table of the layer inputs has, 0 for the others."""
    tape = input_ids.tape
    _low = tape.like("ge", input_ids, BOOL)
    _high = tape.like("lt", input_ids, BOOL)
    _both = tape.like("logical_and", input_ids, BOOL)
    del _low, _high
    return tape.like("where", input_ids, INT64)


FORWARD = Gemma3n
