"""How fast a device multiplies, attends and moves bytes: its data sheet, and what was measured of it."""

from __future__ import annotations

from vramplan.planner.time import fitted
from vramplan.planner.time.behaviour import CUDNN, EFFICIENT, FLASH1, FLASH2, timing_of
from vramplan.replay.kernels import (
    ATTENTION,
    BACKWARD,
    CONVOLUTION,
    DEQUANTIZED,
    FORWARD,
    FP8,
    PRODUCT,
    RECOMPUTE,
    UNALIGNED,
    Kernel,
)
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import WITH_TF32, Gpu

TF32_SHARE = 0.5  # of the dense bf16 rate, on every card of NVIDIA since Ampere (Ampere GA100 and GA102 whitepapers)
BEST_PRODUCT = {"amd": 0.51, fitted.BOOSTED_CARD: 1.08, "": 0.80}
"""Share of the dense rate that the best product reaches, where nobody measured the card.

The least of those of servers and workstations that were measured and do not wait for their limit of power: A100 SXM
86.9 %, A100 PCIe 81.1 %, H100 80.3 %, GH200 83.8 %, B200 77.6 %, MI300X 51.4 %, and the median of 23 cards of GeForce,
92 to 115 %. Sources: stas00/ml-engineering, compute/accelerator, maximum achievable matmul FLOPS; of GeForce
zzc0721/torch-performance-test-data, database.md at 9d82827 and issues, which the profiles of the cards name.
"""
BOOSTED, BOOSTED_WATTS = ("7.5", "8.6", "8.9", "9.0", "12.0"), 2.4e-12
"""Cards whose clock rises well above the one of the data sheet, which its rate is computed from: 1.9 to 2.0 GHz are
usual on an RTX 3090, whose rate is that of 1.695 GHz. Those are cards of GeForce, whose tensor cores run at half of the
rate with sums in fp32 and leave power for it: 2.7 to 7 W for each TFLOP/s. Cards for workstations and servers have the
same chips at the whole rate and a lower limit of power, 0.6 to 2.2 W. An H20 is a Hopper whose tensor cores were slowed
to 148 of 989 TFLOP/s and whose power was not, 2.7 W: it multiplies at 142 (zzc0721/torch-performance-test-data, issue
77), and need not lower its clock."""

LARGE_TILE, SMALL_TILE = 256 * 128, 128 * 128
LARGE_TILES = ("8.0", "9.0", "10.0")
"""Elements of the result of a product that a multiprocessor makes at once: large where it has the shared memory.

Source: NVIDIA, Matrix Multiplication Background, "Tile Quantization" and "Wave Quantization"; the shared memory is
164 KB on compute capability 8.0 and 100 KB on 8.6 (CUDA C++ Programming Guide, technical specifications).
"""
IDLE_WAVE = 0.5  # of the last wave of tiles, on average
LEAST_TILE, LEAST_TILE_SHARE = 64 * 64, 0.5
"""The smallest usual tile, for results with few elements, and what it reaches of the rate of large ones; assumed.

Source: the same page, "Typical Tile Dimensions In cuBLAS And Performance": smaller tiles are slower, as they read each
operand more often.
"""

TRANSPOSES = 2
"""How often a convolution on tensor cores moves its operands and results before and after it, where images lie with
their channels first: the kernels take channels last.

Source: NVIDIA, Deep Learning Performance, Convolutional Layers, "Channels In And Out" and "Tensor Layouts".
"""

