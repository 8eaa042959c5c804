"""Attention cores that a job may ask to recompute: each is then a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.autograd import checkpoint
from vramplan.replay.models.modules import Recipe
from vramplan.replay.observers import KeyValues
from vramplan.replay.tensors import Tensor

Context = tuple[Tensor, Tensor | None]  # the result of attention, and of eager attention its weights


def cached(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with which a block goes on, under the names of those that it made: these end with the cache's."""
    return key.tape.role(KeyValues).kept(key, value)


def recomputable(
    recipe: Recipe,
    core: Callable[..., Context],
    *inputs: Tensor | None,
    holds: Tensor | None = None,
) -> Context:
    """Run an attention core, as a checkpoint that returns no weights if the job recomputes it.

    The function that the checkpoint runs again `holds` a tensor besides: positions among the keyword arguments, which
    the core does not use. It is no input, so it stays on the device where inputs go to the host.
    Source: torch/utils/checkpoint.py, checkpoint(use_reentrant=False); arXiv:2205.05198, section 5.
    """
    query = inputs[0]
    assert query is not None
    if not recipe.recomputes_core:
        return core(*inputs)

    def context(*given: Tensor | None, _held: Tensor | None = holds) -> Tensor:
        return core(*given)[0]

    return checkpoint(query.tape, context, *inputs), None
