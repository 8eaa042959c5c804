"""What models that put images among text have alike: the order of their parts, the width of a patch, and an output."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import CAUSAL_LM_FP32, Output, Recipe, output_embedding
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Parameter, Tensor

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
    tape: Tape, recipe: Recipe, hidden: Tensor, images: Tensor, labels: Tensor, table: Parameter
) -> Output:
    """The head and the loss; the output holds the tokens that were made of the images too."""
    with tape.building("lm_head"):
        weight = output_embedding(tape, recipe, table)
    output = causal_lm_output(hidden, weight, labels, recipe)
    sort_parts(tape)
    if recipe.loss != CAUSAL_LM_FP32:
        return output  # a loss that is made of the hidden states takes those alone
    return Output(output.loss, (output.logits, images))
