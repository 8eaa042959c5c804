"""The Python that places checkpoints: `vramplan checkpoints --emit python`."""

from __future__ import annotations

from vramplan.results.placement import PlacementCode

WIDTH = 100

_CODE = '''\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STACKS = {stacks}  # the end of the name of each list of blocks, and its length
{segments}
OPTIONS = {{"use_reentrant": {reentrant}}}  # of torch.utils.checkpoint.checkpoint


def place_checkpoints(model: nn.Module, **options) -> None:
    """Compute the blocks of each segment again in backward.

    Call this once, before training, and leave gradient checkpointing off.
    """
    for part in model.modules():
        if hasattr(getattr(part, "config", None), "use_cache"):
            part.config.use_cache = False  # keys and values would be put into it twice
    blocks = find_blocks(model)
    kinds = {{kind: placed(kind) for kind in {{type(block) for block in blocks}}}}
    for block in blocks:
        block.__class__ = kinds[type(block)]
    for first, last in SEGMENTS:
        segment = Segment(blocks[first : last + 1], {{**OPTIONS, **options}})
        for block in segment.blocks:
            block.__dict__["segment"] = segment
{told}

def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of all stacks, in the order in which they run."""
    found, lists_of = [], (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    for name, number in STACKS.items():
        named = [part for path, part in model.named_modules() if ("." + path).endswith("." + name)]
        lists = [part for part in named if isinstance(part, lists_of) and len(part) == number]
        if not lists:
            raise ValueError(f"the model has no list {{name}} of {{number}} blocks")
        found += lists[0].children()
    return found


class Segment:
    """Blocks that run as one checkpoint when the last of them is called, each with the arguments of its own call."""

    def __init__(self, blocks: list[nn.Module], options: dict) -> None:
        self.blocks, self.options, self.calls = blocks, options, {{}}

    def call(self, block, hidden, *args, **kwargs):
        self.calls[id(block)] = args, kwargs
        if block is not self.blocks[-1]:
            return {handed}
        calls = [self.calls.pop(id(one), None) for one in self.blocks]
        if None in calls:
            raise RuntimeError("a block was skipped: layer drop does not go with checkpoints of several blocks")

        def run(hidden):
            out = {started}
            for one, (args, kwargs) in zip(self.blocks, calls):
{step}
            return {given_back}

        return checkpoint(run, hidden, **self.options)


def placed(kind: type) -> type:
    """The class of blocks whose segment decides when they run; the hooks of FSDP run with them."""

    class Block(kind):
        def __call__(self, hidden, *args, **kwargs):
            segment = self.__dict__.get("segment")
            if segment is None or not torch.is_grad_enabled():  # an evaluation has no backward
                return super().__call__(hidden, *args, **kwargs)
            return segment.call(self, hidden, *args, **kwargs)

    Block.__name__ = kind.__name__  # by which FSDP is told what to wrap
    return Block
'''

_TOLD = """\
    for block in blocks:
        for part in block.modules():
            if part is not block and hasattr(part, "gradient_checkpointing"):
                part.gradient_checkpointing = True  # gradient_checkpointing_enable() tells the parts too
"""


def python(code: PlacementCode) -> str:
    """A module with one function to call, `place_checkpoints(model)`."""
    blocks = sum(code.stacks)
    number = len(code.segments)
    said = f"{number} segment{'s' * (number != 1)} of {blocks} blocks"
    title = f'"""Activation checkpoints of {code.model}, {code.strategy}: {said}."""'
    text = _CODE.format(
        stacks=_stacks(code),
        told=_TOLD if code.tells_parts else "",
        segments="\n".join(_segments(code)),
        reentrant=code.reentrant,
        handed="hidden" if code.returned == 1 else f"(hidden, {', '.join(['None'] * (code.returned - 1))})",
        given_back=_given_back(code),
        started="hidden" if code.returned == 1 else "(hidden,)",
        step="\n".join(" " * 16 + line for line in _step(code)),
    )
    return f"{title}\n\n{text}"


def _given_back(code: PlacementCode) -> str:
    """What a checkpoint returns: of several blocks the hidden state alone, unless they hand more to the next."""
    if code.returned == 1 or code.carried:
        return "out"
    return f"out if len(self.blocks) == 1 else (out[0], {', '.join(['None'] * (code.returned - 1))})"


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
        return ["out = nn.Module.__call__(one, out, *args, **kwargs)"]
    if not code.carried:
        return ["out = nn.Module.__call__(one, out[0], *args, **kwargs)"]
    lines = ["if len(out) > 1:  # what the block before has made, as the model hands it on"]
    lines.append("    args = list(args)")
    lines += [f"    args[{argument}] = out[{value}]" for argument, value in code.carried]
    return [*lines, "out = nn.Module.__call__(one, out[0], *args, **kwargs)"]


def _stacks(code: PlacementCode) -> str:
    """The lists of blocks by name; stacks that follow each other in one list are counted together."""
    lists: dict[str, int] = {}
    for name, layers in zip(code.lists, code.stacks, strict=True):
        lists[name] = lists.get(name, 0) + layers
    return "{" + ", ".join(f'"{name}": {layers}' for name, layers in lists.items()) + "}"
