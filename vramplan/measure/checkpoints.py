"""Checkpoints of a real model: those of Transformers, and segments of several blocks, which it does not have."""

from __future__ import annotations

from typing import Any

from vramplan.answers.placement import placement_code
from vramplan.report.placement_code import python
from vramplan.values.job import Job


def checkpoint(job: Job, model: Any) -> None:
    """Run the blocks of each checkpoint inside one torch.utils.checkpoint.

    `full` is what activation_checkpointing_enable() of Transformers does. Segments of several blocks, which it does not
    have, are made by the code that people are given for them.
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
    namespace: dict[str, Any] = {}
    exec(python(placement_code(job)), namespace)
    namespace["place_checkpoints"](model, preserve_rng_state=keep)


def job_has_data(model: Any) -> bool:
    """Whether there is a state of a random generator to keep; there is none without data."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not isinstance(next(model.parameters()).data, FakeTensor)
