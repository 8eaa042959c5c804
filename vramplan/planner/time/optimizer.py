"""The time of clipping and of the optimizer's step on one device: bytes, launches, and the products of Muon."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vramplan.engines import imported
from vramplan.options.words import BITSANDBYTES_OPTIMIZERS, LATER_TORCH_OPTIMIZERS, OTHER_OPTIMIZERS
from vramplan.planner.time.behaviour import timing_of
from vramplan.planner.time.fitted import HOST_SECONDS
from vramplan.planner.time.rates import Rates
from vramplan.replay.kernels import FORWARD, NOTHING, PRODUCT, Kernel, Stepped
from vramplan.replay.optimizers import OF_TRANSFORMERS
from vramplan.replay.record import Record
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import is_fsdp

FUSED_PASSES = 1.0
FOREACH_PASSES = 2.6
"""How often an optimizer of several kernels moves what a fused one moves.

AdamW of torch.optim in fp32: 28 bytes an element when fused (weight, gradient and two moments read, all but the
gradient written), 72 as foreach or for-loop (`_multi_tensor_adamw`: the decay of the weight, `lerp_` of the first
moment, `mul_` and `addcmul_` of the second, `sqrt`, `div_`, `add_`, and `addcdiv_` of the weight).
"""
OTHER_PASSES = {"sgd": 1.0, "sgd-momentum": 1.6, "adafactor": 76 / 12}
"""The same of optimizers whose kernels do not move each state as often as AdamW's.

SGD adds the gradient to the weight, 12 bytes of 12, and with momentum also to the moment that it scales, 32 of 20.
Adafactor's states are a row and a column, but eleven kernels pass over every element: the norm of the weight and its
decay, two norms of the gradient, the estimate (`mm`), `div_`, `clamp_`, `rsqrt_`, `mul_` by the gradient, a norm, and
`add_` to the weight: 76 bytes of the 12 of weight and gradient.
Source: torch/optim/sgd.py and _adafactor.py, `_single_tensor_sgd` and `_single_tensor_adafactor`.
"""
WIDE_BYTES = {"adalomo": (84, 94), "galore-adafactor": (84, 102)}
"""Bytes of an element of a weight that kernels in fp32 move, of weights in fp32 and in 16 bits.

Both are a kind of Adafactor: the square of the gradient, epsilon, means of rows and columns (two reads), their product
(a write), `mul_` by the gradient, norms of update and weight (two reads), `div_`, and `add_` to the weight: 68. AdaLomo
divides the gradient by the scale of the loss and copies the weight, 8 each, galore-torch's multiplies by the rate and
negates the update, 8 each. In 16 bits the gradient and the weight are cast, 6 each,
and the weight is cast back: 6, in the place of AdaLomo's copy of 8.
Source: lomo_optim/adalomo.py, AdaLomo.fuse_update; galore_torch/adafactor.py, Adafactor.step.
"""
PROJECTED_BYTES = {"galore-adafactor": (40, 58)}
"""The same of a matrix that is projected: a read of the gradient and one of the weight, the product back, `mul`, `neg`
and `add_`; in its subspace an element is moved next to nothing.
"""
NORM_READS, SCALES = 1, 2  # of clipping: the norm reads every gradient, the scaling reads and writes it
"""A GradScaler reads and writes every gradient too, to divide it by the scale of the loss and to look for infinities.

Source: torch/amp/grad_scaler.py, `_unscale_grads_` (`_amp_foreach_non_finite_check_and_unscale_`).
"""


BF16_BYTES = 2
LOOPS = ("for-loop", OF_TRANSFORMERS)  # implementations that step one weight after another
KERNELS = {"adamw": 8, "adam": 7, "sgd": 1, "sgd-momentum": 3, "rmsprop": 5, "adafactor": 11}
KERNELS |= {"adalomo": 27, "galore-adafactor": 24} | dict.fromkeys(BITSANDBYTES_OPTIMIZERS, 1)
"""Of each tensor in a step that loops over them, one after another; foreach runs each for all tensors together.

