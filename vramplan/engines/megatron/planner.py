"""How runs of Megatron-LM are planned."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.planner.behaviour import PlannerBehaviour
from vramplan.planner.candidate import Candidate
from vramplan.results import NOTHING
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DISTRIBUTED_OPTIMIZER


class MegatronPlanner(PlannerBehaviour):
    """Megatron recomputes runs of blocks of one length, and shares the optimizer's states among replicas."""

    unplaced = (
        "placements are not modelled under megatron, which recomputes none, the core, or blocks in equal runs",
        "vramplan fit answers with none, selective, full and every:K",
    )

    keeps_buffers = True

    def runs_other_modules(self, job: ResolvedJob) -> bool:
        """Fused attention comes with Transformer Engine's modules; Megatron-core's local ones were traced."""
        return job.attention != "eager"

    def shared_states(self, base: ResolvedJob) -> Iterator[Candidate]:
        """The distributed optimizer."""
        words = "none: fp32 copies and moments are shared, and weights gathered after the step"
        yield Candidate({"parallel": {"sharding": DISTRIBUTED_OPTIMIZER}}, NOTHING, words)


BEHAVIOUR = MegatronPlanner()
