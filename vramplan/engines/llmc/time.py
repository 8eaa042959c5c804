"""How runs of llm.c spend their time: its kernels are fused, its loop is C, and attention is cuDNN's."""

from __future__ import annotations

from vramplan.planner.time.behaviour import CUDNN, Timing
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu


class LlmcTiming(Timing):
    """Gradients are summed in one call after backward (llmc/zero.cuh, multi_gpu_async_reduce_gradient)."""

    def flash(self, gpu: Gpu) -> str:
        """Its own."""
        return CUDNN

    fused_optimizer = True
    loop_seconds = 0.0005

    def adds_in_product(self, job: ResolvedJob) -> bool:
        """Every product of backward accumulates (matmul_backward, beta is 1)."""
        return True


BEHAVIOUR = LlmcTiming()