PLAIN_PRODUCT = {"8.6": 0.68, "8.9": 0.68, "9.0": 0.78, "12.0": 0.68, "": 0.9}
"""Share of the fp32 rate that a product reaches without tensor cores: in fp32, and in 16 bits where each matrix of a
batch, or each row, does not begin at a multiple of 16 bytes, as with heads of 108 or 150 elements.

The data sheet of chips from compute capability 8.6 on counts lanes that integers take too: an RTX 3090 reaches 24.8 of
35.6 TFLOP/s, a 4090 54.7 of 82.6, a 5090 69 of 105, an H100 52 of 67, but a V100 14.1 of 15.7 and a P100 8.6 of 9.3.
Sources: zzc0721/torch-performance-test-data, database.md at 9d82827, column fp32, the median of cards of a capability;
NVIDIA, cuBLAS documentation, "Tensor Core Usage". BigScience (chronicles-prequel.md, "NHEADs comparison") took
163 s with heads of 108 elements for the step that took 121 s with 216: attention at about 10 TFLOP/s of 312.
"""

ATTENTION_SHARES = {
    FLASH1: ((0.35, 0.30), (0.40, 0.30)),
    FLASH2: ((0.61, 0.54), (0.73, 0.63)),
    CUDNN: ((0.61, 0.54), (0.73, 0.63)),
}
"""Share of the dense rate that kernels reach on an A100, long sequences, no mask: forward and backward of heads of 64
elements, then of 128. What another card reaches, of which nothing was published, is taken from it.

Sources: arXiv:2307.08691, sections 1 and 4.1 (the first: forward 30 to 50 %, backward 25 to 35 %; the second: up to
73 % and 63 %). cuDNN's is taken for as fast as the second.
"""
NEWER_INSTRUCTIONS = {"hopper": 0.51, "blackwell": 0.51}
FORMER_INSTRUCTIONS = "12."  # compute capability of Blackwell's cards for games and workstations
"""What kernels that were written for Ampere reach of these shares on later cards, which have other instructions:
`wgmma` of compute capability 9.0, `tcgen05` of 10 and 11, but those of 12 Ampere's `mma` (PTX ISA, "Target ISA Notes").

On an H100 FlashAttention-2 reaches 370 of 989 TFLOP/s (arXiv:2407.08608, figure 5): 37 % in place of 73 %.
"""
EFFICIENT_SHARES = {"hopper": 0.06}
"""Share of the dense 16-bit rate that the memory-efficient kernel reaches, which multiplies as on Ampere.

An H100 (tests/measured/h100.yaml) takes 28 ms more for a step of BERT-large than with FlashAttention, 6 ms for GPT-2:
50 to 65 TFLOP/s. Where nobody measured it, it is taken for as fast as the first FlashAttention, forward and backward.
"""
UNALIGNED_SHARES = {"volta": {1: 0.2}, "ampere": {1: 0.35}, "hopper": {1: 0.124, 2: 0.256}}
"""Share of the dense rate of products whose rows begin at multiples of 1 or 2 elements of 16 bits, as those of the head
over 50,257 or 30,522 tokens do: cuBLAS has other kernels for them. Where none is known: as if aligned.

Measured on an H100: cutlass_75_tensorop_s1688gemm_align1 under GPT-2, cutlass_80_tensorop_s16816gemm_align2 under BERT.
On an A100 the head over 50,257 tokens took 8.8 ms longer than that over 50,304 (Raschka, LLMs from scratch, "Vocabulary
padding"). On a V100 steps of GPT-2 take 44 to 86 ms longer than with an aligned head.
"""
OWN_BATCH_NORM = 0.137
"""Share of the bandwidth of the data sheet that PyTorch's own batch norm reaches, which has one block of threads for
each channel. It runs in bf16, which cuDNN's is not asked for, where channels come first.

Measured on an H100 under ResNet-50: 28.5 GB in 61.7 ms. Source of the choice: aten/src/ATen/native/Normalization.cpp.
"""
DEQUANTIZED_FLOPS = 74
"""Operations in fp32 in whose time a GPU makes one number of a 4-bit code: the kernel waits for its own instructions.

A B300 with 75 TFLOP/s takes 68.8 us for a product of 32 rows with 11,008 x 4,096 weights and 32.9 us for one with
4,096 x 4,096, of which the larger product itself reads 57 MB more: 28.3 million numbers in 28 us. Source: bitsandbytes
pull request 2051 (2026), fallback forward. On cards with much fp32 beside their bandwidth, as those of GeForce, the
bytes take longer, which is where pull request 1747 found no gain at large sizes by fewer instructions.
"""
BEFORE_LOOKUP, LONGER_BEFORE_LOOKUP = (0, 48), 1.7
"""Releases of bitsandbytes that branch for each code instead of looking it up, and how much longer they take.

Of A100 and H100 1.36 to 2.07 times, at all sizes. Source: bitsandbytes pull requests 1746 and 1747 (September 2025).
"""
CODE_BYTES = 0.5  # of a number in 4 bits
SMALL_HEAD = 96  # elements of a head, from which on the rates of heads of 128 are taken

