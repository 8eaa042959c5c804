"""The stages of a pipeline as frozen values, for a table of all of them."""

from __future__ import annotations

from vramplan.tuples import NamedTuple


class StageRow(NamedTuple):
    """What one device of a pipeline holds at its own worst moment."""

    number: int  # from 0
    blocks: int
    embedding: bool  # whether it has the embeddings
    head: bool  # and the head
    micro_batches_in_flight: int  # of one part of the model each, where a device has several
    allocated_bytes: int
    device_bytes: int
