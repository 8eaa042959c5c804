"""Model states: weights, gradients, master copy and optimizer states, whole or sharded."""

from __future__ import annotations

from vramplan.tuples import NamedTuple

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "none": 0}
"""Bytes of one element; `none` is what a text leaves out."""

MOMENTS = {
    "sgd": 0,
    "sgd-momentum": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
    "lars": 1,
    "lamb": 2,
    "lion": 1,
}
"""Optimizer states per weight: texts print 1x, 2x, 2x and 3x with the weights counted in.

SGD, momentum, RMSprop and Adam as texts quote them; LARS has SGD's momentum (arXiv:1708.03888, algorithm 1), LAMB the
moments of Adam (arXiv:1904.00962, algorithm 2), Lion one momentum (arXiv:2302.06675, algorithm 2).
"""

ZERO_STAGES = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "fsdp-grad-op": 2, "zero3": 3, "fsdp": 3}
"""Words of `parallel.sharding` as stages of ZeRO (arXiv:1910.02054, section 5; FSDP: arXiv:2304.11277, section 3)."""


class Elements(NamedTuple):
    """Bytes per element of each model state; 0 is left out."""

    weights: int
    gradients: int
    master: int
    optimizer: int


class States(NamedTuple):
    """Bytes on one device."""

    weights: int
    gradients: int
    master: int
    optimizer: int

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self)


def optimizer_bytes(parameters: int, optimizer: str, element_bytes: int) -> int:
    """Bytes of the optimizer's states, unsharded. KeyError for an optimizer that is no multiple of the weights."""
    return parameters * MOMENTS[optimizer] * element_bytes


def model_states(
    parameters: int,
    elements: Elements,
    optimizer: str,
    *,
    stage: int = 0,
    shards: int = 1,
    trainable: int | None = None,
) -> States:
    """Bytes of all states on one of `shards` devices under a stage of ZeRO.

    Where only `trainable` of the parameters are trained, the others have weights and nothing else.

    For half weights and Adam over an fp32 master copy these are 16P, (4 + 12/N)P, (2 + 14/N)P and 16P/N
    (arXiv:1910.02054, figure 1 with K = 12): stage 1 shards the optimizer and its master copy, stage 2 the gradients
    too, stage 3 everything.
    """

    def held(whole: int, from_stage: int) -> int:
        return -(-whole // shards) if stage >= from_stage else whole

    trained = parameters if trainable is None else trainable
    return States(
        weights=held(parameters * elements.weights, 3),
        gradients=held(trained * elements.gradients, 2),
        master=held(trained * elements.master, 1),
        optimizer=held(optimizer_bytes(trained, optimizer, elements.optimizer), 1),
    )
