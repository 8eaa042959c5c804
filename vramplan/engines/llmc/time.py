"""How runs of llm.c spend their time: its kernels are fused, its loop is C, and attention is cuDNN's."""

from __future__ import annotations

from vramplan.time.behaviour import CUDNN, Timing


class LlmcTiming(Timing):
    """Gradients are summed in one call after backward (llmc/zero.cuh, multi_gpu_async_reduce_gradient)."""

    flash = CUDNN
    adds_in_product = True
    fused_optimizer = True
    loop_seconds = 0.0005


BEHAVIOUR = LlmcTiming()
