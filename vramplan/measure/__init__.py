"""Real steps beside predicted ones: `vramplan measure`, and `record()` for a training loop of your own.

    from vramplan.measure import record

    with record({"model": "gpt2", "gpu": "local", "micro_batch_size": 4}, output="measured.yaml") as recorded:
        train_step()
    print(recorded.allocated_bytes, recorded.relative_error)

No other command imports this package, and torch is imported when something is run.
"""

from __future__ import annotations

from vramplan.measure.record import Recorded, record

__all__ = ["Recorded", "record"]
