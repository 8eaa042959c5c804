"""How runs of modded-nanogpt spend their time."""

from __future__ import annotations

from vramplan.planner.time.behaviour import Timing
from vramplan.values.job import ResolvedJob


class ModdedTiming(Timing):
    """Devices take the matrices of Muon in turn (Muon.step of the script in the logs of its records)."""

    def shares_matrices(self, job: ResolvedJob) -> int:
        """All of them."""
        return job.data_parallel_size


BEHAVIOUR = ModdedTiming()
