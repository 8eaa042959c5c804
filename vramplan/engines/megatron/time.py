"""How runs of Megatron-LM spend their time.

Sources: megatron-core 0.16, core/distributed/distributed_data_parallel_config.py (`overlap_grad_reduce` and
`overlap_param_gather` are off), training/arguments.py (`accumulate_allreduce_grads_in_fp32` is set with `--bf16`
alone), core/tensor_parallel/layers.py (`gradient_accumulation_fusion`), core/optimizer (FusedAdam);
deepspeed/runtime/pipe/engine.py and p2p.py; Transformer Engine 2.10, pytorch/attention/dot_product_attention/utils.py,
get_attention_backend (cuDNN's kernel from compute capability 9.0 on).
"""

from __future__ import annotations

from vramplan.planner.time.behaviour import CUDNN, FLASH2, Timing
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.parallel import ZERO1

HOPPER = 9


class MegatronTiming(Timing):
    """Gradients are summed after backward, unless the run asks for overlap; its kernels are fused.

    They are summed in the type of their buffer: fp32 beside bf16, and the weights' own beside fp16.
    """

    hides_sums = False
    hooks_checkpoints = False  # core/tensor_parallel/random.py, CheckpointFunction
    fused_optimizer = True

    def flash(self, gpu: Gpu) -> str:
        """What Transformer Engine prefers on the GPU."""
        newer = gpu.compute_capability is not None and int(gpu.compute_capability.partition(".")[0]) >= HOPPER
        return CUDNN if newer else FLASH2

    def adds_in_product(self, job: ResolvedJob) -> bool:
        """`gradient_accumulation_fusion`, which Megatron-DeepSpeed does not have."""
        return not _is_deepspeed(job)

    def senders(self, job: ResolvedJob) -> int:
        """`scatter_gather_tensors_in_pipeline`; DeepSpeed's `is_pipe_partitioned` and `is_grad_partitioned`."""
        return 1 if job.split is None else job.split.tensor

    def transfers(self, job: ResolvedJob) -> int:
        """Megatron-LM sends and receives at once (`send_forward_recv_backward`), DeepSpeed's schedule in turn."""
        return 4 if _is_deepspeed(job) else 2


def _is_deepspeed(job: ResolvedJob) -> bool:
    """Whether it is Megatron-DeepSpeed, whose pipeline and optimizer are DeepSpeed's."""
    return job.sharding is not None and job.sharding.kind == ZERO1


BEHAVIOUR = MegatronTiming()
