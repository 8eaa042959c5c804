"""The embeddings of the tokens of a text, before which a job may put virtual ones."""

from __future__ import annotations

from vramplan.replay.observers import VirtualTokens
from vramplan.replay.operators.ends import embedding
from vramplan.replay.tensors import Parameter, Tensor


def words(ids: Tensor, table: Parameter) -> Tensor:
    """What the table of the tokens gives, and before it what virtual tokens are."""
    found: Tensor = ids.tape.role(VirtualTokens).embedded(ids, lambda own: embedding(own, table))
    return found