EIGHT_BIT_PRECISIONS = ("fp8", "fsdp-fp8")
AMD = ("cdna1", "cdna2", "cdna3", "cdna4")


class Rates(NamedTuple):
    """A device at a precision. Rates are those reached, but for `peak`."""

    peak_flop_per_s: float  # of the data sheet, at the precision of the products: that of MFU and HFU
    products: dict[str, float]  # FLOP/s by element type of the operands
    product_dtype: str  # element type of the operands, at the precision of the run
    half_flop_per_s: float  # of the data sheet, in 16 bits
    bytes_per_s: float
    flash: str  # the kernel of fused attention
    idle_elements: float  # of the result of a product, that could be made while its last wave of tiles is
    plain: str  # the element type whose products run without tensor cores, on smaller tiles
    transposed: frozenset[str]  # element types whose convolutions turn operands and results, as images lie otherwise
    convolution_fp32: float  # FLOP/s of convolutions in fp32
    dequantized_per_s: float  # numbers that are made of 4-bit codes, where no bytes are waited for
    host_seconds: dict[str, float]  # from one launch of a kernel to the next, by direction
    gpu: Gpu

    @property
    def product_flop_per_s(self) -> float:
        """What products reach at the precision of the run."""
        return self.products[self.product_dtype]

    def seconds(self, kernel: Kernel, flops: int, moved_bytes: float, written_bytes: int) -> float:
        """One run of a kernel: the slowest of its operations, its bytes and its launches."""
        waiting = max(moved_bytes / self.moving(kernel), kernel.launches * fitted.LAUNCH_SECONDS)
        if kernel.operator == DEQUANTIZED:
            return max(self.dequantizing(kernel, moved_bytes - written_bytes, written_bytes), fitted.LAUNCH_SECONDS)
        if not flops:
            return waiting
        if kernel.kind == ATTENTION:
            return max(flops / self.attention(kernel), waiting)
        computing = flops / self.product(kernel)
        if kernel.kind == CONVOLUTION:
            turning = TRANSPOSES * moved_bytes / self.bytes_per_s if kernel.dtype in self.transposed else 0.0
            return max(computing, waiting) + turning
        assert kernel.kind == PRODUCT
        return max(computing * self.idle(kernel, written_bytes), waiting)

    def moving(self, kernel: Kernel) -> float:
        """Bytes that a kernel reads and writes in a second."""
        if kernel.operator == "native_batch_norm" and kernel.dtype == "bfloat16" and self.transposed:
            return self.bytes_per_s * OWN_BATCH_NORM / fitted.BANDWIDTH
        return self.bytes_per_s

    def dequantizing(self, kernel: Kernel, whole_bytes: float, written_bytes: int) -> float:
        """Seconds in which numbers are made of codes; `whole_bytes` are those of the numbers before they were codes."""
        numbers = whole_bytes / (4 if kernel.dtype == "float32" else 2)
        return max((numbers * CODE_BYTES + written_bytes) / self.bytes_per_s, numbers / self.dequantized_per_s)

    def product(self, kernel: Kernel) -> float:
        """FLOP/s of the full waves of a product or convolution."""
        if kernel.kind == CONVOLUTION and kernel.dtype == "float32":
            return self.convolution_fp32
        share = UNALIGNED_SHARES.get(self.gpu.architecture or "", {}).get(kernel.aligned)
        if share is not None and kernel.dtype in ("float16", "bfloat16"):
            return share * self.half_flop_per_s
        return self.products.get(kernel.dtype, self.products["float32"])

    def idle(self, kernel: Kernel, written_bytes: int) -> float:
        """The time of a product over that in which its tiles would fill all waves."""
        if not written_bytes or kernel.dtype in (self.plain, UNALIGNED):
            return 1.0
        products = min(2, kernel.launches) if kernel.direction == BACKWARD else 1  # both gradients, or one
        elements = written_bytes / (4 if kernel.dtype == "float32" else 2)
        waiting = products * self.idle_elements / elements
        least = products * IDLE_WAVE * (self.gpu.multiprocessors or 0) * LEAST_TILE / elements
        return min(1 + waiting, (1 + least) / LEAST_TILE_SHARE)

    def attention(self, kernel: Kernel) -> float:
        """FLOP/s of a fused attention kernel, of all scores that it makes."""
        backward, large = kernel.direction == BACKWARD, kernel.head_size > SMALL_HEAD
        if "float32" in kernel.dtype:
            shares = ATTENTION_SHARES[FLASH2 if self.flash == EFFICIENT else self.flash]
            return self.products["float32"] * shares[large][backward]
        if self.flash == EFFICIENT:
            like = ATTENTION_SHARES[FLASH1][large][backward]
            share = EFFICIENT_SHARES.get(self.gpu.architecture or "", like)
            return share * self.half_flop_per_s
        published = dict(self.gpu.attention_flop_per_s).get(self.flash)
        if published is not None:
            rate = published[2 * large + backward]
        else:
            rate = ATTENTION_SHARES[self.flash][large][backward] * self.half_flop_per_s
            if self.flash != CUDNN:  # which is written for each
                rate *= _newer_instructions(self.gpu)
        if self.flash == CUDNN:  # the others were fitted with the clock that a generation keeps
            rate *= fitted.products_on(self.gpu.architecture) / fitted.PRODUCTS[""]
        return rate * fitted.ATTENTION[self.flash]


