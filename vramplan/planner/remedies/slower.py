"""Changes after which the run computes the same, and takes longer."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.planner.behaviour import is_replicated
from vramplan.planner.candidate import NUMBERS, Candidate
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.choose import strategies_of
from vramplan.planner.judge import Judge
from vramplan.planner.remedies.same import OF_DDP, OF_FSDP
from vramplan.planner.remedies.trial import TypedJob
from vramplan.planner.setups import can_be_placed
from vramplan.results import TIME
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP, ZERO_STAGES, is_fsdp

SELECTIVE = ("selective", "selective-op")
BY_ZERO = (("optimizer",), ("parameters", "optimizer"))  # gradients go with the optimizer
BY_FSDP = (("parameters", "gradients", "optimizer"),)


def slower_run(base: ResolvedJob, judge: Judge, typed: TypedJob) -> Iterator[Candidate]:
    """More communication, more compute, or more traffic to the host."""
    yield from _sharding(base)
    yield from _checkpointing(base, judge, typed)
    yield from _offload(base)


def _sharding(base: ResolvedJob) -> Iterator[Candidate]:
    sharding = base.sharding
    if sharding is None:
        return
    kind = sharding.kind
    if sharding.no_sync:
        words = "gradients are reduced in every micro-step: more communication"
        yield Candidate({"parallel": {"no_sync": False}}, TIME, words)
    if base.split is not None:
        return
    gathered = "each block's weights are gathered when they are used"
    if is_replicated(base) or kind == FSDP_GRAD_OP or (kind == FSDP and sharding.replicas > 1):
        half = "fp16" if base.precision.endswith("fp16") else "bf16"
        whole = {"sharding": FSDP}
        yield Candidate({"parallel": whole}, TIME, gathered, "fsdp", OF_DDP)
        yield Candidate({"parallel": whole, "precision": f"fsdp-{half}"}, TIME, gathered, "fsdp", (*OF_DDP, *NUMBERS))
        yield Candidate({"parallel": {**whole, "no_sync": False}}, TIME, gathered, "fsdp", OF_DDP)
    if is_replicated(base) or kind in ZERO_STAGES[:2]:
        words = "weights are gathered by DeepSpeed when they are used"
        yield Candidate({"parallel": {"sharding": "zero3"}}, TIME, words, "zero3", (*OF_DDP, *NUMBERS))
    if kind == ZERO_STAGES[0]:
        words = "gradients are shared too"
        yield Candidate({"parallel": {"sharding": "zero2"}}, TIME, words, "zero2", OF_FSDP)


def _checkpointing(base: ResolvedJob, judge: Judge, typed: TypedJob) -> Iterator[Candidate]:
    """Strategies that were not open to choice, and checkpoints placed by size, which never are."""
    pinned = base.activation_checkpointing
    key, with_it = "activation_checkpointing", ("every_second_matmul",)
    if key in typed.given:
        for name in (*strategies_of(base), *SELECTIVE):
            if name == pinned:
                continue

            def words(name: str = name) -> str:
                return f"{judge.recomputed_fraction(name):.0%} more compute than no checkpointing"

            yield Candidate({key: name}, TIME, words, "checkpointing", with_it)
    if pinned != OPTIMAL and not base.compile and can_be_placed(base):
        yield Candidate({key: OPTIMAL}, TIME, "checkpoints placed by size", "checkpointing", with_it)


def _offload(base: ResolvedJob) -> Iterator[Candidate]:
    there = (*base.offload, *(("activations",) if base.offload_activations else ()))
    host = "live in the memory of the host and pass over its link"
    for parts in BY_FSDP if base.sharding is not None and is_fsdp(base.sharding.kind) else BY_ZERO:
        more = [*there, *(part for part in parts if part not in there)]
        if len(more) == len(there):
            continue
        words = f"{_listed(parts)} {host}"
        yield Candidate({"offload": more}, TIME, words, "offload")
        if base.sharding is None and base.precision.startswith(
            "amp-"
        ):  # ZeRO, which is taken then, steps a master copy
            mixed = base.precision.replace("amp", "mixed")
            yield Candidate({"offload": more, "precision": mixed}, TIME, words, "offload", NUMBERS)
    if not base.offload_activations:
        words = f"what forward saves {host.replace('live', 'lives').replace('pass', 'passes')}"
        yield Candidate({"offload": [*there, "activations"]}, TIME, words, "offload-activations")


def _listed(parts: tuple[str, ...]) -> str:
    """`a and b`, with what an optimizer has spelled out."""
    names = ["the optimizer's states" if part == "optimizer" else part for part in parts]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
