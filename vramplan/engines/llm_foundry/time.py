"""How runs of llm-foundry spend their time.

Its published throughput tables were made with the first FlashAttention, as Triton or CUDA code.
Source: mosaicml/llm-foundry, scripts/train/benchmarking/README.md and the yamls beside it (`attn_impl: triton`).
"""

from __future__ import annotations

from vramplan.time.behaviour import FLASH1, Timing


class FoundryTiming(Timing):
    """The first FlashAttention."""

    flash = FLASH1


BEHAVIOUR = FoundryTiming()
