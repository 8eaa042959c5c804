"""Megatron-LM's T5, as megatron-core computes it (core/models/T5/t5_model.py): an encoder, and a decoder beside it.

Unlike the T5 of Transformers it has learned positions, biases, and LayerNorm. Hidden states are [S, B, H]. Names that
start with an underscore are locals of that code which outlive their use.
Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64); core/transformer/attention.py, CrossAttention;
core/transformer/transformer_layer.py, _forward_attention.
"""

from __future__ import annotations

from vramplan.engines.megatron.adapters import asked_for_gradient
from vramplan.engines.megatron.attention import Attention
from vramplan.engines.megatron.layers import ColumnParallelLinear, Projected, RowParallelLinear, gathered, norm_of
from vramplan.engines.megatron.model import Block, Megatron
from vramplan.engines.megatron.tensor_parallel import bias_dropout_add, core_checkpoint, parallel_linear
from vramplan.engines.megatron.vocabulary import summed_loss
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import Output, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.stacks import split_at
from vramplan.replay.operators.indexing import split_with_sizes
from vramplan.replay.operators.views import view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor
from vramplan.values.model import ModelShape


def as_megatron_has_it(shape: ModelShape) -> ModelShape:
    """The model with the biases of Megatron's layers."""
    return shape._replace(qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False)


class CrossAttention(Attention):
    """CrossAttention: queries of the decoder, keys and values of what the encoder gave."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, devices = recipe.shape, recipe.slice.tensor
        self.recipe = recipe
        self.heads = self.groups = shape.attention_heads // devices
        self.value_size = shape.head_size
        width, hidden = shape.attention_heads * shape.head_size, shape.hidden_size
        self.linear_q = ColumnParallelLinear(tape, recipe, "linear_q", hidden, width, bias=True)
        self.linear_kv = ColumnParallelLinear(tape, recipe, "linear_kv", hidden, 2 * width, bias=True)
        self.linear_proj = RowParallelLinear(tape, recipe, "linear_proj", width, hidden, bias=True)

    def look(self, hidden: Tensor, encoder: Tensor, mask: Tensor | None, scratch: Tensor | None) -> Projected:
        """CrossAttention.get_query_key_value_tensors, and the core."""
        size = self.recipe.shape.head_size
        _mixed = self.linear_kv(encoder)
        length, batch, _ = _mixed.shape
        _mixed = view(_mixed, (length, batch, self.heads, 2 * size))
        key, value = split_with_sizes(_mixed, (size, size))
        query = self.linear_q(hidden)
        query = view(query, (query.shape[0], batch, self.heads, size))
        if self.recipe.recomputes_core:
            context = core_checkpoint(
                lambda q, k, v, given: self.core(q, k, v, given, scratch), query, key, value, mask=mask
            )
        else:
            context = self.core(query, key, value, mask, scratch)
        return self.linear_proj(context)


class DecoderBlock(Block):
    """TransformerLayer with cross-attention."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        masks: tuple[Tensor | None, Tensor | None],
        scratches: tuple[Tensor | None, Tensor | None],
        encoder: Tensor,
    ) -> None:
        super().__init__(tape, recipe, masks[0], None, scratches[0])
        self.pre_cross_attn_layernorm = norm_of(tape, recipe, "pre_cross_attn_layernorm")
        self.cross_attention = CrossAttention(tape, recipe)
        self.cross_mask, self.cross_scratch, self.encoder = masks[1], scratches[1], encoder

    def attend(self, hidden: Tensor) -> Tensor:
        """TransformerLayer._forward_attention."""
        hidden = super().attend(hidden)
        residual = hidden
        _normed = self.pre_cross_attn_layernorm(hidden)
        out, bias = self.cross_attention.look(_normed, self.encoder, self.cross_mask, self.cross_scratch)
        return bias_dropout_add(out, bias, residual, self.p)


