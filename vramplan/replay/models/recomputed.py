"""Attention cores that a job may ask to recompute: each is then a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.autograd import checkpoint
from vramplan.replay.models.modules import Recipe
from vramplan.replay.observers import KeyValues
from vramplan.replay.tensors import Tensor

Context = tuple[Tensor, Tensor | None]  # the result of attention, and of eager attention its weights


def recomputable(
    recipe: Recipe,
    core: Callable[..., Context],
    *inputs: Tensor | None,
    holds: Tensor | None = None,
    are_cached: bool = True,
) -> Context:
    """Run an attention core, as a checkpoint that returns no weights if the job recomputes it.

    The function that the checkpoint runs again `holds` a tensor besides: positions among the keyword arguments, which
    the core does not use. It is no input, so it stays on the device where inputs go to the host. `are_cached` says that
    a cache has these keys and values, and not what they were made of.
    Source: torch/utils/checkpoint.py, checkpoint(use_reentrant=False); arXiv:2205.05198, section 5.
    """
    query, key, value, *rest = inputs
    assert query is not None
    cache = query.tape.role(KeyValues)
    if are_cached and cache.keeps and key is not None and value is not None:
        inputs = (query, *cache.kept(key, value), *rest)
        del key, value
    if not recipe.recomputes_core:
        return core(*inputs)

    def context(*given: Tensor | None, _held: Tensor | None = holds) -> Tensor:
        return core(*given)[0]

    return checkpoint(query.tape, context, *inputs), None
