"""Which weights of a real model a word of `frozen` means: those of the same part as the replay's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vramplan.errors import UsageError
from vramplan.replay.models.part_names import LAYERS
from vramplan.replay.models.parts import block_lists, lists_in_stages, stored_lists
from vramplan.replay.techniques.frozen import matches
from vramplan.replay.techniques.trained import names_of
from vramplan.values.job import ResolvedJob
from vramplan.values.model import ModelShape

Path = tuple[str, ...]


def freeze(job: ResolvedJob, model: Any) -> None:
    """`requires_grad_(False)` on the weights that the job's words name."""
    if not job.frozen or job.trained_blocks != "all":
        return  # blocks that are trained in turns are frozen by what turns
    if job.adapter is not None:  # lora_A or lora_B, which PEFT calls so too
        for name, weight in model.named_parameters():
            if any(word in name.split(".") for word in job.frozen):
                weight.requires_grad_(False)
        return
    for path, weight in paths(job.model, model):
        if any(matches(word, path) for word in job.frozen):
            weight.requires_grad_(False)
    if job.model.waveform is not None:
        features = model.base_model.feature_extractor
        if not any(one.requires_grad for one in features.parameters()):
            features._freeze_parameters()  # what `freeze_feature_encoder` calls: it also asks no input for a gradient


def turn(job: ResolvedJob, model: Any) -> None:
    """Freeze the blocks whose turn it is not, as the callback of LISA does before a step."""
    if job.trained_blocks.startswith("lisa:"):
        freeze(job._replace(trained_blocks="all"), model)


def paths(shape: ModelShape, model: Any) -> Iterator[tuple[Path, Any]]:
    """Each weight of a model of Transformers, and its path in the words of the job format."""
    known = names_of(shape).paths
    stacks = dict.fromkeys(one[: one.index(LAYERS)] for one in known if LAYERS in one)
    named = (*stored_lists(shape.family), *block_lists(shape))
    lists = {name: (stack, 0) for name, stack in zip(dict.fromkeys(named), stacks, strict=False)}
    lists |= {name: (next(iter(stacks)), first) for name, first in lists_in_stages(shape).items()}
    towers = {one.partition(".")[0]: stack[0] for one, (stack, _) in lists.items() if stack}
    found: dict[int, tuple[int, Path, Any]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):  # a weight that is tied has several
        agrees, path = _path(name, known, lists, towers)
        if id(weight) not in found or agrees > found[id(weight)][0]:
            found[id(weight)] = agrees, path, weight
    for name, weight in model.named_parameters():
        if not found[id(weight)][1]:
            raise UsageError(f"no part of the model is called {name}", key="frozen", hint="name other parts")
    yield from ((path, weight) for _, path, weight in found.values())


def _path(
    name: str, known: Sequence[Path], lists: Mapping[str, tuple[Path, int]], towers: Mapping[str, str]
) -> tuple[int, Path]:
    """The known path that has most in common with a name, among those of the same block; and how much that is.

    Of two that have as much in common it is the one in the part of the model whose blocks the name is beside.

    There is none for one of the names of a weight that is tied.
    """
    parts = name.split(".")
    inner = parts[:-1] if parts[-1] in ("weight", "bias") else parts
    block = _block(name, lists)
    same = [one for one in known if (one[: one.index(LAYERS) + 2] if LAYERS in one else None) == block]
    beside = {towers[part] for part in inner if part in towers}

    def agreement(one: Path) -> tuple[int, int, bool, bool, int]:
        return _common(one, inner), len({*one} & {*inner}), one[-1] == inner[-1], one[0] in beside, -len(one)

    best = max(same, key=agreement, default=())
    return (_common(best, inner), best) if {*best} & {*inner} else (-1, ())


def _block(name: str, lists: Mapping[str, tuple[Path, int]]) -> Path | None:
    """The path of the block that a weight lies in."""
    for one, (stack, first) in reversed([*lists.items()]):  # those of stages come last
        _, found, after = f".{name}".partition(f".{one}.")
        number = after.partition(".")[0]
        if found and number.isdecimal():
            return (*stack, LAYERS, str(first + int(number)))
    return None


def _common(path: Path, parts: Sequence[str]) -> int:
    """How many parts two names have in common, counted from their ends."""
    count = 0
    named = [[part for part in one if not part.isdecimal()] for one in (path, parts)]  # but for a place in a sequence
    for one, other in zip(reversed(named[0]), reversed(named[1]), strict=False):
        if one != other:
            break
        count += 1
    return count
