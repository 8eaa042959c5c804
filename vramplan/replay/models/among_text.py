"""What models that put images among text have alike: the order of their parts, the width of a patch, a
text from embeddings, and an output."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Block, rotary_embedding
from vramplan.replay.models.modules import CAUSAL_LM_FP32, LOGITS, Output, Recipe, RMSNorm, Segment, output_embedding
from vramplan.replay.models.windows import has_window, masks_of
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, Parameter, Tensor

PARTS = ("vision_encoder", "projector", "language_model", "lm_head")


def sort_parts(tape: Tape, parts: Sequence[str] = PARTS) -> None:
    """Bring the parameters into the order in which the original registers its parts."""
    tape.parameters.sort(key=lambda one: parts.index(one.part[0]))


def vision_width(recipe: Recipe) -> int:
    """Elements of a patch in the vision encoder."""
    width = recipe.shape.vision_hidden_size
    assert width is not None
    return width


def output_with_images(
    tape: Tape,
    recipe: Recipe,
    hidden: Tensor,
    images: Tensor | tuple[Tensor, ...],
    labels: Tensor,
    table: Parameter,
    parts: Sequence[str] = PARTS,
) -> Output:
    """The head and the loss; the output holds the tokens that were made of the images too, or what became them."""
    with tape.building("lm_head"):
        weight = output_embedding(tape, recipe, table)
    output = causal_lm_output(hidden, weight, labels, recipe)
    sort_parts(tape, parts)
    if recipe.loss not in (CAUSAL_LM_FP32, LOGITS):
        return output  # a loss that is made of the hidden states takes those alone
    return Output(output.loss, (output.logits, *(images if isinstance(images, tuple) else (images,))))


def decoded(
    tape: Tape, recipe: Recipe, embeds: Tensor, segments: Sequence[Segment], kind: type[Block] = Block
) -> Tensor:
    """LlamaModel.forward and that of its kin, from embeddings.

    Source: transformers 5.23, models/llama/modeling_llama.py, mistral/modeling_mistral.py, qwen2/modeling_qwen2.py and
    qwen3/modeling_qwen3.py.
    """
    shape = recipe.shape
    position_ids = tape.new("arange", (1, embeds.shape[1]), INT64, False)
    masks = masks_of(embeds, recipe)
    hidden = embeds
    rotary = rotary_embedding(hidden, shape.head_size)

    def block(i: int) -> Block:
        return kind(tape, recipe, masks[has_window(shape, i)], position_ids, rotary, i)

    hidden = run_blocks(tape, segments, block, hidden, start=shape.blocks - shape.layers)
    return RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
