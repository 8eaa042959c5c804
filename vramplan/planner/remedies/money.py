"""Changes that cost money: the next larger cards, and more of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vramplan.planner.behaviour import is_replicated
from vramplan.planner.candidate import NUMBERS, Candidate
from vramplan.planner.remedies.same import OF_DDP
from vramplan.planner.remedies.trial import Trials, TriedChange
from vramplan.results import FITS, MONEY
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP, ZERO1, ZERO2, ZERO3

MOST_CARDS = 3
SAME_SIZE = 1.05  # times the memory: cards of one size, of which one is named
SLOWEST = 0.5  # of the memory bandwidth of the card that was typed: nobody buys a slower one to train on
OF_THE_CARD = ("gpu_free", "attention", "precision", "pytorch_version", "cuda_module_loading")

MOST_DEVICES = 64  # times as many as were typed
SHARING_WEIGHTS = {
    ZERO1: ZERO3,
    ZERO2: ZERO3,
    FSDP_GRAD_OP: FSDP,
}  # what leaves each device all weights, beside what does not

Offer = tuple[Candidate, TriedChange]


def larger_cards(base: ResolvedJob, trials: Trials, known: Callable[[], Iterable[Gpu]]) -> Iterator[Offer]:
    """The smallest cards that surely fit, one of each size; of cards of a size the one whose memory was seen."""
    offered: list[Gpu] = []
    speed = (base.gpu.memory_bandwidth_bytes_per_s or 0) * SLOWEST
    larger = [gpu for gpu in known() if gpu.capacity_bytes > base.gpu.capacity_bytes]
    larger = [gpu for gpu in larger if (gpu.memory_bandwidth_bytes_per_s or speed) >= speed]
    for gpu in _by_size(larger):
        if offered and gpu.capacity_bytes <= offered[-1].capacity_bytes * SAME_SIZE:
            continue
        change: dict[str, Any] = {"gpu": gpu.name}
        if "gpu_free" in trials.typed.given:  # it is of the other card
            change["gpu_free"] = None
        candidate = Candidate(change, MONEY, _words(gpu))
        tried = trials.of(candidate, surely=True)
        if tried is None or tried.verdict != FITS:
            continue
        offered.append(gpu)
        yield candidate, tried
        if len(offered) == MOST_CARDS:
            return


def _by_size(cards: list[Gpu]) -> list[Gpu]:
    """The smallest first; cards of one size together, those whose memory somebody saw before the others."""
    ordered: list[Gpu] = []
    group: list[Gpu] = []
    for gpu in sorted(cards, key=lambda gpu: (gpu.capacity_bytes, gpu.name)):
        if group and gpu.capacity_bytes > group[0].capacity_bytes * SAME_SIZE:
            ordered += sorted(group, key=_plainness)
            group = []
        group.append(gpu)
    return [*ordered, *sorted(group, key=_plainness)]


def _plainness(gpu: Gpu) -> tuple[bool, int, str]:
    return gpu.capacity_basis != "visible", len(gpu.name), gpu.name


def _words(gpu: Gpu) -> str:
    size = f"a {gpu.capacity_bytes / 2**30:.1f} GiB card"
    if gpu.capacity_basis == "nominal":
        size += " by its data sheet; programs see a little less"
    return size


def more_devices(base: ResolvedJob, trials: Trials) -> Iterator[Offer]:
    """The fewest devices, doubled from those that were typed, with what each holds of the states."""
    now = base.data_parallel_size
    ways: list[tuple[dict[str, Any], str]] = []
    if base.sharding is not None and not is_replicated(base):
        ways.append(({}, "share the states"))
        if base.sharding.kind in SHARING_WEIGHTS:
            ways.append(({"sharding": SHARING_WEIGHTS[base.sharding.kind]}, "share the states, and the weights too"))
    elif base.split is None:
        ways.append(({"sharding": FSDP}, "share the states by FSDP"))
        ways.append(({"sharding": ZERO3}, "share the states by ZeRO-3"))
    else:
        ways.append(({}, "work side by side"))
    for sharing, words in ways:
        found = _fewest(sharing, words, now, trials)
        if found is not None:
            if found[1].change["parallel"].get("data", now) > now:
                yield found
            return


def _fewest(sharing: dict[str, Any], words: str, now: int, trials: Trials) -> Offer | None:
    """The fewest devices with which a way to share the states fits; those there are already, if they do."""
    count, least = (now if sharing and now > 1 else now * 2), now * MOST_DEVICES
    before: tuple[int, int] | None = None  # devices, and what each held
    while count <= least:
        change = {"parallel": {"data": count, **sharing}}
        candidate = Candidate(change, MONEY, f"{count} devices {words}", resets=(*OF_DDP, *NUMBERS))
        tried = trials.of(candidate, surely=True)
        if tried is not None:
            if tried.verdict == FITS:
                return candidate, tried
            held = tried.device_bytes
            if before is not None and not tried.is_settled:  # what is shared shrinks as 1 / devices
                shared = max(0, before[1] - held) * count * before[0] // (count - before[0])
                rest = held - shared // count
                while count * 2 <= least and rest + shared // (count * 2) > tried.usable_bytes:
                    count *= 2
            before = count, held
        count *= 2
    return None
