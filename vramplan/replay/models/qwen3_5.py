"""Qwen3.5 with images, as transformers 5.23 computes it (models/qwen3_5/modeling_qwen3_5.py, and the same in
models/qwen3_5_moe): the vision encoder of Qwen3-VL without DeepStack, whose merged patches are tokens of a Qwen3.5."""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gemma import RMSNorm
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import SELECTIVE_OP, Output, Segment
from vramplan.replay.models.qwen3_next import Block, rotary_of_axes, turned_of
from vramplan.replay.models.qwen3_vl import Qwen3VL
from vramplan.replay.models.recurrent import recurrent_mask
from vramplan.replay.tensors import INT64, Tensor
from vramplan.values.model import ModelShape


class Qwen35(Qwen3VL):
    """Qwen3_5ForConditionalGeneration and Qwen3_5MoeForConditionalGeneration, with their loss."""

    equal_blocks = False  # there are two stacks of them
    selective = SELECTIVE_OP
    has_tensor_plan = True  # configuration_qwen3_5.py; the delta nets, whose results are gathered, count as whole
    takes_padding = True
    takes_virtual_tokens = True
    head_losses = ("half-logits", "chunked:N", "fused")
    takes_samples_apart = True  # each_image
    kept_of_samples = (INT64.itemsize,)  # rope_deltas
    padding: Tensor | None = None  # the mask that comes with padded sequences

    @staticmethod
    def lists_of(shape: ModelShape) -> tuple[str, ...]:
        """The list of blocks of each stack."""
        return ("visual.blocks", "language_model.layers")

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies of images and of text, kept twice, in fp32."""
        shape = self.recipe.shape
        return [*[4 * (shape.vision_head_size // 4)] * 2, *[4 * (turned_of(shape) // 2)] * 2]

    def __call__(
        self,
        input_ids: Tensor,
        labels: Tensor,
        pixel_values: Tensor,
        token_types: Tensor,
        grid: Tensor,
        given: Tensor | None = None,
    ) -> Output:
        self.padding = given if self.recipe.padded else None
        return super().__call__(input_ids, labels, pixel_values, token_types, grid, given)

    def deep_language_model(
        self, embeds: Tensor, stacks: list[tuple[Segment, ...]], places: Tensor, deepstack: list[Tensor]
    ) -> Tensor:
        """Qwen3_5TextModel.forward, from embeddings."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        linear = shape.linear_attention
        assert linear is not None
        masks = mask_of(embeds, recipe), recurrent_mask(self.padding)
        hidden = embeds
        rotary = self.rotary(hidden)

        def kind(i: int) -> bool:
            return i in linear.layers

        def block(i: int) -> Block:
            return Block(tape, recipe, i, masks[kind(i)], None, rotary)

        (segments,) = stacks
        assert shape.vision_layers is not None
        hidden = run_blocks(
            tape, segments, block, hidden, kind=kind, alike=False, make_up=kind, start=shape.vision_layers
        )
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden

    def rotary(self, hidden: Tensor) -> Rotary:
        """Qwen3_5TextRotaryEmbedding.forward."""
        return rotary_of_axes(hidden, turned_of(self.recipe.shape))


FORWARD = Qwen35
