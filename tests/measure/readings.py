"""What the steps of `vramplan calibrate` read, where there is no GPU."""

from __future__ import annotations

from typing import Any

from vramplan.measure.calibration import simulated

MIB = 2**20


def readings(**other: Any) -> dict[str, Any]:
    """An A100 on which 100 MiB are another's."""
    found = {
        "first": 520 * MIB,
        "steps": 612 * MIB,
        "forward_workspace": 8320 * 1024,
        "backward_workspace": 8320 * 1024,
        "sequence": simulated(),
        "process_group": None,
        "gpu": "NVIDIA A100-SXM4-80GB",
        "compute_capability": "8.0",
        "torch": "2.9.1",
        "cuda": "12.8",
        "used_before": 100 * MIB,
    }
    return found | other
