"""The kernels of a step that are not of one fused kernel: how many tensors each reads and writes, per weight.

A kernel that adds a gradient to a state reads two tensors and writes one: 3. What has one number is left out. The
order is that of the code; what is in foreach for all weights together is in a loop once for each.
Source: torch/optim/{adagrad,nadam,radam,adamax,adadelta,asgd}.py, `_multi_tensor_*` and `_single_tensor_*`;
schedulefree/*_schedulefree.py; optimi/{adam,stableadamw}.py; grokadamw/grokadamw.py; came_pytorch/CAME.py;
prodigyopt/prodigy.py; axolotl/utils/optimizers/{adopt,adamc}.py.
"""

from __future__ import annotations

from vramplan.replay.optimizers import MOMENTS, grokadamw, of_axolotl, schedule_free
from vramplan.values.job import ResolvedJob

Accesses = tuple[int, ...]

_MOMENTS: Accesses = (3, 2, 3)  # lerp_ of the first, mul_ and addcmul_ of the second
_ROOT: Accesses = (2, 2, 2)  # sqrt, div_ by a number, add_ of epsilon

FOREACH: dict[str, Accesses] = {
    "adagrad": (3, 2, 2, 2, 4),  # addcmul_, sqrt, add_, mul, addcdiv_
    "nadam": (*_MOMENTS, *_ROOT, 4, 4),  # addcdiv_ twice
    "radam": (*_MOMENTS, *_ROOT, 2, 2, 4),  # reciprocal_, add_, addcmul_
    "adamax": (3, 2, 2, 2, 3, 4),  # lerp_, mul_, abs, add_, maximum_, addcdiv_
    "adadelta": (2, 3, 2, 2, 2, 2, 3, 3, 2, 3, 3),  # ..., add and sqrt_ twice, div_, mul_, mul_, addcmul_, add_
    "asgd": (3, 3, 3, 3),  # add, addcmul_, sub, addcmul_
    "schedule-free-adamw": (2, 3, *_ROOT, 3, 3, 3, 3),  # ..., div_ of the gradient, lerp_, add_, sub_
    "schedule-free-sgd": (3, 3, 3),
    "schedule-free-radam": (2, 3, *_ROOT, 3, 3, 3, 3),
    "stable-adamw": (*_MOMENTS, 2, 2, 3, 1, 2, 2, 2, 2, 4),  # maximum, pow_, div_, mean, mul_, copy_, sqrt_, add_, ...
    "adamw-optimi": (2, *_MOMENTS, 2, 2, 2, 4),  # mul_ of the weight, ..., copy_, sqrt_, add_, addcdiv_
    "adopt": (2, 2, 3, 2, 2, 3, 3, 2, 3),  # sqrt, maximum_, div, maximum_, minimum_, lerp_, add_, mul_, addcmul_
    "adamc": (2, *_MOMENTS, *_ROOT, 4),
}
LOOPS: dict[str, Accesses] = FOREACH | {
    "adagrad": (3, 2, 2, 4),  # addcmul_, sqrt, add_, addcdiv_
    "radam": (*_MOMENTS, 2, 2, 2, 2, 2, 2, 3, 2, 3),  # div, mul, sqrt, add_, reciprocal, mul, mul, mul, add_
    "asgd": (2, 3, 2),  # mul_, add_, copy_
    "adamw-optimi": (2, *_MOMENTS, 2, 2, 4),
    "grokadamw": (1, 2, 2, 3, 2, 3, 2, 3, 2, 3, 2, 2, 2, 4),  # norm, mul_, ..., sqrt, add_, addcdiv_
    "came": (1, 2, 2, 1, 1, 1, 3, 1, 2, 2, 3, 3, 2, 2, 1, 1, 1, 3, 2, 2, 3),  # of a matrix
    "prodigy": (3, 2, 2, 3, 2, 3, 2, 3, 2, 1, 2, 2, 4),  # sub, dot, two moments, the sum and its size; sqrt, ...
}
SMALL = {"came": 12, "grokadamw": 9, "prodigy": 2, "stable-adamw": 2, "asgd": 10}
"""Kernels of single numbers, rows and columns, which take their launches alone."""

MOVED = {"grokadamw": grokadamw.STATES}  # tensors of each weight that come from the host and go back in a step

WHOLE = {**MOMENTS, **schedule_free.STATES, "stable-adamw": 2, "adamw-optimi": 2, "grokadamw": 0, "came": 1}
WHOLE |= {"prodigy": 4, "adopt": of_axolotl.MOMENTS, "adamc": of_axolotl.MOMENTS}
"""Tensors of the shape of a weight among the states that a record counts."""


def passes(job: ResolvedJob) -> float:
    """How often a step moves what one kernel would: states and weights read and written, gradients read."""
    table = FOREACH if job.optimizer_implementation in (None, "foreach") else LOOPS
    found = table.get(job.optimizer)
    return 0 if found is None else sum(found) / (2 * (WHOLE[job.optimizer] + 1) + 1)


def launches(job: ResolvedJob) -> int:
    """Kernels of each weight in a step that loops over them."""
    found = LOOPS.get(job.optimizer)
    return 0 if found is None else len(found) + SMALL.get(job.optimizer, 0)


def moved(job: ResolvedJob) -> int:
    """Tensors of each weight that come from the host in a step, and go back."""
    return MOVED.get(job.optimizer, 0)
