"""How many GPUs were asked for: those of all nodes, and those of all replicas of the model."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from vramplan.cli import named
from vramplan.cli.output import say
from vramplan.cli.settled import twice
from vramplan.cli.typed import DATA, NODES, TypedOption, is_quiet, names_of
from vramplan.errors import UsageError
from vramplan.options.words import SPLITS

OF_ALL_NODES = ("--num-processes", "--world-size")  # those of all nodes: accelerate launch, torch.distributed
OF_REPLICAS = ("--data", "--data-parallel", "--data-parallel-size", "--dp")
"""Names of `--gpus` that nobody takes for the number of all GPUs."""

MOST_OF_A_NODE = 8
"""GPUs that nearly all nodes have at most: who types more of them beside nodes may mean all."""


def of_all_nodes(found: list[TypedOption], command: Any) -> list[TypedOption]:
    """The devices of all nodes for those of one, where nodes are counted."""
    counted = [one for one in found if one.parameter is NODES]
    declared = names_of(command)
    nodes = _whole(counted[0].value, counted[0].spelling)
    if len(counted) > 1:
        twice(counted)
    by_name = {one.parameter.name: one for one in found if one.parameter is not None}
    gpu, gpus, per_node = by_name.get("gpu"), by_name.get(DATA), by_name.get("devices_per_node")
    if gpus is None:
        gpus = by_name.get("gpus")
    of_gpu = None
    if gpu is not None:
        of_gpu = named("vramplan.job.given.spelled:counted")(gpu.value)
    if gpus is None and per_node is None and of_gpu is None:
        raise UsageError("how many GPUs has a node?", key="--nodes", hint=f"--nodes {nodes} --gpus 8")
    if gpus is not None and gpus.spelling.lower().replace("_", "-") in OF_ALL_NODES:
        gpus = _of_one_node(gpus, nodes)
    counts = [(one, _whole(one.value, one.spelling)) for one in (gpus, per_node) if one is not None]
    if of_gpu is not None and gpu is not None:
        counts.append((gpu, of_gpu[0]))
    if len({count for _, count in counts}) > 1:
        both = " and ".join(one.shown for one, _ in counts)
        raise UsageError(f"{both} differ, and with --nodes each is the GPUs of one node", key="--nodes")
    each = counts[0][1]
    if of_gpu is not None and len(counts) == 1 and each > MOST_OF_A_NODE and each % nodes == 0:
        each //= nodes  # 16xh100 on 2 nodes: nearly all nodes have 8 at most
        if not is_quiet(found):
            other = f"where each node has {of_gpu[0]}: --gpu {of_gpu[0] * nodes}x{of_gpu[1]}"
            say(f"note: {of_gpu[0]} GPUs in all, {each} on each of {nodes} nodes; {other}")
    split = 1
    for name in SPLITS:
        one = by_name.get(name)
        if one is not None and one.parameter is declared.get(f"--{name}"):
            split *= _whole(one.value, one.spelling)
    if nodes * each % split:
        raise UsageError(f"{nodes * each} GPUs are no multiple of the {split} of a replica", key="--nodes")
    if each > MOST_OF_A_NODE and each % nodes == 0 and not is_quiet(found):
        option = f"--gpus {each // nodes}"
        say(f"note: {each} GPUs on each of {nodes} nodes, {nodes * each} in all; where {each} are all: {option}")
    counting = (DATA, "gpus", "devices_per_node", NODES.name)
    rest = [one for one in found if one.parameter is None or one.parameter.name not in counting]
    if of_gpu is not None and gpu is not None and named("vramplan.job.given.spelled:instance_of")(gpu.value) is None:
        rest = [one._replace(value=of_gpu[1]) if one is gpu else one for one in rest]
    option = declared["--gpus"]
    rest.append(TypedOption(option, "--nodes", str(nodes * each // split), "--gpus"))
    rest.append(TypedOption(declared["--devices-per-node"], "--nodes", str(each), "--devices-per-node"))
    return rest


def _of_one_node(gpus: TypedOption, nodes: int) -> TypedOption:
    """A number that counts the processes of all nodes, as accelerate's `--num_processes`, for one of them."""
    count = _whole(gpus.value, gpus.spelling)
    if count % nodes:
        raise UsageError(f"{count} processes are no multiple of {nodes} nodes", key=gpus.spelling)
    return gpus._replace(value=str(count // nodes))


def _whole(text: str | None, option: str) -> int:
    if text is None or re.fullmatch(r"[1-9]\d{0,8}", text) is None:
        raise UsageError(f"expected a whole number, not {text!r}", key=option)
    return int(text)


def tell(found: list[TypedOption]) -> None:
    """Say how many GPUs `--gpus` makes beside degrees that split the model: it counts replicas, not all GPUs.

    Nothing is said where the option is called after the replicas, or where the GPU is typed with a number of all.
    """
    by_name = {one.parameter.name: one for one in found if one.parameter is not None}
    data, splits = by_name[DATA], [by_name[name] for name in SPLITS if name in by_name]
    degrees = [one.value or "" for one in (data, *splits)]
    if (
        data.spelling in OF_REPLICAS
        or is_quiet(found)
        or not all(re.fullmatch(r"[1-9]\d{0,8}", one) for one in degrees)
    ):
        return
    gpu = by_name.get("gpu")
    if gpu is not None and named("vramplan.job.given.spelled:counted")(gpu.value) is not None:
        return
    replicas, *each = map(int, degrees)
    if replicas == 1 or prod(each) == 1:
        return
    words = " ".join(one.shown for one in splits)
    name = "GPU" if gpu is None else gpu.value
    count = replicas if replicas % prod(each) == 0 else replicas * prod(each)
    say(
        f"note: {data.spelling} counts replicas: {replicas} of {prod(each)} GPUs each ({words}), "
        f"{replicas * prod(each):,} in all; --gpu {count}x{name} counts all"
    )
