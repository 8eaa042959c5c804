"""How runs of llm-foundry spend their time.

Its published throughput tables were made with the first FlashAttention, as Triton or CUDA code.
Source: mosaicml/llm-foundry, scripts/train/benchmarking/README.md and the yamls beside it (`attn_impl: triton`).
"""

from __future__ import annotations

from vramplan.planner.time.behaviour import FLASH1, Timing
from vramplan.values.machine import Gpu


class FoundryTiming(Timing):
    """The first FlashAttention, and a loop with many callbacks."""

    def flash(self, gpu: Gpu) -> str:
        """Its own."""
        return FLASH1

    loop_seconds = 0.05  # callbacks, logs and what they synchronise in each step; fitted to the rows of those tables


BEHAVIOUR = FoundryTiming()