def rates_of(job: ResolvedJob) -> Rates | None:
    """How fast the GPU of a job is; None where its peak rate at that precision is not known."""
    gpu = job.gpu
    half = gpu.bf16_flop_per_s if job.precision.endswith("bf16") else gpu.fp16_flop_per_s
    half = half or gpu.fp16_flop_per_s or gpu.bf16_flop_per_s
    single = gpu.fp32_flop_per_s
    tensor = half * TF32_SHARE if half and gpu.architecture in WITH_TF32 else None
    peak = half
    if job.precision in EIGHT_BIT_PRECISIONS:
        peak = gpu.fp8_flop_per_s
    elif job.precision == "fp32":
        peak = tensor or single if job.tf32 else single
    if peak is None or gpu.memory_bandwidth_bytes_per_s is None:
        return None
    dtype = {"fp8_rate": FP8, "fp32": "float32", "bf16_rate": "bfloat16", "fp16": "float16"}[rate_key(job)]
    best = best_product(gpu)
    plain = (single or half or peak) * PLAIN_PRODUCT.get(gpu.compute_capability or "", PLAIN_PRODUCT[""])
    products = {"float32": plain, UNALIGNED: plain}
    if job.tf32 and tensor is not None:
        products["float32"] = tensor * best
    if half is not None:
        products |= dict.fromkeys(("float16", "bfloat16"), half * best)
    if gpu.fp8_flop_per_s is not None:
        products[FP8] = gpu.fp8_flop_per_s * best
    tile = LARGE_TILE if gpu.compute_capability in LARGE_TILES else SMALL_TILE
    turned = frozenset({"float16", "bfloat16", *(("float32",) if tensor else ())})
    derated = fitted.products_on(fitted.BOOSTED_CARD if is_boosted(gpu) else gpu.architecture)
    return Rates(
        peak_flop_per_s=peak,
        products={name: rate * derated for name, rate in products.items()},
        product_dtype=dtype if dtype in products else "float32",
        half_flop_per_s=half or peak,
        bytes_per_s=gpu.memory_bandwidth_bytes_per_s * fitted.BANDWIDTH,
        flash=_flash(job),
        idle_elements=IDLE_WAVE * (gpu.multiprocessors or 0) * tile,
        plain="" if tensor and job.tf32 else "float32",
        transposed=frozenset() if job.channels_last else turned,
        # torch.backends.cudnn.allow_tf32 is true by default, unlike that of products (PyTorch, CUDA semantics)
        convolution_fp32=(plain if tensor is None else tensor * best) * derated,
        dequantized_per_s=(single or half or peak) / (DEQUANTIZED_FLOPS * _longer(job.bitsandbytes)),
        host_seconds=_host_seconds(job),
        gpu=gpu,
    )


