"""How runs of LitGPT spend their time: pretraining is compiled, finetuning is not.

A run in mixed precision that trains every weight is taken for a pretraining, as finetuning has recipes in bf16-true.
Sources: Lightning-AI/litgpt, litgpt/pretrain.py, main (`torch.compile(model)`); litgpt/finetune/full.py and lora.py,
which compile nothing; config_hub/finetune.
"""

from __future__ import annotations

from vramplan.planner.time.behaviour import FusedKernel, Timing
from vramplan.values.job import ResolvedJob


class LitGptTiming(Timing):
    """Elements that the kernels of a compiled block read and write for a token, where the run is a pretraining."""

    def fused_kernels(self, job: ResolvedJob) -> tuple[FusedKernel, ...]:
        """Residual sums with the norms behind them, rotary positions, and the gate of the feed-forward layer."""
        if job.adapter is not None or not job.precision.startswith(("amp-", "fsdp-")):
            return ()
        shape = job.model
        hidden, wide = shape.hidden_size, shape.intermediate_size
        turned = (shape.attention_heads + shape.key_value_heads) * shape.head_size
        gate = 3 if shape.gated_mlp else 2
        return (
            FusedKernel("fused_add_norm", 2 * 4 * hidden, 2 * 5 * hidden, launches=2),
            FusedKernel("fused_rope", 2 * turned, 2 * turned, launches=2),
            FusedKernel("fused_activation", gate * wide, (2 * gate - 1) * wide),
        )


BEHAVIOUR = LitGptTiming()
