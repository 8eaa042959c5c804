"""The optimizers of a job, as their libraries make them.

These are torch.optim, bitsandbytes, galore-torch, apollo-torch, adam-mini, lomo-optim and those of `small_libraries`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch

from vramplan.measure import small_libraries
from vramplan.measure.parts import paths
from vramplan.measure.runnable import (
    ADAM_MINI,
    APOLLO,
    BITSANDBYTES,
    FP32_STATES,
    LOMO,
    LOW_RANK,
    MUON,
    OF_SMALL_LIBRARIES,
)
from vramplan.planner.setups import iteration_of
from vramplan.replay.models.parts import block_lists
from vramplan.replay.optimizers import MOMENTS, OF_TRANSFORMERS
from vramplan.replay.precision import precision_of
from vramplan.replay.techniques.clipping import PARTIAL_NORMS
from vramplan.replay.techniques.trained import frozen_words, is_in_turns
from vramplan.values.job import BEFORE_BACKWARD, ResolvedJob

RATE = 1e-4
IN_8_BITS = "8bit"


class SteppedTogether:
    """Several optimizers that step one after the other."""

    def __init__(self, optimizers: list[Any]) -> None:
        self.optimizers = optimizers
        self.param_groups = [group for one in optimizers for group in one.param_groups]

    def step(self) -> None:
        """Step each."""
        for one in self.optimizers:
            one.step()

    def zero_grad(self, *, set_to_none: bool) -> None:
        """Drop the gradients of each."""
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)


class OverMaster:
    """A fused step over an fp32 copy of each weight, as Megatron has it: one kernel, nothing in between.

    A stand-in: what it needs is its states. Gradients lie in buffers that are as large as the weights, so a weight that
    no gradient comes to has its states too. Where these buffers are fp32, each gradient is added to its own when
    backward has made it, and goes; they stay from then on.
    Source: megatron/core/distributed/distributed_data_parallel.py, _make_backward_post_hook (param.main_grad).
    """

    def __init__(self, job: ResolvedJob, weights: list[Any]) -> None:
        self.weights, self.states = weights, list[Any]()
        self.moments = MOMENTS[job.optimizer]
        self.param_groups: list[Any] = []
        self.sums: dict[int, Any] = {}
        for weight in weights if job.fp32_gradients else ():
            weight.register_post_accumulate_grad_hook(self._add)

    def _add(self, weight: Any) -> None:
        if id(weight) not in self.sums:
            self.sums[id(weight)] = torch.zeros_like(weight, dtype=torch.float32)
        self.sums[id(weight)].add_(weight.grad)
        weight.grad = None

    def clip(self) -> None:
        """Over fp32 buffers: one norm of all, which is read on the host, and one kernel that scales them.

        Source: megatron/core/optimizer/clip_grads.py, get_grad_norm_fp32 and clip_grad_by_total_norm_fp32.
        """
        device = self.weights[0].device
        _overflow = torch.zeros(1, dtype=torch.int32, device=device)
        partial = torch.empty(PARTIAL_NORMS, device=device)
        norm = torch.zeros(1, device=device)
        del partial
        _squared = norm**2.0

    def step(self) -> None:
        """The first one makes the copy and the moments."""
        if not self.states:
            tensors = [one for one in self.weights for _ in range(1 + self.moments)]
            self.states = [torch.zeros_like(one, dtype=torch.float32) for one in tensors]

    def zero_grad(self, *, set_to_none: bool) -> None:
        """Drop the gradients."""
        for weight in self.weights:
            weight.grad = None


def optimizer_of(job: ResolvedJob, model: Any) -> Any:
    """The optimizer of every trained weight; None where each weight is stepped in backward."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    if job.trained_blocks == "badam":
        # it counts from 1 on: then the second step is the last one of its block, or the third where two come before
        steps = 4 if job.zero_grad == BEFORE_BACKWARD else 3
        base, named = _made(job, model, trained), list(model.named_parameters())
        first = frozen_words(iteration_of(job)) != job.frozen
        turns = {"switch_mode": "ascending" if first else "descending", "switch_block_every": steps}
        turns_of = zip(job.model.stacks, block_lists(job.model), strict=True)
        start = 0 if first else sum(blocks for blocks, name in turns_of if is_in_turns(name)) - 1
        made = import_module("badam").BlockOptimizer(base, named, start_block=start, verbose=0, **turns)
        sizes = [sum(one.numel() for name, one in named if prefix[0] in name) for prefix in made.block_prefix_list]
        others = [number for number in range(len(sizes)) if number != start]
        if others:  # its own order is a random one: the next block is the one that needs most
            made.current_block_idx = max(others, key=sizes.__getitem__)
        return made
    if job.optimizer in LOMO:
        return getattr(import_module("lomo_optim"), LOMO[job.optimizer])(model, lr=RATE)
    if job.optimizer_in_backward:
        _step_in_backward(job, model, trained)
        return None
    if precision_of(job.precision, half_weights=job.half_weights).master:
        return OverMaster(job, trained)
    return _made(job, model, trained)


def _step_in_backward(job: ResolvedJob, model: Any, trained: list[Any]) -> None:
    """An optimizer for each weight, stepped in the hook behind its gradient, which then goes.

    Source: the tutorial "How to save memory by fusing the optimizer step into the backward pass" of PyTorch.
    """
    hidden = _hidden(job, model) if job.optimizer == MUON else set()
    own = {id(one): _made(job, model, [one], hidden=hidden) for one in trained}

    def step(weight: Any) -> None:
        own[id(weight)].step()
        own[id(weight)].zero_grad(set_to_none=True)

    for one in trained:
        one.register_post_accumulate_grad_hook(step)


