"""Which kernel `F.scaled_dot_product_attention` chose in PyTorch 2.0 and 2.1, where flash is FlashAttention 1.

Sources: PyTorch 2.0 and 2.1, aten/src/ATen/native/transformers/cuda/sdp_utils.h and sdp_utils.cpp, priority_order,
check_head_dim_size and check_gpu_sm86_head_dim_128; pytorch/pytorch pull requests 99644 (the order of 2.1) and 99736
(2.0.1: none of the kernels for heads of more than 64 elements on compute capability 8.6 and 8.9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.machine.software import version_of

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu
    from vramplan.values.model import ModelShape

FIRST, SECOND = (2, 0), (2, 1)  # releases of FlashAttention 1
LARGEST_HEAD, HEAD_MULTIPLE = 128, 8  # elements
SMALL_CARDS, LARGEST_ON_THEM = ("8.6", "8.9"), 64  # compute capabilities, and elements of a head there
FEW_THREADS, LEAST_LENGTH = 60, 128  # of 2.0: samples times heads, and tokens
THREADS_EACH = 6  # of 2.1: flash goes first where there are as many tokens for each head of each sample


def old_choice(resolver: Resolver, model: ModelShape, gpu: Gpu | None, *, takes_plain: bool) -> tuple[str, str] | None:
    """The kernel and why, of a job that flash could run; None where the release is another or has flash first.

    Without a micro-batch the choice is that of one sample.
    """
    raw, runtime = resolver.raw, resolver.runtime
    release = version_of(raw.pytorch_version or "")
    if release is None or runtime is None or not FIRST <= release < runtime.second_flash_since:
        return None
    said = f"PyTorch {release[0]}.{release[1]}"
    head = max(model.head_size, model.vision_head_size)
    small = gpu is not None and gpu.compute_capability in SMALL_CARDS and head > LARGEST_ON_THEM
    if small and release == FIRST and takes_plain:
        return "math", f"{said} has no kernel for heads of more than {LARGEST_ON_THEM} elements on {_named(gpu)}"
    if small:
        return "efficient", f"flash of {said} takes heads of at most {LARGEST_ON_THEM} elements on {_named(gpu)}"
    if head > LARGEST_HEAD or head % HEAD_MULTIPLE:
        limits = f"a multiple of {HEAD_MULTIPLE} elements and at most {LARGEST_HEAD}"
        return "efficient", f"flash of {said} takes heads of {limits}, not {head}"
    threads = (raw.micro_batch_size or 1) * model.attention_heads
    length = raw.sequence_length or model.max_positions
    if release == FIRST and head == LARGEST_HEAD:
        return "efficient", f"{said} asks that kernel first where heads have {LARGEST_HEAD} elements"
    if release == FIRST and threads < FEW_THREADS and length >= LEAST_LENGTH:
        return "efficient", f"{said} asks that kernel first for fewer than {FEW_THREADS} samples times heads"
    if release == SECOND and THREADS_EACH * threads > length:
        return (
            "efficient",
            f"{said} asks that kernel first for fewer than {THREADS_EACH} tokens for each head of each sample",
        )
    resolver.first_flash = True
    return "flash", f"FlashAttention 1, which {said} has: its output has sequences before heads"


def _named(gpu: Gpu | None) -> str:
    return "this GPU" if gpu is None else f"{gpu.name}, of compute capability {gpu.compute_capability}"
