"""The operators of the step in order: the embedding, one block, the head and the loss, backward, the optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramplan.answers.explanation.trace import Trace
from vramplan.replay.notes import KEPT, Birth, Keep, OperatorRun
from vramplan.results.explain import Made, Operator, Rule, Saved, Section

FORWARD, RECOMPUTE, BACKWARD, STEP = "forward", "recompute", "backward", "step"
EMBEDDING, BLOCK, HEAD = "embedding", "block", "head"


def sections(trace: Trace, rules: Callable[[str], Rule], block: int) -> tuple[Section, ...]:
    """The step with one block standing for all of them."""
    outside = {direction: _outside(trace, direction) for direction in (FORWARD, BACKWARD)}
    inside = {direction: _inside(trace, direction, block) for direction in (FORWARD, RECOMPUTE, BACKWARD)}
    parts = [
        (EMBEDDING, FORWARD, outside[FORWARD][0]),
        (BLOCK, FORWARD, inside[FORWARD]),
        (HEAD, FORWARD, outside[FORWARD][1]),
        (HEAD, BACKWARD, outside[BACKWARD][0]),
        (BLOCK, RECOMPUTE, inside[RECOMPUTE]),
        (BLOCK, BACKWARD, inside[BACKWARD]),
        (EMBEDDING, BACKWARD, outside[BACKWARD][1]),
    ]
    maker = _Maker(trace, rules, block)
    found = [maker.section(part, direction, steps) for part, direction, steps in parts if steps]
    return (*found, maker.step())


def _outside(trace: Trace, direction: str) -> tuple[list[OperatorRun], list[OperatorRun]]:
    """The operators before the blocks, and after them."""
    before: list[OperatorRun] = []
    after: list[OperatorRun] = []
    found = before
    for step in trace.steps:
        if step.direction == direction:
            if step.blocks is not None:
                found = after
            else:
                found.append(step)
        elif step.direction == RECOMPUTE and direction == BACKWARD:
            found = after
    return before, after


def _inside(trace: Trace, direction: str, block: int) -> list[OperatorRun]:
    return [
        step
        for step in trace.steps
        if step.direction == direction and step.blocks is not None and block in step.blocks.numbers()
    ]


class _Maker:
    """Makes the rows of one trace, named for one block."""

    def __init__(self, trace: Trace, rules: Callable[[str], Rule], block: int) -> None:
        self.trace, self.rules, self.block = trace, rules, block

    def section(self, part: str, direction: str, steps: Sequence[OperatorRun]) -> Section:
        """Consecutive operators and what they add up to."""
        trace = self.trace
        births = [trace.births[index] for step in steps for index in step.births]
        return Section(
            part=part,
            direction=direction,
            blocks=steps[0].blocks if steps else None,
            checkpointed=direction == RECOMPUTE
            or (direction == FORWARD and any(keep.recomputed for step in steps for keep in step.saves)),
            operators=tuple(self.operator(step) for step in steps),
            made_bytes=sum(trace.sizes[birth.index] for birth in births),
            kept_bytes=sum(trace.sizes[birth.index] for birth in births if trace.is_kept(birth)),
        )

    def step(self) -> Section:
        """The optimizer step: what is made for the weights of a name, in all blocks."""
        trace = self.trace
        groups: dict[str, list[Birth]] = {}
        for birth in trace.births:
            if birth.step.direction == STEP:
                groups.setdefault(trace.group_of(birth), []).append(birth)
        rows = []
        for name, births in groups.items():
            first = births[0]
            copies = sum(trace.weight_of(b.source).parameter.copies if b.source is not None else 1 for b in births)
            made = self.made(first)._replace(name=name, copies=copies)
            frees = sum(trace.bytes_of(birth) for birth in births) // len(births) * copies
            rows.append(
                Operator(name, first.operator, "", made.rule, first.step.rules[1:], (made,), (), frees_bytes=frees)
            )
        total = sum(made.bytes * made.copies for row in rows for made in row.makes)
        return Section(STEP, STEP, None, False, tuple(rows), total, 0)

    def operator(self, step: OperatorRun) -> Operator:
        """One operator."""
        trace = self.trace
        return Operator(
            name=trace.step_name(step, self.block),
            operator=step.operator,
            module=".".join(step.parts),
            rule=step.rules[0] if step.rules else None,
            inside=step.rules[1:],
            makes=tuple(self.made(trace.births[index]) for index in step.births),
            saves=tuple(self.saved(step, keep) for keep in step.saves),
            frees_bytes=sum(trace.sizes[index] for index in step.frees),
        )

    def made(self, birth: Birth) -> Made:
        """One tensor that an operator allocates."""
        trace = self.trace
        role = "output"
        if birth.step.direction == STEP:
            role = "scratch"
        elif birth.step.direction == BACKWARD:
            role = "gradient" if birth.gradient_of is not None or birth.step.of is None else "scratch"
        return Made(
            name=trace.name_of(birth, self.block),
            operator=birth.operator,
            shape=birth.shape,
            dtype=birth.dtype.name if birth.dtype else None,
            bytes=trace.bytes_of(birth),
            copies=1,
            component=trace.component(birth),
            role=role,
            kept=trace.is_kept(birth),
            at_peak=trace.is_at_peak(birth, self.block),
            rule=birth.rules[0] if birth.rules else None,
        )

    def saved(self, step: OperatorRun, keep: Keep) -> Saved:
        """One tensor that an operator keeps."""
        trace = self.trace
        stored = isinstance(keep.ref, int)
        role, why = reason(self.rules, step, keep)
        return Saved(
            tensor=trace.ref_name(keep.ref, self.block, step.blocks),
            role=role,
            shape=keep.shape,
            dtype=keep.dtype.name,
            bytes=trace.bytes_of(trace.births[keep.ref]) if stored else 0,  # type: ignore[index]
            why=why,
            recomputed=keep.recomputed,
        )


def reason(rules: Callable[[str], Rule], step: OperatorRun, keep: Keep) -> tuple[str, str]:
    """What the rule of an operator calls a tensor that it keeps, and why it keeps it."""
    if KEPT in keep.roles:
        return KEPT, "its selective checkpoint hands it out instead of running the operator again"
    for name in step.rules:
        for saved, why in rules(name).saves:
            if saved in keep.roles:
                return saved, why
    raise RuntimeError(f"the rule of {step.operator} does not say why it saves {' or '.join(keep.roles)}")
