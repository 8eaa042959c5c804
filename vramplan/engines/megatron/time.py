"""How runs of Megatron-LM spend their time.

Sources: megatron-core 0.16, core/distributed/distributed_data_parallel_config.py (`overlap_grad_reduce` and
`overlap_param_gather` are off, `grad_reduce_in_fp32`), core/tensor_parallel/layers.py (`gradient_accumulation_fusion`),
core/optimizer (FusedAdam).
"""

from __future__ import annotations

from vramplan.time.behaviour import FP32, Timing


class MegatronTiming(Timing):
    """Gradients are summed in fp32 after backward, unless the run asks for overlap; its kernels are fused."""

    hides_sums = False
    summed = FP32
    adds_in_product = True
    fused_optimizer = True


BEHAVIOUR = MegatronTiming()
