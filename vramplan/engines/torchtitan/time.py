"""How runs of torchtitan spend their time.

Sources: torchtitan, parallelize_llama.py, apply_fsdp and apply_tp; PyTorch 2.6, torch/distributed/pipelining/stage.py,
_PipelineStageBase.backward_maybe_with_nosync.
"""

from __future__ import annotations

from vramplan.planner.time.behaviour import Timing
from vramplan.values.job import ResolvedJob


class TorchtitanTiming(Timing):
    """Weights of tensor parallelism are DTensors, which have the elements of all devices."""

    def counted_devices(self, job: ResolvedJob) -> int:
        """Those of tensor parallelism."""
        return 1 if job.split is None else job.split.tensor

    def gathers_once(self, job: ResolvedJob) -> bool:
        """Under a pipeline weights stay gathered, and gradients unreduced, until the last micro-batch."""
        return job.split is not None and job.split.pipeline > 1


BEHAVIOUR = TorchtitanTiming()
