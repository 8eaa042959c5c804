"""How runs of Unsloth spend their time: its Triton kernels in place of the point-wise operators of a block.

Sources: unslothai/unsloth, unsloth/kernels/rms_layernorm.py, rope_embedding.py, swiglu.py; models/llama.py,
LlamaDecoderLayer_fast_forward.
"""

from __future__ import annotations

from vramplan.planner.time.behaviour import FusedKernel, Timing
from vramplan.values.job import ResolvedJob


class UnslothTiming(Timing):
    """Elements that each kernel reads and writes for a token of a block."""

    hooks_checkpoints = False  # unsloth_zoo/gradient_checkpointing.py, Unsloth_Offloaded_Gradient_Checkpointer

    def fused_kernels(self, job: ResolvedJob) -> tuple[FusedKernel, ...]:
        """Norms, rotary positions, the gate of the feed-forward layer, and the residual sums."""
        shape = job.model
        hidden, wide = shape.hidden_size, shape.intermediate_size
        turned = (shape.attention_heads + shape.key_value_heads) * shape.head_size
        return (
            FusedKernel("rms_layernorm", 2 * 2 * hidden, 2 * 3 * hidden, launches=2),
            FusedKernel("rope_embedding", 2 * turned, 2 * turned, launches=2),
            FusedKernel("swiglu", 3 * wide, 6 * wide),
            FusedKernel("residual_add", 2 * 3 * hidden, 2 * 3 * hidden, launches=2),
        )


BEHAVIOUR = UnslothTiming()
