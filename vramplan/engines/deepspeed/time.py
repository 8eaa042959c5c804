"""How runs of DeepSpeed spend their time: its Adam is one fused kernel (deepspeed/ops/adam/fused_adam.py)."""

from __future__ import annotations

from vramplan.planner.time.behaviour import Timing


class DeepSpeedTiming(Timing):
    """Whether sums are hidden is `overlap_comm`, which the job has."""

    fused_optimizer = True


BEHAVIOUR = DeepSpeedTiming()
