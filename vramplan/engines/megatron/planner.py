"""How runs of Megatron-LM are planned."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.planner.behaviour import PlannerBehaviour, Sharing
from vramplan.values.job import Job
from vramplan.values.parallel import DISTRIBUTED_OPTIMIZER


class MegatronPlanner(PlannerBehaviour):
    """Megatron recomputes runs of blocks of one length, and shares the optimizer's states among replicas."""

    unplaced = (
        "placements are not modelled under megatron, which recomputes none, the core, or blocks in equal runs",
        "vramplan fit answers with none, selective, full and every:K",
    )

    def shared_states(self, base: Job) -> Iterator[Sharing]:
        """The distributed optimizer."""
        assert base.sharding is not None
        cost = "fp32 copies and moments are shared, and gathered weights"
        job = base._replace(sharding=base.sharding._replace(kind=DISTRIBUTED_OPTIMIZER))
        yield {"parallel": {"sharding": DISTRIBUTED_OPTIMIZER}}, cost, job


BEHAVIOUR = MegatronPlanner()
