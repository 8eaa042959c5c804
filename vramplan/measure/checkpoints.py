"""Checkpoints of a real model: those of Transformers, and segments of several blocks, which it does not have."""

from __future__ import annotations

from typing import Any

from vramplan.planner.checkpoints import checkpoint_ranges
from vramplan.values.job import Job


def checkpoint(job: Job, model: Any) -> None:
    """Run the blocks of each checkpoint inside one torch.utils.checkpoint.

    `full` is what activation_checkpointing_enable() of Transformers does; of segments of several blocks, which it does
    not have, the first block runs all of them and the others pass on what they are given.
    """
    strategy = job.activation_checkpointing or "none"
    if strategy == "none":
        return
    keep = job_has_data(model)
    if strategy == "full":
        how = {"use_reentrant": False, "preserve_rng_state": keep}
        switch = getattr(model, "activation_checkpointing_enable", None)  # its name since Transformers 5.23
        (switch or model.gradient_checkpointing_enable)(how)
        return
    blocks = blocks_of(model, job.model.layers)
    for first, last in checkpoint_ranges(strategy, len(blocks)):
        _as_one(blocks[first : last + 1], keep)


def job_has_data(model: Any) -> bool:
    """Whether there is a state of a random generator to keep; there is none without data."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not isinstance(next(model.parameters()).data, FakeTensor)


def blocks_of(model: Any, count: int) -> list[Any]:
    """The blocks: the first list of that many modules of one class."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and len({type(one) for one in module}) == 1:
            return list(module)
    raise AssertionError("a model has blocks")


def _as_one(blocks: list[Any], keep_random_state: bool) -> None:
    from torch.utils.checkpoint import checkpoint as checkpointed

    forwards = [block.forward for block in blocks]

    def segment(hidden: Any, *rest: Any, **named: Any) -> Any:
        def walk(hidden: Any) -> Any:
            out = hidden
            for forward in forwards:
                out = forward(out[0] if isinstance(out, tuple) else out, *rest, **named)
            return out

        return checkpointed(walk, hidden, use_reentrant=False, preserve_rng_state=keep_random_state)

    def hand_on(hidden: Any, *_: Any, **__: Any) -> Any:
        return (hidden,) if returns_tuple() else hidden

    returned: list[bool] = []

    def returns_tuple() -> bool:
        return bool(returned and returned[0])

    def first(hidden: Any, *rest: Any, **named: Any) -> Any:
        out = segment(hidden, *rest, **named)
        returned[:] = [isinstance(out, tuple)]
        return out

    blocks[0].forward = first
    for block in blocks[1:]:
        block.forward = hand_on