class MegatronT5(Megatron):
    """T5Model, with the loss of pretrain_t5.py; all of it is on one stage."""

    splits = ("tensor", "sequence_parallel")
    equal_blocks = False  # of two stacks
    untraced = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe._replace(shape=as_megatron_has_it(recipe.shape)))
        size = (recipe.shape.max_positions, recipe.shape.hidden_size)
        with tape.building(EMBEDDINGS):
            self.positions = tape.parameter("position_embeddings.weight", size, recipe.weight_dtype)

    def __call__(self) -> Output:
        tape, recipe = self.tape, self.recipe
        lengths = recipe.sequence_length, recipe.target_length or recipe.sequence_length
        ids, decoder_ids, labels = (
            tape.new(name, (tape.batch, length), INT64, True, category="inputs")
            for name, length in zip(("text_enc", "text_dec", "labels"), (*lengths, lengths[1]), strict=True)
        )
        counted = tape.new("loss_mask", (tape.batch, lengths[1]), FP32, True, category="inputs")
        encoder = self.encode(ids, lengths[0])
        state = [self.decode(decoder_ids, encoder, lengths)]
        del encoder
        with tape.building(HEAD):
            bias = tape.parameter("output_layer.bias", (self.rows,), recipe.weight_dtype)
        state = [parallel_linear(state.pop(), self.head(), bias, gathered=gathered(recipe))]
        return Output(summed_loss(self.losses(state, labels), counted), None)

    def encode(self, ids: Tensor, length: int) -> Tensor:
        """The encoder, which attends to both sides."""
        tape, recipe = self.tape, self.recipe
        mask, scratch = self.mask_of(length, length), self.scratch_of(length, length)
        held = mask if recipe.attention == "eager" else None
        with tape.building("encoder"):
            hidden = run_blocks(
                tape,
                split_at(recipe.segments, recipe.shape.layers)[0],
                lambda _: Block(tape, recipe, held, None, scratch),
                asked_for_gradient(tape, recipe, self.embed(ids, self.places(ids))),
                handed={"mask": mask},
                hands_to_all=True,
            )
            return norm_of(tape, recipe, "final_layernorm")(hidden)

    def decode(self, ids: Tensor, encoder: Tensor, lengths: tuple[int, int]) -> Tensor:
        """The decoder, with the mask of its own tokens and that of the encoder's."""
        tape, recipe = self.tape, self.recipe
        others, own = lengths
        masks = self.mask_of(own, own), self.mask_of(own, others)
        scratches = self.scratch_of(own, own), self.scratch_of(own, others)
        held = masks if recipe.attention == "eager" else (None, None)
        with tape.building("decoder"):
            hidden = run_blocks(
                tape,
                split_at(recipe.segments, recipe.shape.layers)[1],
                lambda _: DecoderBlock(tape, recipe, held, scratches, encoder),
                asked_for_gradient(tape, recipe, self.embed(ids, self.places(ids))),
                start=recipe.shape.layers,
                handed={"mask": masks[0], "encoder": encoder, "cross_mask": masks[1]},
                hands_to_all=True,
            )
            return norm_of(tape, recipe, "final_layernorm")(hidden)

    def places(self, ids: Tensor) -> Tensor:
        """t5_position_ids."""
        return self.tape.constant(ids.shape, INT64, True)

    def mask_of(self, queries: int, keys: int) -> Tensor:
        """t5_extended_attention_mask; a fused core takes one number for each key."""
        shape = (self.tape.batch, 1, queries if self.recipe.attention == "eager" else 1, keys)
        return self.tape.new("attention_mask", shape, BOOL, True, category="inputs")

    def scratch_of(self, queries: int, keys: int) -> Tensor | None:
        """Of eager attention: the operand that is multiplied by zero, in the buffer that stays."""
        if self.recipe.attention != "eager":
            return None
        heads = self.recipe.shape.attention_heads // self.recipe.slice.tensor
        return self.tape.constant((self.tape.batch * heads, queries, keys), self.recipe.weight_dtype, True)


FORWARD = MegatronT5
