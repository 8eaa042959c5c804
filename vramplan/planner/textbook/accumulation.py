"""What texts say of gradient accumulation, as functions."""

from __future__ import annotations

# (largest k, what it costs), as texts quote it
OVERHEADS = ((2, "none"), (4, "under 5 %"), (8, "under 10 %"), (16, "under 20 %"))
BEYOND = "over 20 %"


def effective_batch(micro: int, steps: int, data: int) -> int:
    """micro * k * D."""
    return micro * steps * data


def communication_saved(steps: int) -> float:
    """1 - 1/k: the share of the all-reduces that is not made when only the last micro-step synchronises."""
    return 1 - 1 / steps


def quoted_overhead(steps: int) -> str:
    """What accumulating over k micro-steps costs in throughput, as texts quote it: a range in words."""
    return next((cost for most, cost in OVERHEADS if steps <= most), BEYOND)
