"""What a GPU that a tool reports is for a plan: the profile of its name, with the memory that this very card has.

Which figure is the framework's: NVML's total is the installed memory, and its `reserved` is what the driver and the
firmware keep for themselves (nvmlMemory_v2_t, NVML API reference); PyTorch's total_memory is what is left. On an RTX
4090 that is 24564 MiB, and 23.64 GiB in PyTorch's messages. rocm-smi's total is already what PyTorch prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from vramplan.catalog import generations, local, locate, smi
from vramplan.catalog.gpu_profile import GpuProfile, load_gpu_profile
from vramplan.catalog.profile import PublishedSource, Sourced
from vramplan.catalog.smi import LocalGpu
from vramplan.errors import InputError, Problem
from vramplan.units import format_gib
from vramplan.values.job import Assumption
from vramplan.values.machine import Gpu

SAME_MEMORY = 0.08  # ECC takes a sixteenth of what the data sheet says; the nearest other size of a card is 17 % away
WORTH_SAYING_BYTES = 64 << 20  # of memory that others hold

_SIZE = re.compile(r"\d+g(b)?|hbm\d?e?")
# words of a driver's name that no profile needs to tell cards apart
_NOISE = frozenset(
    {
        *("nvidia", "geforce", "tesla", "generation", "edition"),
        *("amd", "instinct", "(mcm)", "oam", "ac", "mba"),  # "AMD INSTINCT MI250 (MCM) OAM AC MBA"
    }
)


class LocalProfile(GpuProfile):
    """The profile of a GPU of this machine."""

    __slots__ = ()

    def gpu(self) -> Gpu:
        """What the planner knows of it, and what is free of it now."""
        return super().gpu()._replace(free_bytes=self.value("free_memory"))

    def assumptions(self) -> tuple[Assumption, ...]:
        """Which card the tool found, and where its capacity comes from."""
        memory = self.fields["visible_memory"]
        if memory.value is None:
            memory = self.fields["memory"]
        found = Assumption("gpu", self.name, self.fields["memory"].note or "")
        return found, Assumption("gpu.memory", format_gib(self.gpu().capacity_bytes), memory.derived_from or "")


def load(name: str, dirs: Sequence[Path] = ()) -> LocalProfile:
    """The profile behind `local` or `local:N`. Raises InputError when no GPU can be asked, or it says too little."""
    gpu, seen = local.find(name)
    known = _profile_of(gpu, dirs)
    today = _today()
    driver = f", driver {gpu.driver}" if gpu.driver else ""
    sources = {gpu.tool: PublishedSource(f"{gpu.tool} on this machine{driver}", f"file:{gpu.tool}", today)}
    fields = _derived(gpu) if known is None else {**known.fields}
    if known is not None:
        sources.update(known.sources)
    nominal, visible = _memory(gpu, known)
    fields["memory"], fields["visible_memory"] = nominal, visible
    if gpu.free_bytes is not None:
        fields["free_memory"] = _sourced(gpu, gpu.free_bytes, rule=f"what {gpu.tool} reports as free now")
    if visible.value is None and nominal.value is None:
        hint = "give what the framework sees, as in --gpu '64 GiB'"
        raise InputError([Problem(f"{gpu.tool} does not say how much memory {_called(gpu)} has", "gpu", hint)])
    return LocalProfile(
        name=known.name if known is not None else gpu.name or f"GPU {gpu.number}",
        title=gpu.name,
        aliases=(),
        note=_note(gpu, seen, known, visible.value if visible.value is not None else nominal.value),
        sources=sources,
        fields=fields,
        file="",
    )


def _memory(gpu: LocalGpu, known: GpuProfile | None) -> tuple[Sourced, Sourced]:
    """The fields `memory`, with what was found as its note, and `visible_memory`, each with the rule it follows."""
    found = f"{gpu.tool} has {_called(gpu)}"
    total = gpu.total_bytes
    if total is None:  # GB10 and Jetson: the memory is the system's
        nominal, visible = (_field(known, key) for key in ("memory", "visible_memory"))
        rule = f"{gpu.tool} does not say; the figure of the profile {'' if known is None else known.name}"
        return nominal._replace(note=found, derived_from=rule), visible._replace(derived_from=rule)
    installed = f"what {gpu.tool} reports, which is the installed memory; the framework sees a little less"
    nominal = _sourced(gpu, total, rule=installed, note=found)
    if gpu.tool != "nvidia-smi":
        return nominal, _sourced(gpu, total, rule=f"what {gpu.tool} reports")
    if gpu.reserved_bytes is not None:
        kept = f"the {format_gib(gpu.reserved_bytes)} that the driver reserves"
        return nominal, _sourced(gpu, total - gpu.reserved_bytes, rule=f"{format_gib(total)} installed, less {kept}")
    visible = _field(known, "visible_memory")
    if known is not None and visible.value is not None and visible.value <= total and _same_memory(gpu, known):
        return nominal, visible._replace(derived_from=f"what the framework sees of a {known.name}")
    return nominal, Sourced(None, None, reason="this driver does not say what it reserves")


def _field(known: GpuProfile | None, key: str) -> Sourced:
    field = None if known is None else known.fields.get(key)
    return Sourced(None, None, reason="not reported") if field is None else field


def _sourced(gpu: LocalGpu, size: int, *, rule: str, note: str | None = None) -> Sourced:
    text = f"{size // smi.MIB} MiB" if size % smi.MIB == 0 else f"{size} B"
    return Sourced(size, text, source=gpu.tool, note=note, derived_from=rule)


def _derived(gpu: LocalGpu) -> dict[str, Sourced]:
    """What is known of a card without a profile: what follows from its compute capability or its target."""
    target = gpu.compute_capability or gpu.gfx
    if target is None:
        return {}
    architecture = generations.of_capability(target)
    rule = f"{target} is {architecture}"
    fields = {}
    if architecture is not None:
        fields["architecture"] = Sourced(architecture, architecture, source=gpu.tool, derived_from=rule)
    if gpu.compute_capability is not None:
        fields["compute_capability"] = Sourced(target, target, source=gpu.tool)
        for key, able in (("bf16", generations.has_bf16(target)), ("flash_attention", generations.has_flash(target))):
            fields[key] = Sourced(able, str(able).lower(), source=gpu.tool, derived_from=f"by the capability {target}")
    return fields


def _note(gpu: LocalGpu, seen: Sequence[LocalGpu], known: GpuProfile | None, capacity: int) -> str:
    """What else is worth knowing of this machine now."""
    said = [f"local is {_called(gpu)}"]
    if len(seen) > 1:
        others = ", ".join(f"local:{place} {one.name or one.tool}" for place, one in enumerate(seen) if one != gpu)
        said.append(f"there are {len(seen)} GPUs ({others})")
    if known is None:
        said.append("no profile has that name, so only what the driver says is known")
    elif gpu.total_bytes is not None and not _same_memory(gpu, known):
        said.append(f"its memory is not that of a {known.name}; the rest is taken from that profile")
    if gpu.free_bytes is not None:
        taken = capacity - gpu.free_bytes
        free = f"{format_gib(max(gpu.free_bytes, 0))} are free now"
        if taken > WORTH_SAYING_BYTES:
            free += "; to plan with that and not with the whole card, add --gpu-free now"
        said.append(free)
    if len({one.name for one in seen}) > 1 and _order_differs(gpu):
        said.append("CUDA may number these cards in another order, but for CUDA_DEVICE_ORDER=PCI_BUS_ID")
    if known is not None and known.note and not re.match(r"\S+ means ", known.note):  # this card is no word to explain
        said.append(known.note.removesuffix("."))
    return "; ".join(said) + "."


def _order_differs(gpu: LocalGpu) -> bool:
    """nvidia-smi counts along the PCI bus; CUDA puts the fastest card first unless it is told not to."""
    return gpu.tool == "nvidia-smi" and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _called(gpu: LocalGpu) -> str:
    return f"GPU {gpu.number}, {gpu.name}" if gpu.name else f"GPU {gpu.number}, without a name"


def _same_memory(gpu: LocalGpu, known: GpuProfile) -> bool:
    nominal = known.value("memory") or known.value("visible_memory")
    return gpu.total_bytes is not None and abs(gpu.total_bytes - nominal) <= SAME_MEMORY * nominal


def _profile_of(gpu: LocalGpu, dirs: Sequence[Path]) -> GpuProfile | None:
    """The profile that has the reported name, and of several sizes of one card that with the nearest memory."""
    if gpu.name is None:
        return None
    exact = locate.find("gpus", gpu.name, dirs, load_gpu_profile)
    if exact is not None and (gpu.total_bytes is None or _same_memory(gpu, exact)):
        return exact
    wanted = card_of(gpu.name)
    matches = []
    for path in locate.files("gpus", dirs).values():
        if not _may_name(path, wanted):
            continue
        try:
            profile = load_gpu_profile(path)
        except InputError:
            continue  # a broken file of another card is not what was asked for
        if wanted in {card_of(name) for name in (profile.name, *profile.aliases)}:
            matches.append(profile)
    if exact is not None:
        matches.append(exact)
    total = gpu.total_bytes
    if total is None:
        return matches[0] if len(matches) == 1 else None
    return min(matches, key=lambda one: abs((one.value("memory") or 0) - total), default=None)


def card_of(name: str) -> tuple[str, ...]:
    """The words of a name that tell cards apart: `NVIDIA A100-SXM4-80GB` and `a100-sxm4-40gb` are a100 sxm4.

    Joined words are parted as drivers part them: `rtx4090` is rtx 4090.
    """
    words = [word for word in re.split(r"[\s_/-]+", name.strip().lower()) if word]
    kept = [word for word in words if word not in _NOISE and not _SIZE.fullmatch(word)]
    return tuple(kept)


def _may_name(path: Path, words: Sequence[str]) -> bool:
    """Whether the file mentions every word: to search a text is a hundred times cheaper than to parse it."""
    text = path.read_text("utf-8", "replace").lower() if path.is_file() else ""
    return all(word in text for word in words)


def _today() -> str:
    return date.today().isoformat()
