"""What is hardly true of a profile: figures outside of their generation, figures that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.catalog import generations
from vramplan.catalog.counting import parameters_of
from vramplan.catalog.generations import GENERATIONS, Range
from vramplan.catalog.gpu_profile import GpuProfile
from vramplan.catalog.models import ModelProfile
from vramplan.catalog.profile import Profile
from vramplan.errors import InputError

MIB, GIB, GIGA, TERA = 1 << 20, 1 << 30, 1e9, 1e12

# Bytes that hold every published figure of the profiles several times: an upper end says that a unit is wrong.
SOFTWARE_RANGES: dict[str, tuple[int, int]] = {
    "context": (50 << 20, 4 << 30),
    "context_kernels": (1 << 20, 2 << 30),
    "process_group": (1 << 20, 8 << 30),
    "blas_workspace": (64 << 10, 1 << 30),
}

_ABLE = {"bf16": generations.has_bf16, "flash_attention": generations.has_flash, "fp8": generations.has_fp8}
_RATE_OF = {"bf16": "bf16_rate", "fp8": "fp8_rate"}


def doubts_about_gpu(profile: GpuProfile) -> Iterator[tuple[str, str]]:
    """(field, what is doubtful) for each figure that its generation or another figure speaks against."""
    architecture = profile.value("architecture")
    generation = GENERATIONS.get(architecture) if architecture is not None else None
    if generation is not None:
        ranges: tuple[tuple[str, Range, float, str], ...] = (
            ("memory", generation.memory_gib, GIB, "GiB"),
            ("memory_bandwidth", generation.bandwidth_gb_per_s, GIGA, "GB/s"),
            ("fp32", generation.fp32_tflop_per_s, TERA, "TFLOP/s"),
            ("fp16", generation.fp16_tflop_per_s, TERA, "TFLOP/s"),
            ("bf16_rate", generation.fp16_tflop_per_s, TERA, "TFLOP/s"),
            ("tdp", generation.tdp_watts, 1, "W"),
        )
        for key, (least, most), scale, unit in ranges:
            value = profile.value(key)
            if value is not None and not least <= value / scale <= most:
                text = profile.fields[key].text
                yield key, f"{text} is outside of what {architecture} cards have, {least:g} to {most:g} {unit}"
        vendor = profile.value("vendor")
        if vendor is not None and vendor != generation.vendor:
            yield "vendor", f"{architecture} is by {generation.vendor}, not {vendor}"
    yield from _capability(profile, architecture)
    yield from _memory(profile)
    yield from _rates(profile)


def _capability(profile: GpuProfile, architecture: str | None) -> Iterator[tuple[str, str]]:
    capability = profile.value("compute_capability")
    if capability is None:
        if architecture in GENERATIONS and GENERATIONS[architecture].vendor == "amd":
            wanted = GENERATIONS[architecture].fp8
            if profile.value("fp8") not in (None, wanted):
                yield "fp8", f"{architecture} cards have {'' if wanted else 'no '}fp8"
        return
    if generations.of_capability(capability) is None:
        yield "compute_capability", f"{capability} is of no generation that is known here"
        return
    if architecture in GENERATIONS and capability not in GENERATIONS[architecture].targets:
        known = ", ".join(GENERATIONS[architecture].targets)
        yield "compute_capability", f"{capability} is not {architecture}, which has {known}"
    for key, able in _ABLE.items():
        value = profile.value(key)
        if value is not None and value != able(capability):
            yield key, f"compute capability {capability} has {'' if able(capability) else 'no '}{key.replace('_', ' ')}"


def _memory(profile: GpuProfile) -> Iterator[tuple[str, str]]:
    nominal, visible = profile.value("memory"), profile.value("visible_memory")
    if nominal is not None and visible is not None:
        least, most = generations.VISIBLE_SHARE
        if not least * nominal <= visible <= most * nominal:
            share = f"{100 * visible / nominal:.0f} %"
            yield "visible_memory", f"is {share} of the memory; frameworks see {100 * least:g} to {100 * most:g} %"


def _rates(profile: GpuProfile) -> Iterator[tuple[str, str]]:
    for key, rate in _RATE_OF.items():
        if profile.value(key) is False and profile.value(rate) is not None:
            yield rate, f"has a rate, but {key} is false"
    half, bf16 = profile.value("fp16"), profile.value("bf16_rate")
    if half is not None and bf16 is not None and not 0.95 * half <= bf16 <= 1.05 * half:
        yield "bf16_rate", f"{profile.fields['bf16_rate'].text} is not the fp16 rate, {profile.fields['fp16'].text}"
    fp8 = profile.value("fp8_rate")
    if half is not None and fp8 is not None and not 1.8 * half <= fp8 <= 2.2 * half:
        yield "fp8_rate", f"{profile.fields['fp8_rate'].text} is not twice the fp16 rate, {profile.fields['fp16'].text}"
    link = profile.fields.get("link_bandwidth")
    if link is not None and link.value is not None and link.direction is None:
        yield "link_bandwidth", "says no direction: bidirectional_total or per_direction"


def doubts_about_model(profile: ModelProfile) -> Iterator[tuple[str, str]]:
    """(field, what is doubtful): the declared parameters, if the architecture has another number."""
    declared = profile.value("parameters")
    if declared is None:
        return
    try:
        counted = parameters_of(profile.shape())
    except InputError:
        return
    if counted != declared:
        yield "parameters", f"declares {declared:,}, but the architecture has {counted:,}: a size or a switch is wrong"


def doubts_about_software(profile: Profile) -> Iterator[tuple[str, str]]:
    """(field, what is doubtful) for each figure of a stack or a runtime of a size that no source has."""
    for key, field in profile.fields.items():
        named = (
            key if key in SOFTWARE_RANGES else next((one for one in SOFTWARE_RANGES if key.startswith(one + "_")), None)
        )
        if named is None or not isinstance(field.value, int):
            continue
        least, most = SOFTWARE_RANGES[named]
        if not least <= field.value <= most:
            yield key, f"{field.text} is outside of {least / MIB:g} to {most / MIB:g} MiB: is its unit right?"
