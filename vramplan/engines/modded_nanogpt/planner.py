"""How runs of modded-nanogpt are planned."""

from __future__ import annotations

from vramplan.planner.behaviour import PlannerBehaviour
from vramplan.values.job import ResolvedJob

MUON = "modded-muon"  # what the engine brings under this name


class ModdedPlanner(PlannerBehaviour):
    """Its Muon shares the matrices among all devices."""

    def optimizer_of(self, job: ResolvedJob) -> str:
        """The script's own Muon, with the number of devices."""
        return f"{MUON}:{job.data_parallel_size}"


BEHAVIOUR = ModdedPlanner()
