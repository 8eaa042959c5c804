"""One tensor from birth to death, found by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from vramplan.answers.explanation.sections import BACKWARD, FORWARD, RECOMPUTE, STEP, reason
from vramplan.answers.explanation.trace import BLOCK, Trace, full_name, group_name
from vramplan.errors import UsageError, near_matches
from vramplan.replay.notes import Birth, OperatorRun
from vramplan.replay.observers import Accumulation
from vramplan.results.explain import Blocks, Keeper, Life, Point, Rule, State

MOST_CANDIDATES = 12
OPTION = "--tensor"
# parts of names of what is made from a tensor: a part of a name means the tensor itself before these
HEADS = ("logits", "lm_head")  # what people call the product with the head
PRODUCTS_WITH_THE_HEAD = ("times_head.mm", "times_head.addmm")  # in every family, without biases and with them
DERIVED = ("grad", "fresh_grad", "backward", "recomputed", "master", "optimizer", "step")
_NUMBERED = re.compile(rf"{BLOCK}\.(\d+)\.(.+)")


def life(trace: Trace, rules: Callable[[str], Rule], states: Sequence[State], name: str, block: int) -> Life:
    """Follow the tensor of a name. Raises UsageError if there is none, or more than one.

    `block.17.attn.softmax` is the one of block 17, `attn.softmax` and `block.attn.softmax` that of the block `block`; a
    part of a name is enough where it names one tensor.
    """
    name = name.strip().strip(".")
    outside = {birth.label: birth for birth in trace.heads() if birth.blocks is None}
    if name in outside:  # also the gradient of a block's output that the head makes
        return _of_storage(trace, rules, outside[name], block)
    numbered = _NUMBERED.fullmatch(name)
    if numbered:
        block = int(numbered[1])
        if block >= trace.layers:
            raise UsageError(f"there is no block {block}", key=OPTION, hint=f"blocks are 0 to {trace.layers - 1}")
    inside = name.startswith(f"{BLOCK}.")
    label = numbered[2] if numbered else name.removeprefix(f"{BLOCK}.")
    here = {birth.label: birth for birth in trace.heads() if _in(birth.blocks, block)}
    if inside:
        outside = {}
    standing = {
        tensor.name.removeprefix(f"{BLOCK}."): (state, tensor)
        for state in states
        for tensor in state.tensors
        if not inside or tensor.name.startswith(f"{BLOCK}.")
    }
    labels = dict.fromkeys([*standing, *here, *outside])
    found = label if label in labels else _part(label, list(labels), name)
    birth = outside.get(found) or here.get(found)
    if birth is not None:
        return _of_storage(trace, rules, birth, block)
    return _of_state(trace, states, found, block)


def _in(blocks: Blocks | None, block: int) -> bool:
    return blocks is not None and block in blocks.numbers()


def _part(label: str, labels: list[str], name: str) -> str:
    """The one name that a part of it names."""
    if not label:
        raise UsageError("no name is given", key=OPTION, hint="the names are those that `vramplan explain` prints")
    wanted = f".{label.lower()}."
    close = [known for known in labels if wanted in f".{known.lower()}."]
    close = close or [known for known in labels if label.lower() in known.lower()]
    close = close or [known for known in PRODUCTS_WITH_THE_HEAD if label.lower() in HEADS and known in labels]
    first = [known for known in close if not any(part in DERIVED for part in known.split("."))]
    ends = [known for known in close if f".{known.lower()}".endswith(f".{label.lower()}")]
    for some in (close, ends, first):
        if len(some) == 1:
            return some[0]
    if not close:
        hint = near_matches(label, labels) or "the names are those that `vramplan explain` prints"
        raise UsageError(f"no tensor is called {name!r}", key=OPTION, hint=hint)
    close = first or close
    listed = ", ".join(close[:MOST_CANDIDATES])
    more = f" and {len(close) - MOST_CANDIDATES} more" if len(close) > MOST_CANDIDATES else ""
    raise UsageError(f"{name!r} may be any of {len(close)} tensors", key=OPTION, hint=f"one of {listed}{more}")


def _of_storage(trace: Trace, rules: Callable[[str], Rule], birth: Birth, block: int) -> Life:
    chain = trace.chain(birth)
    told, where = trace.copies.fate(chain[-1], trace.number_of(birth, block))
    chain[-1] = last = told
    later = block if where is None else where
    if where == trace.number_of(birth, block):
        later = trace.copies.neighbour(chain[-1], later)
    group = trace.group_of(birth)
    alive, kept = trace.alive.get(group, [0, 0]), trace.kept.get(group, [0, 0])
    size = trace.bytes_of(birth)
    copies = birth.copies * (birth.blocks.copies if birth.blocks else 1)
    born, died = _born(trace, birth, block), _died(trace, birth, last, later)
    moments = [
        (birth.born_at, Point(f"it is born in {birth.step.phase}", 1, size)),
        (trace.moment.position, Point(f"the peak, in {trace.phase}", *alive)),
        (last.died_at, Point(f"its death in {last.died_phase}", 0, 0)),
    ]
    if birth.step.phase == FORWARD:
        moments.append((trace.record.saved_at, Point("the end of forward", *kept)))
    moments.sort(key=lambda moment: moment[0])
    return Life(
        name=trace.name_of(birth, block),
        shape=birth.shape,
        dtype=birth.dtype.name if birth.dtype else None,
        bytes=size,
        copies=copies,
        blocks=birth.blocks,
        component=trace.component(birth),
        components=tuple(trace.component(part) for part in chain),
        state=False,
        born=born,
        born_phase=birth.step.phase,
        rule=birth.rules[0] if birth.rules else None,
        keepers=_keepers(trace, rules, birth, told, block, later),
        views=_views(trace, birth, block),
        at_peak=trace.is_at_peak(birth, block),
        copies_at_peak=alive[0],
        died=died,
        died_phase=last.death_direction,
        points=tuple(point for _, point in moments),
    )


def _keepers(
    trace: Trace, rules: Callable[[str], Rule], birth: Birth, told: Birth, block: int, later: int
) -> tuple[Keeper, ...]:
    """Who keeps it: operators of its own block, and those that it is handed to; of all blocks alike, one for all."""
    if birth.blocks is None:
        found = {}
        for keep in birth.keeps:
            label = keep.owner.label
            several = len({other.owner.blocks for other in birth.keeps if other.owner.label == label}) > 1
            name = group_name(keep.owner.blocks, label) if several else trace.step_name(keep.owner)
            found[name, keep.owner.operator, keep.roles] = Keeper(name, *reason(rules, keep.owner, keep))
        return tuple(found.values())
    own = [(keep, block) for keep in birth.keeps if keep.owner.blocks == birth.blocks]
    others = [(keep, later) for keep in told.keeps if keep.owner.blocks != told.blocks]
    return tuple(
        Keeper(_name_of(trace, keep.owner, told, number), *reason(rules, keep.owner, keep))
        for keep, number in own + others
    )


def _views(trace: Trace, birth: Birth, block: int) -> tuple[str, ...]:
    """Operators that only look at the storage: they made nothing of it."""
    return tuple(
        trace.step_name(step, block)
        for step in trace.steps
        if step.direction == birth.step.direction and not step.births and birth.index in step.inputs
        if step.blocks == birth.blocks
    )


def _born(trace: Trace, birth: Birth, block: int) -> str:
    step = birth.step
    if step.direction == STEP:
        return f"scratch of the optimizer step, by {birth.operator}"
    if step.direction == BACKWARD:
        if step.of is None:
            return "the gradient of the loss with respect to itself, with which backward begins"
        by = f"the backward of {trace.step_name(step.of, block)}"
        if birth.gradient_of is not None:
            of = trace.ref_name(birth.gradient_of, block, step.of.blocks)
            return f"the gradient of {of}, made by {birth.operator} in {by}"
        return f"scratch of {by}, by {birth.operator}"
    again = ", when the segment is computed again in backward" if step.direction == RECOMPUTE else ""
    what = f"made by {birth.operator}"
    if birth.source is not None:
        what = f"the copy of {trace.ref_name(birth.source, block, step.blocks)} in the dtype of autocast"
    return what + (f" in {'.'.join(step.parts)}" if step.parts else "") + again


def _died(trace: Trace, birth: Birth, last: Birth, block: int) -> str:
    """How it ends; `last` is the storage that tells it, in this block."""
    after = _name_of(trace, last.death_after, last, block) if last.death_after else "the start"
    direction, ended = last.death_direction, last.death
    if direction == STEP:
        if birth.step.direction == STEP:
            return f"scratch: the optimizer step is done with it after {after}"
        return "zero_grad(set_to_none=True), after the optimizer step"
    if direction in (FORWARD, RECOMPUTE):
        if trace.component(last) == "weight_casts":
            whose = "the recomputation's own context" if direction == RECOMPUTE else "its context"
            return f"autocast drops its copies when {whose} ends, after {after}"
        kept = "" if not last.keeps else ", as backward has run what it was kept for"
        return f"nobody keeps it{kept}: the last variable that holds it goes after {after}"
    if ended is None or ended.of is None:
        return "backward begins"
    name = _name_of(trace, ended.of, last, block)
    if birth.step.direction == BACKWARD:
        if ended is not last.step:
            return f"the backward of {name}, into which it went, has run"
        if _is_weight(trace, birth) and trace.tape.role(Accumulation).resident:
            return "it is added to the gradient of the earlier micro-steps, and freed"
        return f"the backward of {name} is done with it: its results and what they are summed and cast to are there"
    owners = [keep.owner for keep in last.keeps]
    if ended.of in owners:
        return f"the backward of {name}, the last that kept it, has run"
    if any(keep.owner.blocks != birth.blocks or keep.recomputed for keep in last.keeps) or not owners:
        return f"what held it through forward goes with the backward of {name}"
    return f"the backward of {name} has run, and nothing else holds it"


def _name_of(trace: Trace, step: OperatorRun, of: Birth, block: int) -> str:
    """The name of an operator that ends a storage: of a row of blocks alike the last tells what ends that of each."""
    row = () if of.blocks is None else of.blocks.numbers()
    in_another = step.blocks is not None and step.blocks != of.blocks and block not in step.blocks.numbers()
    return full_name(of.blocks if in_another and block in row else step.blocks, step.label, block)


def _is_weight(trace: Trace, birth: Birth) -> bool:
    return isinstance(birth.gradient_of, str)


def _of_state(trace: Trace, states: Sequence[State], label: str, block: int) -> Life:
    for state in states:
        for tensor in state.tensors:
            in_block = tensor.name.startswith(f"{BLOCK}.")
            if tensor.name.removeprefix(f"{BLOCK}.") != label:
                continue
            reads = _readers(trace, label, block) if state.component == "weights" else ()
            return Life(
                name=f"{BLOCK}.{block}.{label}" if in_block else label,
                shape=tensor.shape,
                dtype=tensor.dtype,
                bytes=tensor.bytes,
                copies=tensor.copies,
                blocks=None,
                component=state.component,
                components=(state.component,),
                state=True,
                born="before the iteration begins",
                born_phase=None,
                rule="optimizers.optimizer_states" if state.component in ("master", "optimizer") else None,
                keepers=(),
                views=tuple(reads),
                at_peak=True,
                copies_at_peak=tensor.copies,
                died="never: it is alive during the whole iteration",
                died_phase=None,
                points=(Point("every moment of the step", tensor.copies, tensor.total_bytes),),
            )
    raise RuntimeError(f"no state is called {label}")


def _readers(trace: Trace, label: str, block: int) -> Iterable[str]:
    """The forward operators that take a weight."""
    for step in trace.steps:
        if step.direction != FORWARD:
            continue
        for ref in step.inputs:
            if isinstance(ref, str) and ref.startswith("#"):
                weight = trace.weight_of(ref)
                here = weight.blocks is None or block in weight.blocks.numbers()
                if weight.name == label and here:
                    yield full_name(step.blocks, step.label, block)
