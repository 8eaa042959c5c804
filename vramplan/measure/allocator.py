"""The caching allocator of a run: the prediction has its settings, and the process of the run those of its job."""

from __future__ import annotations

import os
from collections.abc import Mapping

from vramplan.errors import UsageError
from vramplan.job.machine.allocator import ESTIMATE, SIMULATE, BadSetting, settings_of
from vramplan.values.allocator import DEFAULT, Settings
from vramplan.values.job import ResolvedJob

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where PyTorch reads settings; the first one wins (c10/core/AllocatorConfig.h of PyTorch 2.13)."""


def said(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that PyTorch reads, and its settings."""
    return next(((name, environment[name]) for name in VARIABLES if environment.get(name)), None)


def simulated(job: ResolvedJob) -> ResolvedJob:
    """The job with its allocator simulated; where it leaves that to an estimate, with the settings of the environment.

    Raises UsageError for settings that are not modelled.
    """
    return job if job.allocator is not None else job._replace(allocator=_at_hand(os.environ))


def environment_for(allocator: str | None) -> dict[str, str]:
    """The environment in which a process has the settings of its job; both variables say the same."""
    environment = dict(os.environ)
    if allocator is None or allocator == ESTIMATE or settings_of(allocator) == _at_hand(environment):
        return environment
    for name in VARIABLES:
        environment.pop(name, None)
    return environment if allocator == SIMULATE else environment | dict.fromkeys(VARIABLES, allocator)


def _at_hand(environment: Mapping[str, str]) -> Settings:
    found = said(environment)
    if found is None:
        return DEFAULT
    name, text = found
    try:
        return settings_of(text) or DEFAULT
    except BadSetting as error:
        hint = "; ".join(part for part in (error.hint, f"or unset {name}") if part)
        raise UsageError(str(error), key=name, hint=hint) from None
