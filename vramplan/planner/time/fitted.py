"""The constants that were fitted to published rates, and the rows to which each was.

Everything else of this room is arithmetic, a data sheet or a published measurement of one kernel.
"""

from __future__ import annotations

from vramplan.planner.time.behaviour import CUDNN, FLASH1, FLASH2
from vramplan.replay.kernels import BACKWARD, FORWARD, RECOMPUTE
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import Split


class FittedRate(NamedTuple):
    """A constant that was chosen in sight of published rates, which therefore say less about it."""

    constant: str
    meaning: str
    fitted_from: tuple[str, ...]  # names of cases, * standing for any text


BOOSTED_CARD = "boosted"  # of GeForce, in place of its generation
PRODUCTS = {"": 0.83, "hopper": 0.765, "blackwell": 0.74, BOOSTED_CARD: 0.98}
"""Of the rate of the best product, that of the full waves of the products of a training step, by generation.

Hopper lowers its clock under a load that lasts, which the best product alone does not show, and so does Blackwell in
servers: 0.74 has no bias over Llama of Megatron-Bridge on B200, GB200 and GB300. Nemotron and Llama on GB200, which it
was not fitted to (fifth_rates.yaml), take 6 % longer than with it, and 16 % longer than with 0.83. Cards of GeForce,
whose tensor cores run at half of the rate, wait less for operands and keep their clock: timm's rates on an RTX 3090
have a median error of 5 % and no bias with 0.98, and 11 % with 0.83.
"""

ATTENTION = {FLASH1: 0.98, FLASH2: 0.84, CUDNN: 0.84}
"""Of the published rate of an attention kernel on long sequences without a mask, that in a training step."""

BANDWIDTH = 0.62
"""Of the bandwidth of the data sheet, that of kernels which read and write."""

CONTENTION = 0.34
"""Of the time in which communication runs beside kernels, what it slows them by: both want memory and processors."""

LOOP_SECONDS = 0.010
"""Of each step outside its kernels: the loop, the data loader's hand-over, logging."""

LAUNCH_SECONDS = 4e-6
"""The least time of a kernel."""

HOST_SECONDS = {FORWARD: 18e-6, RECOMPUTE: 18e-6, BACKWARD: 12e-6}
"""What the host takes on average from one kernel of an eager step to the next, with the views and modules around it.

Backward runs in C++ alone. Without a device, PyTorch 2.13 on one core of an EPYC takes 13 to 17 and 8 to 11 us for
each kernel of GPT-2, Llama and BERT under autocast, with blocks so small that nothing else takes time.
"""

HOOK_SECONDS = 24e-6
"""What the host takes longer for a kernel that a checkpoint without reentrance computes again: hooks put away what each
kernel saves, in forward and again when it is recomputed, and look it up in backward.

Not fitted: measured without a device, as above, 24 us for each of Llama's kernels and 16 us with LoRA on all layers,
where other kernels take 14 us in place of `HOST_SECONDS`; with `use_reentrant=True` there are none.
"""

COMPILED_SECONDS = 9e-6
"""What the host takes from one kernel to the next where Inductor has compiled the step without CUDA graphs.

Not fitted: 6.8 us for a kernel without arguments and 9.1 us for one with 19 (meta-pytorch/tritonbench, pull request
1017, April 2026, `nop_inductor_per_kernel` on a GB200).
"""

COMPILED_KERNELS = 1.5
"""Kernels of a compiled step for each of its products and attentions, those that Inductor fuses between them included.

Not fitted: PyTorch 2.13 on a CPU makes 3 kernels beside the 5 of a block of GPT-2 in forward and 5 beside 9 in
backward, 4 beside 8 and 6 beside 15 of Llama.
"""

CONSTANT_MFU = {"volta": 35.0, "ampere": 52.0, "hopper": 40.0, "": 40.0}
"""Percent, by generation: what a table of utilisation would say, beside which `vramplan validate` prints every error.

The medians of the rows that the other constants were fitted to; where there are none, the middle of the 30 to 50 % that
texts name.
"""

