"""The bytes that clipping and the optimizer's step move on one device."""

from __future__ import annotations

from vramplan.planner.time.behaviour import timing_of
from vramplan.replay.record import Record
from vramplan.values.job import Job

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
NORM_READS, SCALES = 1, 2  # of clipping: the norm reads every gradient, the scaling reads and writes it


def step_bytes(job: Job, record: Record) -> int:
    """What the step reads and writes on one device: states, gradients and weights, but for those on the host."""
    kept = dict.fromkeys(("weights", "gradients", "master", "optimizer"), 0)
    for state in record.states:
        if state.category in kept:
            kept[state.category] += state.at(1)
    states = kept["master"] + kept["optimizer"]
    trained = min(1.0, record.reached_parameters / max(1, record.parameters))
    weights = int(kept["weights"] * trained)
    gradients = kept["gradients"] or weights
    moved = 2 * (states + weights) + gradients
    fused = job.optimizer_implementation == "fused" or timing_of(job).fused_optimizer or bool(kept["master"])
    moved = int(moved * (FUSED_PASSES if fused else OTHER_PASSES.get(job.optimizer, FOREACH_PASSES)))
    if job.max_gradient_norm is not None:
        moved += (NORM_READS + SCALES) * gradients
    return moved


def accumulated_bytes(record: Record) -> int:
    """What adding a micro-batch's gradients to those of earlier ones moves."""
    return 3 * sum(state.at(1) for state in record.states if state.category == "gradients")
