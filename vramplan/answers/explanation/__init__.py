"""The derivation of one job: every operator of a block, what it saves and why, and the peak with all that is alive.

Nothing is computed a second time: the step is replayed on a tape that takes notes, and the notes must have the very
events that `fit` judged. Every sum here is checked against the answer of `fit`; a difference is a bug, not a rounding.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module

from vramplan.answers.behaviour import wording_of
from vramplan.answers.explanation.life import life
from vramplan.answers.explanation.sections import sections
from vramplan.answers.explanation.states import states
from vramplan.answers.explanation.trace import Trace
from vramplan.answers.fit import describe
from vramplan.errors import UsageError
from vramplan.planner.decision import ALWAYS, decide
from vramplan.replay.rules import home_of, name_of, read, read_model, rooms, rules_of
from vramplan.results import FitResult
from vramplan.results.explain import Alive, Explanation, Rule, Section, State, Top, Totals
from vramplan.values.job import ResolvedJob, shares_weights

STATES_RULE = "optimizers.optimizer_states"
BESIDE = ("model", "adapter-off")  # a second forward pass, of a reference


def explain(job: ResolvedJob, *, block: int | None = None, tensor: str | None = None) -> Explanation:
    """Derive the answer of `fit` for a job, showing one block and, if named, one tensor.

    `block` is counted from 0; left out it is the one in the middle, which meets the outside nowhere.
    Raises UsageError if there is no such block or tensor, or as `decide` does, and where Python dropped docstrings.
    """
    if sys.flags.optimize > 1:
        raise UsageError("the rules are read from docstrings, which Python -OO drops", hint="run it without -OO")
    if job.teacher is not None:
        message = "the forward pass of a teacher is not derived: only that of the model that trains is"
        raise UsageError(message, key="teacher", hint="leave it out; fit counts it")
    if job.dpo_reference in BESIDE:
        message = "the forward pass of a reference is not derived: only that of the model that trains is"
        raise UsageError(message, key="dpo_reference", hint="precomputed; fit counts the reference")
    if job.checkpoint_reentrant:
        message = "the graph that a reentrant checkpoint walks in backward is not explained"
        raise UsageError(message, key="checkpoint_reentrant", hint="timeline shows it; or leave it out")
    if job.tiled_mlp is not None:
        message = "the graphs that tiles walk in backward are not explained"
        raise UsageError(message, key="tiled_mlp", hint="timeline shows them; or leave it out")
    underived = wording_of(job).underived
    if underived is not None:
        raise UsageError(underived[0], key="runtime", hint=underived[1])
    if shares_weights(job):
        message = "what devices gather and reduce round each block is not derived"
        raise UsageError(message, key="parallel.sharding", hint="timeline shows it; or explain one device")
    if job.sharding is not None and job.sharding.bucket_views:
        message = "gradients that become views of their buckets are not derived"
        raise UsageError(message, key="parallel.gradient_as_bucket_view", hint="timeline shows them; or leave it out")
    if job.compile:
        message = "a compiled step has no operators of its own to show: point-wise ones are fused"
        raise UsageError(message, key="compile", hint="fit and timeline answer it; leave it out")
    decision = decide(job, closer_from=ALWAYS)
    layers = job.model.numbered_blocks
    if block is not None and not 0 <= block < layers:
        raise UsageError(f"there is no block {block}", key="--block", hint=f"blocks are 0 to {layers - 1}")
    shown = job.model.layers // 2 if block is None else block  # of two stacks, in the first
    fit = describe(decision)
    micro = decision.choice.rung.schedule.micro_batch_size
    trace = Trace(decision.setup, micro)
    if trace.record.peaks(micro) != decision.judge.replays.shown(decision.setup, micro).peaks(micro):
        raise RuntimeError("the traced replay is not the one that was judged")
    held = states(trace)
    parts = sections(trace, rule_of, shown)
    peak = _peak(trace, held, fit)
    totals = _totals(trace, held, fit)
    return Explanation(
        fit=fit,
        block=shown,
        states=held,
        sections=parts,
        peak=peak,
        rules=_rules(parts, held),
        totals=totals,
        tensor=None if tensor is None else life(trace, rule_of, held, tensor, shown),
    )


def _peak(trace: Trace, held: tuple[State, ...], fit: FitResult) -> Top:
    """Everything that is alive at the peak; sums to its components, and so to the allocated bytes."""
    phase, moment = trace.record.worst(trace.batch)
    rows: dict[tuple[str, str, int], list[int]] = {}
    for index, copies in trace.sums(trace.record.alive(phase, moment)).items():
        birth = trace.births[index]
        row = rows.setdefault((trace.group_of(birth), trace.component(birth), trace.bytes_of(birth)), [0])
        row[0] += copies * birth.copies
    alive = [
        Alive(tensor.name, state.component, tensor.copies, tensor.bytes, tensor.total_bytes)
        for state in held
        for tensor in state.tensors
    ]
    alive += [Alive(*key[:2], row[0], key[2], key[2] * row[0]) for key, row in rows.items() if row[0] and key[2]]
    sums: dict[str, int] = {}
    for one in alive:
        sums[one.component] = sums.get(one.component, 0) + one.total_bytes
        if one.copies < 0:
            raise RuntimeError(f"{one.name} is alive {one.copies} times")
    if {name: size for name, size in sums.items() if size} != {part.name: part.bytes for part in fit.components}:
        raise RuntimeError("what is alive at the peak does not sum to the components of the answer")
    order = {part.name: place for place, part in enumerate(fit.components)}
    alive.sort(key=lambda one: (order.get(one.component, len(order)), -one.total_bytes))
    reached = trace.record.events[moment.position] if moment.position >= 0 else None
    return Top(
        phase=phase,
        operator=fit.peak.operator,
        tensor=None if reached is None or reached < 0 else trace.group_of(trace.births[reached]),
        allocated_bytes=sum(sums.values()),
        alive=tuple(alive),
    )


def _totals(trace: Trace, held: tuple[State, ...], fit: FitResult) -> Totals:
    kept = dict.fromkeys(("embedding", "blocks", "head"), 0)
    first = next((birth.born_at for birth in trace.births if birth.blocks is not None), 0)
    for index, copies in trace.record.kept().items():
        birth = trace.births[index]
        part = "blocks" if birth.blocks is not None else "embedding" if birth.born_at < first else "head"
        kept[part] += copies * trace.sizes[index]
    saved = sum(kept.values())
    if saved != fit.peak.saved_bytes:
        raise RuntimeError("what forward keeps does not sum to the saved bytes of the answer")
    return Totals(
        states_bytes=sum(state.bytes for state in held),
        saved_embedding_bytes=kept["embedding"],
        saved_blocks_bytes=kept["blocks"],
        saved_head_bytes=kept["head"],
        saved_bytes=saved,
        components=tuple((component.name, component.bytes) for component in fit.components),
        allocated_bytes=fit.peak.allocated_bytes,
    )


@lru_cache(maxsize=1)
def all_rules() -> dict[str, Rule]:
    """Every rule of the engine by its name, in the order of the files."""
    return {
        name_of(function.__module__, function.__name__): read(function)
        for room in rooms()
        for function in rules_of(import_module(room))
    }


def rule_of(name: str) -> Rule:
    """The rule of a name: one of the engine, or code of a model that allocates by itself."""
    known = all_rules().get(name)
    if known is not None:
        return known
    module, _, path = name.partition(".")
    return read_model(import_module(home_of(module)), path)


def _rules(parts: tuple[Section, ...], held: tuple[State, ...]) -> tuple[Rule, ...]:
    """The rules that made something here, in the order of the files."""
    used = {"optimizers.step", "engine.backward"}
    if any(state.component in ("master", "optimizer") for state in held):
        used.add(STATES_RULE)
    for section in parts:
        if section.checkpointed:
            used.add("engine.checkpoint")
        for operator in section.operators:
            used.update(operator.inside)
            used.update(made.rule for made in operator.makes if made.rule)
            if operator.rule:
                used.add(operator.rule)
    models = sorted(used.difference(all_rules()))
    return (*(rule for name, rule in all_rules().items() if name in used), *map(rule_of, models))
