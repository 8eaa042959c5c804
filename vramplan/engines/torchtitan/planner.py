"""How runs of torchtitan are planned."""

from __future__ import annotations

from vramplan.planner.behaviour import PlannerBehaviour


class TorchtitanPlanner(PlannerBehaviour):
    """The last stage of a pipeline keeps the logits of every micro-batch of a step (pipeline.py)."""

    minds_micro_batches = True


BEHAVIOUR = TorchtitanPlanner()
