"""How training loops in plain PyTorch are planned."""

from __future__ import annotations

from types import MappingProxyType

from vramplan.planner.behaviour import PlannerBehaviour


class LoopPlanner(PlannerBehaviour):
    """Its models are those of Transformers, whose loader it calls; it gives nothing back."""

    loads_by_transformers = MappingProxyType({})


BEHAVIOUR = LoopPlanner()
