"""How runs of llm.c are planned."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.planner.behaviour import PlannerBehaviour
from vramplan.planner.candidate import Candidate
from vramplan.results import NOTHING
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import ZERO1


class LlmcPlanner(PlannerBehaviour):
    """llm.c computes some operators again in every block or in none, and has stage 1 of ZeRO."""

    unplaced = (
        "llm.c has no checkpoints to place: it computes gelus and norms again in every block, or in none",
        "vramplan fit answers with none, gelu and more",
    )

    def shared_states(self, base: ResolvedJob) -> Iterator[Candidate]:
        """Its option `-z 1`."""
        words = "none: weights are gathered after each step"
        yield Candidate({"parallel": {"sharding": ZERO1}}, NOTHING, words)


BEHAVIOUR = LlmcPlanner()
