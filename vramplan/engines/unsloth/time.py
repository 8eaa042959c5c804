"""How runs of Unsloth spend their time: its Triton kernels in place of the point-wise operators of a block.

Sources: unslothai/unsloth, unsloth/kernels/rms_layernorm.py, rope_embedding.py, swiglu.py; models/llama.py,
LlamaDecoderLayer_fast_forward; kernels/fast_lora.py and utils.py, `matmul_lora` (`A.to(dtype)`, `B.to(dtype)`).
"""

from __future__ import annotations

from vramplan.planner.time.behaviour import FusedKernel, Timing
from vramplan.values.job import ResolvedJob


class UnslothTiming(Timing):
    """Elements that each kernel reads and writes for a token of a block."""

    hooks_checkpoints = False  # unsloth_zoo/gradient_checkpointing.py, Unsloth_Offloaded_Gradient_Checkpointer
    python_backward = True  # kernels/fast_lora.py, LoRA_MLP, LoRA_QKV and LoRA_W

    def fused_kernels(self, job: ResolvedJob) -> tuple[FusedKernel, ...]:
        """Norms, rotary positions, the gate of the feed-forward layer, and the residual sums."""
        shape = job.model
        hidden, wide = shape.hidden_size, shape.intermediate_size
        turned = (shape.attention_heads + shape.key_value_heads) * shape.head_size
        adapter = job.adapter
        casts = () if adapter is None or adapter.dtype != "fp32" else _casts(len(adapter.targets))
        return (
            *casts,
            FusedKernel("rms_layernorm", 2 * 2 * hidden, 2 * 3 * hidden, launches=2),
            FusedKernel("rope_embedding", 2 * turned, 2 * turned, launches=2),
            FusedKernel("swiglu", 3 * wide, 6 * wide),
            FusedKernel("residual_add", 2 * 3 * hidden, 2 * 3 * hidden, launches=2),
        )


def _casts(layers: int) -> tuple[FusedKernel, ...]:
    """Both matrices of an adapter become 16 bits before each product, whose bytes are next to nothing."""
    return (FusedKernel("lora_cast", 0, 0, launches=2 * layers),)


BEHAVIOUR = UnslothTiming()
