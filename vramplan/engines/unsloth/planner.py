"""How runs of Unsloth are planned."""

from __future__ import annotations

from types import MappingProxyType

from vramplan.planner.behaviour import PlannerBehaviour


class UnslothPlanner(PlannerBehaviour):
    """It loads checkpoints that have 4 bits already, and trains with the Trainer of Transformers.

    Source: unsloth 2026.10.9, models/mapper.py, whose names with 4 bits replace those of a model.
    """

    loads_by_transformers = MappingProxyType({"stored": True, "empties": True})


BEHAVIOUR = UnslothPlanner()
