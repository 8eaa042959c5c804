"""Training a few blocks at a time, LISA and BAdam: which parts stand for those that are frozen, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.options import words
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD, LAYERS
from vramplan.replay.models.parts import block_lists
from vramplan.replay.techniques.trained import all_but_one, is_in_turns, names_of, outer_parts
from vramplan.values.parallel import DDP, is_fsdp

if TYPE_CHECKING:
    from vramplan.catalog.fields import Fields
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

KEY, ALONE = "trained_blocks", "leave one of the two out"
BADAM = "badam"
STEPPED = (
    *(one for one in words.TORCH_OPTIMIZERS if one != "muon"),
    *(*words.BITSANDBYTES_OPTIMIZERS, words.GALORE, "galore-adafactor:RANK", "apollo-adamw:RANK"),
    *(*words.AXOLOTL_OPTIMIZERS, *words.LOOPS_ALONE),
)
"""Optimizers of one class that step whatever weights they are given."""
WHY_NOT = {
    **dict.fromkeys(words.SCHEDULE_FREE_OPTIMIZERS, "it steps after a call of train(), and BAdam's optimizer has none"),
    **dict.fromkeys(words.OPTIMI_OPTIMIZERS, "it groups no states, as blocks that were not trained yet have none"),
    words.ADAM_MINI: "it looks up the names of its weights, and BAdam's copies have none",
}
AGAINST_LISA = {
    "frozen": "so that parts inside of them cannot stay frozen",
    "adapter": "and an adapter none of them",
    "quantization": "and PyTorch trains no integers",
}
"""Why LISA contradicts what freezes weights: its callback sets `requires_grad` of all that a block has."""
AGAINST_BADAM = {
    "frozen": "whatever is frozen",
    "adapter": "whatever is beside an adapter that is no LoRA",
    "quantization": "and PyTorch trains no integers",
}
OF_LORA, OF_ADAPTER = ("lora", "dora"), ("adapter", "quantization")
"""Where a weight's name has `lora`, BAdam trains such weights alone, and leaves a frozen model as it is.

Source: badam 1.4, block_optim.py, BlockOptimizer, lora_mode.
"""
SWITCHES = {"optimizer_in_backward": "in it"}


def frozen_by_blocks(resolver: Resolver, model: ModelShape, optimizer: str, precision: str) -> tuple[str, ...]:
    """The blocks that are frozen when most is needed: those that are trained are the last ones.

    Their gradients are there first, while what all other blocks have saved still is. BAdam freezes what is no block
    too, whatever the words of `frozen` say.
    """
    raw, fields = resolver.raw, resolver.fields
    given = raw.trained_blocks
    assert given is not None
    word, _, number = given.partition(":")
    for key in (*AGAINST_LISA, *SWITCHES):
        if not getattr(raw, key) or (word != BADAM and _goes_with_lisa(key, raw.frozen)):
            continue
        if word == BADAM and raw.adapter_kind in OF_LORA and key in OF_ADAPTER:
            continue
        if word != BADAM:
            fields.refuse(KEY, f"{given} trains every weight of its blocks, {AGAINST_LISA[key]}", hint=ALONE)
        elif key in SWITCHES:
            fields.refuse(KEY, f"{given} steps its block after backward, and not {SWITCHES[key]}", hint=ALONE)
        else:
            fields.refuse(KEY, f"{given} trains all of its block and nothing else, {AGAINST_BADAM[key]}", hint=ALONE)
    of_shards = is_fsdp(raw.sharding) and raw.split is None
    alone = raw.sharding in {None, "none"} and raw.data_parallel_size == 1 and raw.split is None
    near = "one GPU, or --sharding fsdp"
    if raw.sharding == DDP:
        message = (
            f"{given} trains other blocks than the one that DDP knew when it wrapped the model: it reduces no others"
        )
        fields.refuse(KEY, message, hint=near)
    elif not (alone or of_shards):
        fields.refuse(KEY, f"{given} is modelled on one device and under FSDP", hint=near)
    known = ("amp-", "pure-", "fsdp-bf16", "fsdp-fp16") if of_shards else ("amp-", "pure-")
    if precision not in ("fp32",) and not precision.startswith(known):
        fields.refuse(KEY, f"{given} is not modelled with {precision}", hint="precision: amp-bf16 or pure-bf16")
    if word == BADAM:
        _check_stepped(fields, given, optimizer)
    if raw.activation_checkpointing == "optimal":
        fields.refuse("activation_checkpointing", f"optimal is not modelled with {KEY}", hint="use sqrt or full")
    in_one = len(model.stacks) == 1 and any(path[0] == LAYERS for path in names_of(model).paths)
    if not in_one and not (word == BADAM and _is_chained(model)):
        message = f"{given} is modelled for one stack of blocks, or a second one that reads what the first gives"
        if word != BADAM:  # LMFlow's and Axolotl's callbacks are given the name of one list, lisa_layers_attribute
            message = f"{given} trains blocks of one list, and {model.name} has none of them all"
        fields.refuse(KEY, message, hint="leave it out")
        return ()
    if word == BADAM and not any(map(is_in_turns, block_lists(model))):
        message = (
            f"{given} finds blocks by the name {LAYERS}, and those of {model.name} are called {block_lists(model)[0]}"
        )
        fields.refuse(KEY, message, hint="leave it out")
        return ()
    if word == BADAM:
        return all_but_one(model, first=False)
    trained = int(number)
    if trained > model.layers:
        message = f"{given} trains more blocks than the {model.layers} of {model.name}"
        fields.refuse(KEY, message, hint=f"at most {model.layers}")
        return ()
    last = model.layers - trained - 1
    return () if last < 0 else (f"{LAYERS}.0-{last}",)


def _is_chained(model: ModelShape) -> bool:
    """Whether there are two stacks of blocks, of which the second reads what the first gives."""
    reads = model.decoder_layers is not None or (model.takes_text and model.projection_size is None)
    return reads and not model.stored_blocks and len(model.stacks) == len(outer_parts(model)) == 2


def _check_stepped(fields: Fields, given: str, optimizer: str) -> None:
    known = {one.partition(":")[0]: one for one in STEPPED}
    if optimizer.partition(":")[0] in known:
        return
    obstacle = WHY_NOT.get(optimizer)
    message = f"{given} is not modelled with {optimizer}"
    if obstacle is not None:
        message = f"{given} cannot run with {optimizer}: {obstacle}"
    fields.refuse(KEY, message, hint=f"use {', '.join(known.values())}")


def _goes_with_lisa(key: str, frozen: Sequence[str]) -> bool:
    """Whether LISA leaves it as it is: it trains whole blocks, so that parts inside of them cannot stay frozen.

    What is in no block keeps the `requires_grad` that it has, and a step in backward runs where gradients come.
    Source: arXiv:2403.17919; LMFlow, src/lmflow/pipeline/finetuner.py, DynamicLayerActivationCallback.
    """
    return key in SWITCHES or (key == "frozen" and set(frozen) <= {EMBEDDINGS, HEAD})
