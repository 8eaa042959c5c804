"""GPT-2 with a language-model head, as transformers 5.23 computes it (models/gpt2/modeling_gpt2.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    in_tiles,
    output_embedding,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.observers import KeyValues
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import contiguous, narrow, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, INT64, Tensor, normalised


class Attention:
    """GPT2Attention: fused query/key/value projection."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.recipe = recipe
        self.c_attn = Linear(
            tape, "attn.c_attn", shape.hidden_size, 3 * shape.hidden_size, dtype, bias=True, transposed=True
        )
        self.c_proj = Linear(
            tape, "attn.c_proj", shape.hidden_size, shape.hidden_size, dtype, bias=True, transposed=True
        )

    def __call__(self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, width = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        query, key, value = split(self.c_attn(hidden), width)
        key = transpose(view(key, heads), 1, 2)
        value = transpose(view(value, heads), 1, 2)
        query = transpose(view(query, heads), 1, 2)
        key, value = key.tape.role(KeyValues).kept(key, value)
        if recipe.recomputes_core:
            from vramplan.replay.models.recomputed import recomputable  # only these jobs pay for it

            output, weights = recomputable(recipe, self.core, query, key, value, mask, holds=position_ids)
        else:
            output, weights = self.core(query, key, value, mask)
        output = contiguous(view(output, (batch, length, width)))
        output = self.c_proj(output)
        output = dropout(output, recipe.hidden_dropout)
        return output, weights

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        recipe = self.recipe
        if recipe.attention == "eager":
            return eager_attention(query, key, value, mask, recipe.attention_dropout)
        output = scaled_dot_product(query, key, value, recipe.attention, recipe.attention_dropout, mask)
        return contiguous(transpose(output, 1, 2)), None


def eager_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> tuple[Tensor, Tensor]:
    """eager_attention_forward of the same file; the weights keep the dtype that the mask gives them."""
    weights = mul_scalar(matmul(query, transpose(key, -1, -2)))
    if mask is not None:
        weights = add(weights, mask)
    weights = softmax(weights)
    weights = to(weights, value.dtype)
    weights = dropout(weights, p)
    output = matmul(weights, value)
    output = transpose(output, 1, 2)
    return output, weights


class MLP:
    """GPT2MLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.c_fc = Linear(
            tape, "mlp.c_fc", shape.hidden_size, shape.intermediate_size, dtype, bias=True, transposed=True
        )
        self.c_proj = Linear(
            tape, "mlp.c_proj", shape.intermediate_size, shape.hidden_size, dtype, bias=True, transposed=True
        )
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.c_fc(hidden)
        hidden = self.act(hidden)
        hidden = self.c_proj(hidden)
        return dropout(hidden, self.p)


class Block:
    """GPT2Block."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.ln_1 = LayerNorm(tape, "ln_1", width, dtype)
        self.attn = Attention(tape, recipe)
        self.ln_2 = LayerNorm(tape, "ln_2", width, dtype)
        self.mlp = in_tiles(MLP, tape, recipe)
        self.mask = mask
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.ln_1(hidden)
        attention, _weights = self.attn(hidden, self.mask, self.position_ids)
        hidden = add(attention, residual)
        residual = hidden
        hidden = self.ln_2(hidden)
        feed_forward = self.mlp(hidden)
        hidden = add(residual, feed_forward)
        return hidden


class GPT2:
    """GPT2LMHeadModel, with its loss."""

    peaks_published = True
    block_lists = ("h",)
    conv1d = True
    no_float8 = "whose layers are Conv1D, which Float8Linear does not replace"
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_virtual_tokens = True
    takes_prefix = True
    dropping_caches = ("gpt2",)
    takes_packing = True
    # the loss is a graph of its own: its look-up finds no type in the class's name and warns (modeling_utils.py,
    # PreTrainedModel.loss_function), which ends the first graph
    compiled_graphs = 2

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.wte = tape.parameter("wte", (shape.vocabulary_size, shape.hidden_size), dtype)
            self.wpe = tape.parameter("wpe", (shape.max_positions, shape.hidden_size), dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers of the module."""
        return []

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        hidden = self.transformer(input_ids, given if self.recipe.packed else None)
        weight = output_embedding(self.tape, self.recipe, self.wte)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def transformer(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """GPT2Model.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.wte)
        if position_ids is None:
            position_ids = tape.new("arange", (1, input_ids.shape[1]), INT64, False)
        _position_embeds = embedding(position_ids, self.wpe)
        hidden = add(_embeds, _position_embeds)
        mask = mask_of(hidden, recipe)
        hidden = dropout(hidden, recipe.embedding_dropout)
        state = [hidden]
        del hidden  # the original's loop has no other name for it
        for passed in tape.told.passed_by_name:
            passed(position_ids)  # unlike the mask

        def make(_: int) -> Block:
            return Block(tape, recipe, mask, position_ids)

        hidden = run_blocks(tape, recipe.segments, make, state, handed={"mask": mask})
        hidden = LayerNorm(tape, "ln_f", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


def mask_of(hidden: Tensor, recipe: Recipe, *, windowed: bool = False) -> Tensor | None:
    """The mask of a batch: none for fused attention where nothing is padded (masking_utils.py).

    `windowed`: of blocks with a sliding window, which a mask of padded or packed sequences has in it in any case.
    """
    additive = recipe.attention == "eager"
    if recipe.masks_packing:
        from vramplan.replay.techniques.packing import packed_mask  # only who packs pays for it

        return packed_mask(hidden, additive=additive, windowed=windowed)
    if recipe.padded:
        from vramplan.replay.techniques.padding import padded_mask  # only who pads pays for it

        return padded_mask(hidden, causal=True, additive=additive, windowed=windowed)
    if additive:
        return additive_mask(hidden, recipe)
    return None if recipe.attention == "flash" else mask_behind_past(hidden)


def mask_behind_past(hidden: Tensor) -> Tensor | None:
    """The boolean mask of fused attention behind keys of earlier tokens, of which each token sees all.

    It is [B, 1, S, P + S], a view of one for all samples; None where there are no such keys.
    Source: transformers 5.23, masking_utils.py, sdpa_mask and _ignore_causal_mask_sdpa.
    """
    tape, past = hidden.tape, hidden.tape.role(KeyValues).past
    if not past:
        return None
    batch, length, _ = hidden.shape
    whole, shape = (1, 1, length, past + length), (batch, 1, length, past + length)
    mask = tape.new("le", whole, BOOL, False)
    return mask.alias(shape, normalised(shape, (0, length * shape[3], shape[3], 1)), None)


def causal_mask(hidden: Tensor) -> Tensor:
    """The additive mask of eager attention: [B, 1, S, S] in the dtype of the embeddings (masking_utils.py).

    Behind keys of earlier tokens it is longer by these.
    """
    tape = hidden.tape
    batch, length, _ = hidden.shape
    seen = length + tape.role(KeyValues).past
    boolean = tape.new("le", (1, 1, length, seen), BOOL, False)
    mask = tape.new("where", (batch, 1, length, seen), hidden.dtype, True)
    del boolean
    return mask


def additive_mask(hidden: Tensor, recipe: Recipe) -> Tensor:
    """The mask of eager attention where nothing is padded; of Transformers before 4.53 one for the whole batch.

    That has a column more than there are tokens, which attention leaves out. What it is made of is gone before the
    first block. Source: transformers 4.48, models/llama/modeling_llama.py, LlamaModel._update_causal_mask.
    """
    if not recipe.old_code.one_mask:
        return causal_mask(hidden)
    length = hidden.shape[1]
    return narrow(hidden.tape.new("mul", (1, 1, length, length + 1), hidden.dtype, False), 3, length)


FORWARD = GPT2