def _flash(job: ResolvedJob) -> str:
    """The kernel of fused attention: PyTorch 2.0 and 2.1 have the first FlashAttention."""
    if job.attention == "efficient":
        return EFFICIENT
    return FLASH1 if job.first_flash else timing_of(job).flash(job.gpu)


def _host_seconds(job: ResolvedJob) -> dict[str, float]:
    """From one launch to the next, by direction; checkpoints without reentrance have hooks."""
    timing, found = timing_of(job), fitted.HOST_SECONDS
    if timing.python_backward:
        found = {**found, BACKWARD: found[FORWARD]}
    if timing.hooks_checkpoints and not job.checkpoint_reentrant:
        found = {**found, RECOMPUTE: found[RECOMPUTE] + fitted.HOOK_SECONDS}
    return found


def _longer(release: str | None) -> float:
    """How many times longer a release of bitsandbytes takes to make numbers of codes; None is the one that was read."""
    if release is None or tuple(map(int, release.split(".")[:2])) >= BEFORE_LOOKUP:
        return 1.0
    return LONGER_BEFORE_LOOKUP


def rate_key(job: ResolvedJob) -> str:
    """The key of a GPU that has the peak rate of a job's products."""
    if job.precision in EIGHT_BIT_PRECISIONS:
        return "fp8_rate"
    if job.precision == "fp32":
        return "fp32"
    return "bf16_rate" if job.precision.endswith("bf16") else "fp16"


def missing_rate(job: ResolvedJob) -> tuple[str, str] | None:
    """The key of a GPU without which a step has no time, and what it is in words; None where it has one."""
    if rates_of(job) is not None:
        return None
    if job.gpu.memory_bandwidth_bytes_per_s is None:
        return "memory_bandwidth", "memory bandwidth"
    key = rate_key(job)
    return key, f"{key.removesuffix('_rate')} rate"


def best_product(gpu: Gpu) -> float:
    """Share of the dense 16-bit rate that the best product reaches: measured, or that of cards like it."""
    half = gpu.bf16_flop_per_s or gpu.fp16_flop_per_s
    if gpu.product_flop_per_s is not None and half:
        return gpu.product_flop_per_s / half
    if is_boosted(gpu):
        return BEST_PRODUCT[fitted.BOOSTED_CARD]
    return BEST_PRODUCT["amd" if gpu.architecture in AMD else ""]


def is_boosted(gpu: Gpu) -> bool:
    """Whether a card's clock rises well above that of the data sheet."""
    half = gpu.bf16_flop_per_s or gpu.fp16_flop_per_s
    return bool(half and gpu.compute_capability in BOOSTED and (gpu.tdp_watts or 0.0) / half >= BOOSTED_WATTS)


def _newer_instructions(gpu: Gpu) -> float:
    """What a kernel that was written for Ampere reaches of its share there."""
    if (gpu.compute_capability or "").startswith(FORMER_INSTRUCTIONS):
        return 1.0
    return NEWER_INSTRUCTIONS.get(gpu.architecture or "", 1.0)