_BERT, _RESNET = "h100 bert-large-uncased 32 x 512 amp-bf16 flash", "h100 resnet-50 256 images amp-bf16"
_EFFICIENT = ("h100 gpt2 8 x 1024 amp-bf16 e*", "h100 bert-* amp-fp16 e*")
_LAUNCHED = ("h100 gpt2 2 x 1024 *", "h100 bert-large-uncased 8 x 512 amp-bf16 *", "h100 gpt2-xl 1 x 1024 *")
_FOUNDRY = ("foundry-a100-*", "foundry-h100-80-*")
FITTED_FROM = (
    FittedRate("PRODUCTS", "products", ("titan-old-*", "foundry-a100-*", "fmsfsdp-*a100*")),
    FittedRate("PRODUCTS[hopper]", "products on Hopper", ("foundry-h100-80-*", "fmsfsdp-*h100*")),
    FittedRate("ATTENTION", "fused attention", (*_FOUNDRY, "titan-old-*", "fmsfsdp-*")),
    FittedRate("BANDWIDTH", "kernels that read and write", (*_FOUNDRY, "titan-old-*", "fmsfsdp-*")),
    FittedRate("CONTENTION", "communication beside kernels", (*_FOUNDRY, "titan-old-*", "fmsfsdp-*")),
    FittedRate("FoundryTiming.loop_seconds", "the loop of llm-foundry", _FOUNDRY),
    FittedRate("PRODUCTS[blackwell]", "products on Blackwell", ("bridge-llama3*-b200*", "bridge-llama3*-gb?00*")),
    FittedRate("PRODUCTS[boosted]", "products of cards with a high boost clock", ("timm-*",)),
    FittedRate("Rates.plain", "no idle wave of products without tensor cores", ("hf-bertlarge-*",)),
    FittedRate("UNALIGNED_SHARES", "products over an odd vocabulary", ("h100 gpt2 8 x 1024 amp-bf16 flash", _BERT)),
    FittedRate(
        "UNALIGNED_SHARES[ampere]", "the same on an A100", ("raschkaspeed-8-compile", "raschkaspeed-9-vocabulary")
    ),
    FittedRate(
        "UNALIGNED_SHARES[volta]",
        "the same on a V100",
        ("dstune-gpt2-hf-b8", "dstune-gpt2-hand-b8", "dstune-gpt2-auto-b15"),
    ),
    FittedRate("OWN_BATCH_NORM", "batch norm in bf16", (_RESNET,)),
    FittedRate("EFFICIENT_SHARES", "the memory-efficient kernel", _EFFICIENT),
    FittedRate("HOST_SECONDS", "launches from Python", _LAUNCHED),
    FittedRate("CONSTANT_MFU", "the baseline", (*_FOUNDRY, "titan-old-*", "fmsfsdp-*")),
)
"""Every constant that was chosen in sight of published rates. No other row of tests/measured has moved one."""


def products_on(architecture: str | None) -> float:
    """`PRODUCTS` of a generation, or of `BOOSTED_CARD`."""
    return PRODUCTS.get(architecture or "", PRODUCTS[""])


class Reach(NamedTuple):
    """How far the published rates of a class go: the least hidden size of their models, and the most devices."""

    hidden_size: int
    devices: int


CLASSES = {
    ("llm-foundry", "ampere"): Reach(768, 128),
    ("llm-foundry", "hopper"): Reach(1536, 512),
    ("torchtitan", "ampere"): Reach(4096, 64),
    ("fms-fsdp", "ampere"): Reach(4096, 128),
    ("fms-fsdp", "hopper"): Reach(5120, 96),
    ("megatron", "ampere"): Reach(4096, 512),
    ("megatron", "hopper"): Reach(4096, 440),
}
"""Programs and generations of GPUs of which published rates in bf16 are met: those of `FITTED_FROM` and, of
Megatron, rates that no constant was fitted to."""

HOST_SHARE = 0.01  # of a step, above which it waits for the host, as none of those runs does


def is_calibrated(job: ResolvedJob, host_share: float) -> bool:
    """Whether the constants are known to hold for jobs like this one: every weight is trained, in bf16, on the GPU.

    Nor is the model narrower than those whose rates were published, nor are there more devices, nor does a device have
    a part of each sequence: kernels that are shorter, and sums over more machines, were not compared.
    """
    whole = job.adapter is None and not job.frozen and not job.offload and not job.offload_activations
    reach = CLASSES.get((job.runtime.engine, job.gpu.architecture or ""))
    if reach is None or not whole or host_share > HOST_SHARE:
        return False
    split = job.split or Split()
    within = job.model.hidden_size >= reach.hidden_size and job.data_parallel_size * split.devices <= reach.devices
    return within and split.context == 1 and job.precision.endswith("bf16") and job.model.experts is None
