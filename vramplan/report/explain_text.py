"""What a person sees of `vramplan explain`: the derivation from the states to the peak, or the life of one tensor.

Sizes are exact bytes, so that every sum can be checked by hand.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.report.headline import NARROWEST, WIDEST, headline
from vramplan.report.lines import Line, Span, cells, elide, wrap
from vramplan.report.memory import ShownFigures
from vramplan.results.explain import Blocks, Explanation, Life, Made, Operator, Saved, Section, State

FOLLOW = "a name here can be followed: --tensor NAME"
TITLES = {
    ("embedding", "forward"): "Embedding",
    ("block", "forward"): "Block {block}",
    ("head", "forward"): "Head and loss",
    ("head", "backward"): "Backward of the head and the loss",
    ("block", "recompute"): "Block {block} again",
    ("block", "backward"): "Backward of block {block}",
    ("embedding", "backward"): "Backward of the embedding",
    ("step", "step"): "Optimizer step",
}

KEPT_OPERATORS = ("mm", "addmm", "bmm", "flash_attention", "efficient_attention")  # of a selective checkpoint


def text(answer: Explanation, *, width: int | None) -> list[Line]:
    """The whole derivation, or the tensor that was asked for, in at most `width` columns (40 to 100 are used)."""
    width = max(NARROWEST, min(width or 80, WIDEST))
    if answer.tensor is not None:
        return _life(answer, answer.tensor, width)
    lines = list(headline(answer.fit, ShownFigures(answer.fit), width))
    lines += [(), *wrap([Span(f"Sizes are bytes in blocks of 512; {FOLLOW}.", "muted")], width)]
    lines += wrap([Span("k is kept for backward at the end of forward, p is alive at the peak.", "muted")], width)
    lines += _states(answer, width)
    for section in answer.sections:
        lines += [(), *_section(section, answer, width)]
    lines += [(), *_sums(answer, width), (), *_peak(answer, width), (), *_rules(answer, width)]
    return lines


def shape_text(shape: Iterable[int]) -> str:
    """`[2, 1024, 1600]`."""
    return "[" + ", ".join(map(str, shape)) + "]"


def blocks_text(blocks: Blocks) -> str:
    """`blocks 1-46`."""
    numbers = blocks.numbers()
    if len(numbers) == 1:
        return f"block {numbers[0]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    spelled = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(spelled) > 4:
        spelled = [*spelled[:2], "...", spelled[-1]]
    return f"blocks {', '.join(spelled)}"


def section_title(section: Section, answer: Explanation) -> str:
    """`Backward of block 24`; of two stacks with the one that the block belongs to: `Block 18 (decoder)`."""
    model = answer.fit.job["model"]
    stack = ""
    if model.get("decoder_layers"):
        stack = " (decoder)" if answer.block >= model["layers"] else " (encoder)"
    return TITLES[section.part, section.direction].format(block=f"{answer.block}{stack}")


def _line(left: list[Span], right: str, width: int, style: str = "") -> list[Line]:
    """Something on the left and something at the right end; on two lines where one is too short."""
    used = sum(cells(span.text) for span in left)
    if used + 2 + cells(right) <= width:
        return [(*left, Span(" " * (width - used - cells(right))), Span(right, style))]
    lines: list[Line] = [tuple(left)]
    if used > width:  # a name that no line holds is broken where it must be
        whole = "".join(span.text for span in left)
        indent = len(whole) - len(whole.lstrip(" "))
        lines = wrap([Span(whole.lstrip(" "), left[0].style)], width, first=indent, rest=indent + 2)
    if cells(right) > width:
        return [*lines, *wrap([Span(right, style)], width, first=6, rest=6)]
    return [*lines, (Span(" " * (width - cells(right))), Span(right, style))]


def _heading(title: str, said: str, width: int) -> list[Line]:
    return wrap([Span(title, "heading"), Span(f"  {said}" if said else "", "muted")], width, rest=2)


def _states(answer: Explanation, width: int) -> list[Line]:
    total = answer.totals.states_bytes
    lines = [(), *_heading("States", f"alive during the whole iteration, {total:,} B", width)]
    for state in answer.states:
        lines += _line([Span(f"  {state.component.ljust(12)}", state.component)], f"{state.bytes:,}   ", width)
        lines += wrap([Span(f"= {state.formula}", "muted")], width, first=4, rest=6)
    weights = next((state for state in answer.states if state.component == "weights"), None)
    for state in [weights] if weights else []:
        lines += _state_tensors(state, width)
    return lines


def _state_tensors(state: State, width: int) -> list[Line]:
    lines: list[Line] = [(Span("  the weights, one by one", "muted"),)]
    for tensor in state.tensors:
        times = f" x {tensor.copies}" if tensor.copies > 1 else ""
        right = f"{shape_text(tensor.shape)} {tensor.dtype}{times}  {tensor.total_bytes:>14,}   "
        lines += _line([Span(f"  {tensor.name}")], right, width)
    return lines


def _section(section: Section, answer: Explanation, width: int) -> list[Line]:
    lines = _heading(section_title(section, answer), _about(section), width)
    for operator in section.operators:
        lines += _operator(operator, section, width)
    if section.made_bytes:
        lines += _line([Span("  = made here, dead or alive", "strong")], f"{section.made_bytes:,}   ", width, "strong")
    if section.kept_bytes:
        lines += _line([Span("  = of this kept for backward", "strong")], f"{section.kept_bytes:,}   ", width, "strong")
    return lines


def _about(section: Section) -> str:
    said = []
    if section.blocks is not None and section.blocks.copies > 1:
        said.append(f"stands for {section.blocks.copies}, {blocks_text(section.blocks)}")
    if section.direction == "recompute":
        said.append("computed again in backward, because its checkpoint did not keep it")
    elif section.checkpointed:
        partly = any(not saved.recomputed for operator in section.operators for saved in operator.saves)
        what = "what has no line `keeps` here" if partly else "what its operators would keep"
        said.append(f"{'partly ' if partly else ''}inside a checkpoint: {what} is computed again in backward")
    if section.part == "step" and not section.operators:
        said.append("allocates nothing: the kernel works in place")
    return "; ".join(said)


def _operator(operator: Operator, section: Section, width: int) -> list[Line]:
    if section.direction == "backward":
        return _backward(operator, width)
    lines: list[Line] = []
    if not operator.makes:
        lines += _line([Span(f"  {operator.name}", "muted")], f"{_nothing_new(operator, section)}   ", width, "muted")
    for made in operator.makes:
        lines += _made(made, width, 2)
    again = section.checkpointed and section.direction == "forward"
    for saved in operator.saves:
        if not (again and saved.recomputed):  # the same is said where it is computed again, and kept
            lines += _saved(saved, width)
    return lines


def _nothing_new(operator: Operator, section: Section) -> str:
    if section.direction == "recompute" and operator.operator in KEPT_OPERATORS:
        return "kept by its checkpoint, nothing new"
    return "in place, nothing new" if operator.operator == "add" else "a view, nothing new"


def _made(made: Made, width: int, indent: int) -> list[Line]:
    marks = ("k" if made.kept else " ") + ("p" if made.at_peak else " ")
    what = "scratch in the kernel" if made.shape is None else f"{shape_text(made.shape)} {made.dtype}"
    times = f" x {made.copies}" if made.copies > 1 else ""
    total = made.bytes * made.copies
    return _line([Span(f"{' ' * indent}{made.name}")], f"{what}{times}  {total:>14,} {marks}", width)


def _saved(saved: Saved, width: int) -> list[Line]:
    size = f" ({saved.bytes:,} B)" if saved.bytes else " (a state)"
    spans = [Span(f"keeps {saved.role} = "), Span(saved.tensor), Span(f"{size}: {saved.why}", "muted")]
    return wrap(spans, width, first=4, rest=6)


def _backward(operator: Operator, width: int) -> list[Line]:
    if not operator.makes:
        return []  # it hands the gradient through, or looks at it in another way
    left = [Span(f"  {operator.name}", "muted")]
    frees = f"frees {operator.frees_bytes:,}   " if operator.frees_bytes else "   "
    lines = _line(left, frees, width, "muted")
    for made in operator.makes:
        lines += _made(made, width, 4)
    return lines


def _sums(answer: Explanation, width: int) -> list[Line]:
    totals = answer.totals
    rows = [
        ("embedding", totals.saved_embedding_bytes),
        (f"all {answer.fit.job.get('layers', '')} blocks".replace("  ", " "), totals.saved_blocks_bytes),
        ("head and loss", totals.saved_head_bytes),
    ]
    lines = _heading("Kept for backward", "alive at the end of forward, and made in it", width)
    for name, size in rows:
        lines += _line([Span(f"  {name}")], f"{size:,}   ", width)
    return lines + _line([Span("  = saved", "strong")], f"{totals.saved_bytes:,}   ", width, "strong")


def parts_of_peak(answer: Explanation) -> list[tuple[str, str, str, str]]:
    """Name, component, copies and bytes of all that is alive at the peak, each state as one."""
    rows = []
    standing = {tensor.name: state for state in answer.states for tensor in state.tensors}
    done = set()
    for one in answer.peak.alive:
        state = standing.get(one.name)
        if state is None or state.component != one.component:
            rows.append((one.name, one.component, f"{one.copies:,}", f"{one.total_bytes:,}"))
        elif state.component not in done:
            done.add(state.component)
            count = sum(tensor.copies for tensor in state.tensors)
            rows.append((f"all {state.component}", state.component, f"{count:,}", f"{state.bytes:,}"))
    return rows


def _peak(answer: Explanation, width: int) -> list[Line]:
    peak, fit = answer.peak, answer.fit
    said = f"in {peak.phase}, reached by {peak.operator}"
    if peak.tensor is not None and peak.tensor != peak.operator:
        said += f" when it makes {peak.tensor}"
    lines = _heading("Peak", said, width)
    before = ""
    sums = dict(answer.totals.components)
    rows = parts_of_peak(answer)
    for name, component, copies, size in rows:
        several = sum(1 for row in rows if row[1] == component) > 1
        if component != before and several:
            lines += _line([Span(f"  {component}", component)], f"{sums[component]:,}   ", width, component)
        before = component
        style = "" if several else component
        times = f"x {copies}  " if copies != "1" else ""
        right = f"{times}{size:>14}   " if not several else f"{times}{size:>14} {' ' * 16}"
        lines += _line([Span(f"    {name}" if several else f"  {name}", style)], right, width)
    lines += _line([Span("  = allocated", "strong")], f"{peak.allocated_bytes:,}   ", width, "strong")
    level = peak.allocated_bytes
    for part in fit.overheads:
        lines += _line([Span(f"  + {part.name}"), Span(f"  {part.basis}", "muted")], f"{part.bytes:,}   ", width)
        level += part.bytes
        if level == fit.peak.reserved_bytes:
            lines += _line([Span("  = reserved", "strong")], f"{level:,}   ", width, "strong")
    return lines + _line([Span("  = device", "strong")], f"{fit.peak.device_bytes:,}   ", width, "strong")


def _rules(answer: Explanation, width: int) -> list[Line]:
    lines = _heading("Rules used", "docs/operators.md has them in full", width)
    for rule in answer.rules:
        lines += wrap([Span(rule.name, "strong"), Span(f"  {rule.summary}")], width, first=2, rest=4)
        lines += wrap([Span(f"source: {rule.source}", "muted")], width, first=4, rest=6)
    return lines


def life_facts(life: Life) -> list[tuple[str, str]]:
    """What there is to say of one tensor, in order."""
    what = "scratch inside the kernel" if life.shape is None else f"{shape_text(life.shape)} {life.dtype}"
    facts = [("size", f"{what}, {life.bytes:,} B" if life.shape != () or life.dtype else f"{life.bytes:,} B")]
    if life.copies > 1:
        where = blocks_text(life.blocks) if life.blocks else "one in each block"
        facts.append(("stands for", f"{life.copies:,}, {where}"))
    facts.append(("component", " then ".join(life.components)))
    facts.append(("born", life.born))
    if life.rule:
        facts.append(("rule", life.rule))
    for view in life.views:
        facts.append(("read by" if life.state else "seen by", view))
    for keeper in life.keepers:
        facts.append(("kept by", f"{keeper.operator} as {keeper.role}: {keeper.why}"))
    if not life.keepers and not life.state:
        facts.append(("kept by", "nobody, for backward"))
    facts.append(("at peak", _at_peak(life)))
    facts.append(("dies", life.died))
    return facts


def _at_peak(life: Life) -> str:
    others = life.copies_at_peak - life.at_peak
    here = "alive" if life.at_peak else "not alive"
    return here + (f"; {others:,} more of this name in other blocks" if others else "")


def _life(answer: Explanation, life: Life, width: int) -> list[Line]:
    lines = wrap([Span(elide(life.name, 4 * width), "strong")], width)
    for key, value in life_facts(life):
        lines += wrap([Span(f"{key.ljust(10)} ", "muted"), Span(value)], width, first=2, rest=13)
    lines += [(), *_heading("Over the step", "copies in all blocks, and their bytes", width)]
    for point in life.points:
        lines += _line([Span(f"  {point.moment}")], f"x {point.copies:<5,} {point.bytes:>16,}", width)
    rule = next((rule for rule in answer.rules if rule.name == life.rule), None)
    if rule is not None:
        lines += [(), *wrap([Span(rule.name, "strong"), Span(f"  {rule.summary}")], width, rest=2)]
        for detail in rule.details:
            lines += wrap([Span(detail)], width, first=2, rest=2)
        if rule.backward:
            lines += wrap([Span(f"Backward: {rule.backward}")], width, first=2, rest=4)
        lines += wrap([Span(f"Source: {rule.source}", "muted")], width, first=2, rest=4)
    return lines