AdamW has those of `FOREACH_PASSES`, Adam no decay of the weight, SGD `add_`, with momentum `mul_` and `add_` of it,
RMSprop `mul_`, `addcmul_`, `sqrt`, `add_` and `addcdiv_`. AdaLomo and galore-torch's Adafactor have those of
`WIDE_BYTES` and as many again of factors and scalars; bitsandbytes has one. Source: torch/optim, `_single_tensor_*`.
"""

MUON = "muon"
AROUND, ITERATIONS = 8, 5
"""Kernels of a matrix beside its products (`lerp_`, `lerp`, the copy in bf16, its norm, `clamp`, `div_`, the decay and
`add_` of the weight), and how often it is made anew.

Source: torch/optim/_muon.py, `_single_tensor_muon` and `_zeropower_via_newtonschulz`.
"""


def step_seconds(job: ResolvedJob, record: Record, rates: Rates) -> float:
    """Seconds of the step, with clipping; each kernel takes the time of its bytes, its operations or its launch."""
    stepping, clipping = step_bytes(job, record)
    seconds = stepping / rates.bytes_per_s
    if record.stepped and (_steps_each(job, record) or not is_fused(job, record)):
        seconds += _waiting_seconds(job, record.stepped, seconds)
    if job.optimizer == MUON:
        share = timing_of(job).shares_matrices(job)
        seconds += sum(_orthogonal_seconds(one, share, rates) for one in record.stepped if is_matrix(one))
    moved = 2 * _counted(job, "moved") * _trained_bytes(record)
    if moved:  # one way after the other, between kernels
        seconds += imported("vramplan.planner.time.communication:copy_seconds")(moved, job.gpu)
    return seconds + clipping / rates.bytes_per_s


def _steps_each(job: ResolvedJob, record: Record) -> bool:
    """Whether a fused kernel steps one weight after another, as those of bitsandbytes do; a master copy is flat."""
    return job.optimizer in BITSANDBYTES_OPTIMIZERS and not _has_master(record)


def is_matrix(one: Stepped) -> bool:
    """Whether Muon steps these weights: matrices inside the blocks."""
    return one.in_block and len(one.shape) == 2


def _waiting_seconds(job: ResolvedJob, stepped: Sequence[Stepped], seconds: float) -> float:
    """What tensors take longer than their bytes do, whose kernels are shorter than their launches."""
    word = job.optimizer.partition(":")[0]
    loops = job.optimizer_implementation in LOOPS or word in BITSANDBYTES_OPTIMIZERS
    elements = sum(prod(one.shape) * one.copies for one in stepped)
    share = _share_of_tensors(job, stepped)
    waiting = 0.0
    for one in stepped:
        looped = KERNELS.get(word) or _counted(job, "launches")
        launches = AROUND if job.optimizer == MUON and is_matrix(one) else looped * loops
        each = seconds * prod(one.shape) / elements / share
        waiting += one.copies * share * max(0.0, launches * HOST_SECONDS[FORWARD] - each)
    return waiting


def _share_of_tensors(job: ResolvedJob, stepped: Sequence[Stepped]) -> float:
    """Of all weights, those of which a device steps a part, on average.

    FSDP1 puts those of a unit behind each other, and cuts the row into a piece for each device: n tensors and N pieces
    meet n + N - 1 times. A weight that has no part here has no gradient either (torch/distributed/fsdp/_flat_param.py,
    FlatParamHandle._use_sharded_grad_views). The shards of FSDP2 have a part of every weight.
    """
    sharding = job.sharding
    if sharding is None or not is_fsdp(sharding.kind) or sharding.version != 1:
        return 1.0
    tensors = sum(one.copies for one in stepped) / (job.model.blocks + 1)
    return min(1.0, (tensors + sharding.shards - 1) / (tensors * sharding.shards))


def _orthogonal_seconds(one: Stepped, share: int, rates: Rates) -> float:
    """The products of the matrices of a shape, of which a device has every `share`-th.

    Of each X they are X X', the square of that, and the next X.
    """
    short, long = sorted(one.shape)
    sizes = ((short, long, short), (short, short, short), (short, short, long))
    return -(-one.copies // share) * ITERATIONS * sum(_product_seconds(*size, rates) for size in sizes)


def _product_seconds(rows: int, inner: int, columns: int, rates: Rates) -> float:
    """A product of two matrices in bf16."""
    written = rows * columns * BF16_BYTES
    kernel = Kernel(
        operator="mm",
        direction=FORWARD,
        kind=PRODUCT,
        unit=0,
        dtype="bfloat16",
        head_size=0,
        launches=1,
        flops=NOTHING,
        again=NOTHING,
        read=NOTHING,
        written=NOTHING,
        shapes=(),
        times=1,
    )
    moved = written + (rows + columns) * inner * BF16_BYTES
    return rates.seconds(kernel, 2 * rows * inner * columns, moved, written)


def step_bytes(job: ResolvedJob, record: Record) -> tuple[int, int]:
    """What the step reads and writes on one device, and clipping and a scaler: of what is not on the host.

    States in managed memory are counted as those of the device, where they stay while there is room.
    """
    kept = dict.fromkeys(("weights", "gradients", "master", "optimizer"), 0)
    for state in record.states:
        if state.category in kept:
            kept[state.category] += state.at(1)
    states = kept["master"] + kept["optimizer"] + record.managed_bytes
    weights = _trained_bytes(record)
    gradients = kept["gradients"] or weights
    passes = FUSED_PASSES if is_fused(job, record) else _passes(job)
    moved = _wide_bytes(job, record) or int((2 * (states + weights) + gradients) * passes)
    scaled = 0 if job.max_gradient_norm is None else NORM_READS + SCALES
    return moved, (scaled + SCALES * job.grad_scaler) * gradients


def _counted(job: ResolvedJob, figure: str) -> float:
    """A figure of an optimizer whose kernels are counted one by one; 0 of the others, which need not import them."""
    if job.optimizer not in (*LATER_TORCH_OPTIMIZERS, *OTHER_OPTIMIZERS):
        return 0
    found: float = imported(f"vramplan.planner.time.step_kernels:{figure}")(job)
    return found


def _trained_bytes(record: Record) -> int:
    """Bytes of the weights that are trained."""
    trained = min(1.0, record.reached_parameters / max(1, record.parameters))
    return int(sum(state.at(1) for state in record.states if state.category == "weights") * trained)


def _passes(job: ResolvedJob) -> float:
    """How often an optimizer of several kernels moves its states, weights and gradients."""
    return _counted(job, "passes") or OTHER_PASSES.get(job.optimizer, FOREACH_PASSES)


def _wide_bytes(job: ResolvedJob, record: Record) -> int:
    """What kernels in fp32 move, whatever the weights are; nothing of other optimizers.

    A record that does not say what is stepped asks for a bound: no weight is moved less than one that is projected.
    """
    word = job.optimizer.partition(":")[0]
    if word not in WIDE_BYTES:
        return 0
    half = job.half_weights or job.precision.startswith("pure-")
    if job.adapter is not None:
        half = job.adapter.dtype != "fp32"
    moved = 0
    if not record.stepped:
        least: int = PROJECTED_BYTES.get(word, WIDE_BYTES[word])[half]
        return least * record.reached_parameters
    for one in record.stepped:
        table = PROJECTED_BYTES if word in PROJECTED_BYTES and is_matrix(one) else WIDE_BYTES
        moved += table[word][half] * prod(one.shape) * one.copies
    return moved


def is_fused(job: ResolvedJob, record: Record) -> bool:
    """Whether one kernel steps a weight, or all of them."""
    return job.optimizer_implementation == "fused" or timing_of(job).fused_optimizer or _has_master(record)


def _has_master(record: Record) -> bool:
    return any(state.category == "master" and state.at(1) for state in record.states)


def accumulated_bytes(record: Record) -> int:
    """What adding a micro-batch's gradients to those of earlier ones moves."""
    return 3 * sum(state.at(1) for state in record.states if state.category == "gradients")