def _made(job: ResolvedJob, model: Any, weights: list[Any], *, hidden: set[int] | None = None) -> Any:
    word, _, number = job.optimizer.partition(":")
    how: dict[str, bool] = {"foreach": job.optimizer_implementation == "foreach"}
    if job.optimizer_implementation == "fused":
        how = {"fused": True}
    optim = torch.optim
    made: dict[str, Callable[[], Any]] = {
        "adamw": lambda: optim.AdamW(weights, lr=RATE, **how),
        "adam": lambda: optim.Adam(weights, lr=RATE, **how),
        "sgd": lambda: optim.SGD(weights, lr=RATE, **how),
        "sgd-momentum": lambda: optim.SGD(weights, lr=RATE, momentum=0.9, **how),
        "rmsprop": lambda: optim.RMSprop(weights, lr=RATE, **how),
        "adafactor": lambda: optim.Adafactor(weights, lr=RATE, **how),
        "adagrad": lambda: optim.Adagrad(weights, lr=RATE, **how),
        "nadam": lambda: optim.NAdam(weights, lr=RATE, **how),
        "radam": lambda: optim.RAdam(weights, lr=RATE, **how),
        "adamax": lambda: optim.Adamax(weights, lr=RATE, **how),
        "adadelta": lambda: optim.Adadelta(weights, lr=RATE, **how),
        "asgd": lambda: optim.ASGD(weights, lr=RATE, **how),
    }
    if job.fp32_states or word in BITSANDBYTES:
        return _of_bitsandbytes(job, model, weights)
    if word == MUON:
        return _muon(weights, _hidden(job, model) if hidden is None else hidden, how)
    if word in LOW_RANK:
        return _low_rank(job, model, weights, word, int(number))
    if word == ADAM_MINI:
        return _adam_mini(job, model, weights)
    if job.optimizer_implementation == OF_TRANSFORMERS:  # as the Trainer makes it: trainer_optimizer.py, _get_adafactor
        own = import_module("transformers.optimization").Adafactor
        return own(weights, lr=RATE, scale_parameter=False, relative_step=False)
    if word in OF_SMALL_LIBRARIES:
        return small_libraries.made(job, model, weights)
    return small_libraries.late(word, made[word]())


def _hidden(job: ResolvedJob, model: Any) -> set[int]:
    """Which weights are matrices inside of the blocks: the hidden layers that Muon is for."""
    return {id(weight) for path, weight in paths(job.model, model) if "layers" in path and weight.ndim == 2}


def _muon(weights: list[Any], hidden: set[int], how: dict[str, bool]) -> Any:
    """Muon for the matrices of the blocks, and AdamW for all else (docs of torch.optim.Muon)."""
    groups = [one for one in weights if id(one) in hidden], [one for one in weights if id(one) not in hidden]
    optimizers = [torch.optim.Muon(groups[0], lr=RATE)] if groups[0] else []
    if groups[1]:
        optimizers.append(torch.optim.AdamW(groups[1], lr=RATE, **how))
    return SteppedTogether(optimizers)


def _low_rank(job: ResolvedJob, model: Any, weights: list[Any], word: str, rank: int) -> Any:
    """GaLore or APOLLO for the linear layers of the blocks; it projects anew in every step here, so that one shows it.

    Source: transformers 5.23, trainer_optimizer.py, _get_apollo_optimizer, for what APOLLO takes besides.
    """
    projected = {id(one) for one in _linear_in_blocks(job, model)}
    groups: list[dict[str, Any]] = [
        {"params": [one for one in weights if id(one) not in projected]},
        {"params": [one for one in weights if id(one) in projected], "rank": rank}
        | {"update_proj_gap": 1, "scale": 0.25, "proj_type": "std"}
        | ({"proj": "random", "scale_type": "channel"} if word == APOLLO else {}),
    ]
    package, name, more = LOW_RANK[word]
    return getattr(import_module(package), name)([one for one in groups if one["params"]], lr=RATE, **more)


def _adam_mini(job: ResolvedJob, model: Any, weights: list[Any]) -> Any:
    """Adam-mini with the sizes of the model, as LLaMA-Factory gives them (train/trainer_utils.py)."""
    shape, trained = job.model, {id(one) for one in weights}
    named = [(name, one) for name, one in model.named_parameters() if id(one) in trained]
    heads = {"dim": shape.hidden_size, "n_heads": shape.attention_heads, "n_kv_heads": shape.key_value_heads}
    return import_module("adam_mini").Adam_mini(named, lr=RATE, verbose=False, **heads)


def _linear_in_blocks(job: ResolvedJob, model: Any) -> Iterator[Any]:
    inside = {id(weight) for path, weight in paths(job.model, model) if "layers" in path}
    transposed = import_module("transformers.pytorch_utils").Conv1D  # programs with models of their own do without it
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, transposed)) and id(module.weight) in inside:
            yield module.weight


def _of_bitsandbytes(job: ResolvedJob, model: Any, weights: list[Any]) -> Any:
    """An optimizer of bitsandbytes; under the Trainer embeddings have states of 32 bits.

    Source: transformers 5.23, trainer.py, Trainer.create_optimizer.
    """
    optim = import_module("bitsandbytes.optim")
    name, more = FP32_STATES[f"{job.optimizer}-32bit" if job.fp32_states else job.optimizer]
    made = getattr(optim, name)(weights, lr=RATE, **more)
    if job.runtime.embedding_states == "fp32":
        manager = optim.GlobalOptimManager.get_instance()
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                manager.register_module_override(module, "weight", {"optim_bits": 32})
    return made
