"""What the checkpoints that a job pins and activations on the host do not go with."""

from __future__ import annotations

import re

from vramplan.catalog.fields import Fields
from vramplan.engines import FOLDERS, engine_of
from vramplan.options.words import OPTIMAL
from vramplan.replay.models import ladder_of
from vramplan.replay.models.capable import (
    divides_scores_in_place,
    is_hosted,
    no_reentrant,
    reads_first_stack,
    selective_strategies,
)
from vramplan.replay.models.parts import holds_outputs
from vramplan.replay.placed import checkpoint_ranges_in, walks_first_stack_again
from vramplan.values.model import ModelShape


def refuse_ladder(fields: Fields, given: str) -> None:
    """Refuse a strategy that one training program alone has, with its name."""
    owner = next(
        (one for one in FOLDERS for own in engine_of(one).families.values() if given in (ladder_of(own) or ())), None
    )
    if owner is not None:
        message, hint = f"{given} is {owner}'s", f"use sqrt or full, or --runtime {owner}"
        fields.refuse("activation_checkpointing", message, hint=hint)


def check_reentrant(fields: Fields, model: ModelShape, strategy: str | None, attention: str) -> None:
    """Refuse reentrant checkpoints that keep results, and those of blocks that return more than their hidden state."""
    weights = holds_outputs(model.family) and attention == "eager"  # fused kernels make none
    key = "checkpoint_reentrant"
    if strategy in ("selective", "selective-op"):
        message = f"true contradicts {strategy}: a reentrant checkpoint keeps nothing but its input"
        fields.refuse(key, message, hint="leave one of the two out")
    elif no_reentrant(model.family) is not None:
        message = f"true cannot run for {model.code}: {no_reentrant(model.family)}"
        fields.refuse(key, message, hint="set it to false")
    elif weights:
        message = f"true is not modelled for {model.code}, whose blocks return their attention weights too"
        fields.refuse(key, message, hint="leave it out")
    elif strategy is not None and reads_first_stack(model.family):
        if strategy == OPTIMAL:
            message = f"true is not modelled for {model.code} with {OPTIMAL}"
            fields.refuse(key, message, hint="set it to false, or pin full")
        elif walks_first_stack_again(strategy, model.stacks):
            message = (
                f"true cannot run for {model.code} with {strategy}: backward goes through the encoder once for each "
                "checkpoint of the decoder, and its graph is gone after the first"
            )
            fields.refuse(key, message, hint="set it to false, or use full, whose blocks get it as an argument")
        elif model.positions == "relative" and len(checkpoint_ranges_in(strategy, model.stacks)) < model.blocks:
            message = f"true is not modelled for {model.code} with {strategy}, whose checkpoints return position biases"
            fields.refuse(key, message, hint="set it to false, or use full")


def check_optimal(fields: Fields, model: ModelShape) -> None:
    """Refuse to place checkpoints where some blocks can have none: pieces do not add up between these and others."""
    if model.stored_blocks:
        message = f"{OPTIMAL} is not modelled for {model.code}: only blocks of the text can be checkpoints"
        fields.refuse("activation_checkpointing", message, hint="use sqrt, full or every:K")


def check_selective(fields: Fields, model: ModelShape, strategy: str, attention: str) -> None:
    """Refuse what a selective strategy was not traced with.

    A product that the model's code changes in place is changed twice if a checkpoint keeps it: PyTorch hands out the
    changed result, and recomputation changes that again, so that gradients are wrong without a word of warning.
    """
    key = "activation_checkpointing"
    able = selective_strategies(model.family)
    if strategy not in able:
        instead = ", ".join((*able, "sqrt", "full"))
        fields.refuse(key, f"{strategy} is not modelled for {model.code}", hint=f"use {instead} or every:K")
    elif strategy == "selective-op" and attention == "eager" and divides_scores_in_place(model):
        message = f"{strategy} gives wrong gradients with eager attention of {model.name}, whose code divides in place"
        hint = "use attention efficient" if model.key_value_heads > 1 else "use sqrt, full or every:K"
        fields.refuse(
            key, f"{message} the scores that the checkpoint keeps, and in backward divides them again", hint=hint
        )


def check_offload(fields: Fields, model: ModelShape) -> None:
    """Refuse activations on the host for a training program whose own code does not say that it moves them."""
    if not is_hosted(model.family):
        fields.refuse("offload", f"activations are not modelled for {model.code}", hint="leave it out")


def check_segments(fields: Fields, model: ModelShape, given: str) -> None:
    """Refuse segments that end before they begin, overlap, or reach beyond the blocks or into another stack."""
    key = "activation_checkpointing"
    end = -1
    for first, last in re.findall(r"(\d+),(\d+)", given):
        segment = f"[{first},{last}]"
        if int(first) > int(last):
            fields.refuse(key, f"the segment {segment} ends before it begins")
        elif int(last) >= model.blocks:
            message = f"the segment {segment} is out of range: the blocks of {model.name} are 0 to"
            fields.refuse(key, f"{message} {model.blocks - 1}")
        elif int(first) <= end:
            fields.refuse(key, f"the segment {segment} begins before the one before it has ended")
        else:
            starts = [sum(model.stacks[:k]) for k in range(1, len(model.stacks))]
            start = next((one for one in starts if int(first) < one <= int(last)), None)
            if start is not None:
                which = "second" if start == starts[0] else "third"
                message = f"the {which} stack of {model.name} begins with block {start}"
                message = f"the segment {segment} reaches from one stack into the other: {message}"
                fields.refuse(key, message)
        end = max(end, int(last))
