"""What `recompute_granularity: full` recomputes, in every program over Megatron Core.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/core/transformer/transformer_block.py,
_checkpointed_forward: `uniform` keeps the input of every so many blocks; `block` recomputes the first blocks of a stage
one by one and keeps everything of the others.
"""

from __future__ import annotations

from vramplan.configs.sheet import Meaning


def whole_blocks(
    meaning: Meaning, method: str | None, number: int, layers: int | None, *of: str, method_key: str
) -> None:
    """Say which blocks are recomputed. `number`: as the program counts it. `layers`: of the whole model."""
    key = "activation_checkpointing"
    if method != "block":
        meaning.say(key, "full" if number == 1 else f"every:{number}", *of)
        return
    stages = _stages(meaning)
    if number == 0:
        meaning.say(key, "none", *of)
    elif layers is None or number * stages >= layers or stages > 1:
        meaning.say(key, "full", *of)
        if layers is None or number * stages < layers:
            meaning.lack(method_key, f"the first {number} blocks of a stage, and each is counted as recomputed")
    else:
        segments = ",".join(f"[{block},{block}]" for block in range(number))
        meaning.say(key, f"layers:[{segments}]", *of)


def _stages(meaning: Meaning) -> int:
    """How many parts a model is cut into: a device has several where its schedule is interleaved."""
    pipeline, schedule = (meaning.job.get(f"parallel.{key}") for key in ("pipeline", "schedule"))
    chunks = str(schedule.value).partition(":")[2] if schedule is not None else ""
    return int(pipeline.value if pipeline is not None else 1) * (int(chunks) if chunks.isdigit() else 1)
