"""The optimizers of small libraries, as their own code makes them, in a step that is not one of their first.

Some look at how many steps have been done, or at numbers of the weights: a trace on tensors without data gives these.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vramplan.measure import known
from vramplan.measure.runnable import OF_SMALL_LIBRARIES
from vramplan.values.job import ResolvedJob

RATE = 1e-4
STEPS = 10  # that have been done: RAdam rectifies from the 6th on
ON_HOST, ON_DEVICE = ("cpu", False), ("cuda", False)
READ: dict[str, dict[tuple[str, bool], Any]] = {
    "nadam": {ON_HOST: 0.5},  # the product of its momenta, and a count
    "radam": {ON_HOST: float(STEPS)},
    "asgd": {ON_DEVICE: 1.0},  # the average is the weight itself, for the first million steps
    # the sum of all gradients, which ends the step where it is 0; whether a weight has a number that is not
    "prodigy": {ON_DEVICE: 1.0, ("cuda", True): True},
    "adopt": {ON_HOST: float(STEPS), ("cpu", True): False},  # whether this is the first step
}
"""What an optimizer reads in its step, where it is another number than a trace gives elsewhere."""


def late(word: str, optimizer: Any) -> Any:
    """The same optimizer, whose steps read the numbers of `READ`."""
    numbers = READ.get(word)
    if numbers is not None:
        optimizer.register_step_pre_hook(lambda *_: known.WHILE_STEPPING.update(numbers))
        optimizer.register_step_post_hook(lambda *_: known.WHILE_STEPPING.clear())
    return optimizer


def made(job: ResolvedJob, model: Any, weights: list[Any]) -> Any:
    """An optimizer of a small library; a schedule-free one is in training, as the Trainer says before each step."""
    word, how = job.optimizer, job.optimizer_implementation
    module, name = OF_SMALL_LIBRARIES[word]
    more: dict[str, Any] = {}
    if how == "fused":
        more = {"triton": True}
    elif how == "foreach" or word.startswith(("schedule-free", "adopt", "adamc")):
        more = {"foreach": how == "foreach"}
    elif word.endswith(("adamw-optimi", "stable-adamw")):
        more = {"foreach": False, "triton": False}
    optimizer = getattr(import_module(module), name)(weights, lr=RATE, **more)
    if word.startswith("schedule-free"):
        optimizer.train()
        for group in optimizer.param_groups:
            group["k"] = STEPS
    if word == "prodigy":  # weights of zeros, which it looks for, are those of LoRA's second matrices
        for path, weight in model.named_parameters():
            if "lora_B" in path:
                weight.any = bool
    return late(word, optimizer)
