"""Gemma 1, as transformers 5.23 computes it (models/gemma/modeling_gemma.py): Llama with scaled embeddings and a
normalisation that multiplies by one plus the weight, in fp32.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Output, Recipe, output_embedding
from vramplan.replay.models.modules import RMSNorm as LlamaRMSNorm
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.positions import Positions
from vramplan.replay.observers import Rounding, Sharding, Trained, VirtualTokens
from vramplan.replay.operators.elementwise import add_scalar, mean_last, mul, pow_scalar, rsqrt
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor

TABLE = "embed_tokens.weight"


class RMSNorm(LlamaRMSNorm):
    """GemmaRMSNorm."""

    def composed(self, hidden: Tensor) -> Tensor:
        """The norm as the model's code has it."""
        output = self.norm(to(hidden, FP32))
        output = mul(output, add_scalar(to(self.weight, FP32)))
        return to(output, hidden.dtype)

    def norm(self, x: Tensor) -> Tensor:
        """GemmaRMSNorm._norm."""
        return mul(x, rsqrt(add_scalar(mean_last(pow_scalar(x)))))


def scaled_embedding(input_ids: Tensor, weight: Parameter) -> Tensor:
    """GemmaTextScaledWordEmbedding.forward, of the token embeddings, before which virtual tokens may be."""

    def look_up(ids: Tensor) -> Tensor:
        return weight.tape.looked_up(scaled_rows(ids, weight), weight)

    return weight.tape.role(VirtualTokens).embedded(input_ids, look_up)


def scaled_rows(input_ids: Tensor, weight: Parameter) -> Tensor:
    """The same of any table: times a buffer without dimensions, in the dtype of the weight.

    torchao's FakeQuantizedEmbedding takes the module's place and has no such buffer.
    """
    tape = weight.tape
    if tape.role(Rounding).table is not None:
        return embedding(input_ids, weight, returned=False)
    stored = tape.role(Sharding).buffer_dtype
    scale = to(tape.constant((), stored or weight.dtype, False), weight.dtype)
    instead = tape.role(Trained).table(weight)
    if instead is not None:
        return instead(input_ids, weight, scale)
    return mul(embedding(input_ids, weight, returned=False), scale)


def scales(tape: Tape, *others: str) -> list[int]:
    """Bytes of the scale of each table of token embeddings: a copy that is trained beside the original has its own.

    `others`: names of further tables whose rows are scaled.
    """
    if tape.role(Rounding).table is not None:
        return []
    return [4 for parameter in tape.parameters if parameter.name in (TABLE, *others)]


class Block(LlamaBlock):
    """GemmaDecoderLayer."""

    norm = RMSNorm


class Gemma(Positions):
    """GemmaForCausalLM, with its loss."""

    knows_old_code = True
    has_tensor_plan = True
    selective = SELECTIVE
    compiled_graphs = 1
    head_losses = HEAD_LOSSES
    takes_padding = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    dropping_caches = ("gemma",)

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter(TABLE, (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the scale of the embeddings, and the inverse frequencies, kept twice, in fp32.

        Transformers 4 made the scale anew in each forward pass, on the host.
        """
        if self.recipe.old_code.one_table:
            return [4 * (self.recipe.shape.head_size // 2)]
        return [*scales(self.tape), *[4 * (self.recipe.shape.head_size // 2)] * 2]

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.recipe.shape.head_size)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """GemmaModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = scaled_embedding(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        mask = mask_of(_embeds, recipe)
        hidden = _embeds
        rotary = self.cosines_and_sines(hidden, recipe.shape.head_size)
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, position_ids, rotary), hidden)
        hidden = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Gemma
