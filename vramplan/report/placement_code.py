"""The Python that places checkpoints: `vramplan checkpoints --emit python`."""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.results.placement import PlacementCode

WIDTH = 100

_CODE = '''\
from torch import nn
from torch.utils.checkpoint import checkpoint

STACKS = {stacks}  # blocks of each stack of the model
{segments}
OPTIONS = {{"use_reentrant": {reentrant}}}  # of torch.utils.checkpoint.checkpoint


def place_checkpoints(model: nn.Module, **options) -> None:
    """Compute the blocks of each segment again in backward.

    Call this once, before the model is wrapped, and leave gradient checkpointing off.
    """
    blocks = find_blocks(model)
    for first, last in SEGMENTS:
        run_as_one(blocks[first : last + 1], {{**OPTIONS, **options}})


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of all stacks, in the order in which they run."""
    found, inside = [], set()
    wanted = list(STACKS)
    for module in model.modules():
        blocks = list(module.children()) if isinstance(module, (nn.ModuleList, nn.ModuleDict)) else []
        alike = len({{type(block) for block in blocks}}) == 1
        if wanted and len(blocks) == wanted[0] and alike and id(module) not in inside:
            inside.update(id(part) for part in module.modules())
            found += blocks
            wanted.pop(0)
    if wanted:
        raise ValueError(f"the model has no stack of {{wanted[0]}} blocks")
    return found


def run_as_one(blocks: list[nn.Module], options: dict) -> None:
    """Run the blocks as one checkpoint when the last of them is called, each with the arguments of its own call."""
    forwards = [block.forward for block in blocks]
    waiting = []

    def wait(hidden, *args, **kwargs):
        waiting.append((args, kwargs))
        return {handed}

    def run(hidden, *args, **kwargs):
        calls = [*waiting, (args, kwargs)]
        waiting.clear()

        def segment(hidden):
            out = {started}
            for forward, (args, kwargs) in zip(forwards, calls):
{step}
            return out

        return checkpoint(segment, hidden, **options)

    for block in blocks[:-1]:
        block.forward = wait
    blocks[-1].forward = run
'''


def python(code: PlacementCode) -> str:
    """A module with one function to call, `place_checkpoints(model)`."""
    blocks = sum(code.stacks)
    number = len(code.segments)
    said = f"{number} segment{'s' * (number != 1)} of {blocks} blocks"
    title = f'"""Activation checkpoints of {code.model}, {code.strategy}: {said}."""'
    text = _CODE.format(
        stacks=_tuple(str(layers) for layers in code.stacks),
        segments="\n".join(_segments(code)),
        reentrant=code.reentrant,
        handed="hidden" if code.returned == 1 else f"(hidden, {', '.join(['None'] * (code.returned - 1))})",
        started="hidden" if code.returned == 1 else "(hidden,)",
        step="\n".join(" " * 16 + line for line in _step(code)),
    )
    return f"{title}\n\n{text}"


def _segments(code: PlacementCode) -> list[str]:
    """The assignment, in lines that a person can read."""
    shown = [f"({first}, {last})" for first, last in code.segments]
    whole = f"SEGMENTS = [{', '.join(shown)}]"
    comment = "  # first and last block of each checkpoint, counted from 0"
    if len(whole + comment) <= WIDTH:
        return [whole + comment]
    lines, line = [f"SEGMENTS = [{comment}"], "   "
    for one in shown:
        if len(line) + len(one) + 2 > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {one},"
    return [*lines, line, "]"]


def _step(code: PlacementCode) -> list[str]:
    """How one block is called with what the one before it returned."""
    if code.returned == 1:
        return ["out = forward(out, *args, **kwargs)"]
    if not code.carried:
        return ["out = forward(out[0], *args, **kwargs)"]
    lines = ["if len(out) > 1:  # what the block before has made, as the model hands it on"]
    lines.append("    args = list(args)")
    lines += [f"    args[{argument}] = out[{value}]" for argument, value in code.carried]
    return [*lines, "out = forward(out[0], *args, **kwargs)"]


def _tuple(items: Iterable[str]) -> str:
    inner = ", ".join(items)
    return f"({inner},)" if "," not in inner else f"({inner})"
