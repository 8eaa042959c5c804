"""How long the sequences of a job are, and how many of its devices share a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.inputs.targets import refuse_more
from vramplan.options import words
from vramplan.options.table import MAX_DEVICES
from vramplan.values.model import ModelShape

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

DEFAULT_MAX_SEQUENCE = 2048


def sequence_length_of(resolver: Resolver, model: ModelShape | None) -> int:
    """Tokens of a sequence; more than the model has positions for are refused."""
    given = resolver.raw.sequence_length
    if model is not None and not model.takes_text:
        from vramplan.job.inputs.images import no_tokens  # only these jobs pay for it

        return no_tokens(resolver, model)
    if model is None:
        return given or DEFAULT_MAX_SEQUENCE
    if given is None:
        usual = DEFAULT_MAX_SEQUENCE
        while usual < model.image_tokens:
            usual *= 2
        length = min(model.max_positions, usual)
        resolver.assume("sequence_length", length, f"min(max_positions, {usual})")
        _check_room(resolver, model, length)
        return length
    _check_room(resolver, model, given)
    refuse_more("sequence_length", given, model, resolver.fields)
    return given


def _check_room(resolver: Resolver, model: ModelShape, length: int) -> None:
    if model.image_tokens:
        from vramplan.job.inputs.images import room_for_images  # only these jobs pay for it

        room_for_images(resolver, model, length)


def devices_per_node_of(resolver: Resolver) -> int:
    """Devices that share a host: as many as there are, up to the eight of a usual node."""
    raw, split = resolver.raw, resolver.raw.split
    devices = raw.data_parallel_size * (1 if split is None else split.devices)
    if devices > MAX_DEVICES:
        message = f"{devices:,} devices are too many; the most is {MAX_DEVICES:,}"
        resolver.fields.refuse("parallel.data", message, hint="give fewer GPUs or lower degrees of parallelism")
    usual = min(words.DEVICES_PER_NODE, devices)
    if raw.devices_per_node is None and raw.offload and devices > 1:
        resolver.assume("parallel.devices_per_node", usual, "they share the memory of a host")
    given = raw.devices_per_node or usual
    if given > devices:
        resolver.warnings.append(f"parallel.devices_per_node {given} is more than the {devices} devices of the job")
    return min(given, devices)
