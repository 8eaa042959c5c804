"""The job key `allocator`: estimated, or simulated with settings in the words of PYTORCH_ALLOC_CONF.

Source: c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp of PyTorch 2.13, parseArgs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vramplan.errors import near_matches
from vramplan.values.allocator import DEFAULT, LARGE_SEGMENT_BYTES, MIN_LARGE_BYTES, UNLIMITED, Settings

if TYPE_CHECKING:
    from vramplan.catalog.fields import Fields

ESTIMATE, SIMULATE = "estimate", "simulate"
AUTO = "auto"  # as without the key; settings behind it are those of the run, should it be simulated
INTERVALS = 16  # of roundup_power2_divisions: from 1 MiB to 32 GiB, each a power of two
MIB = 2**20

WITHOUT_EFFECT = (
    *("release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse"),
    *("pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_num_register_threads"),
    *("pinned_use_background_threads", "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"),
    *("pinned_reserve_segment_size_mb", "pinned_free_catch_all", "throw_on_cudamalloc_oom"),
)
"""Settings that say nothing about memory of the device: locks, captured graphs, memory of the host."""

SETTINGS = (
    *("expandable_segments", "max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb"),
    *("garbage_collection_threshold", "per_process_memory_fraction", "roundup_power2_divisions", "backend"),
)


class BadSetting(ValueError):
    """A setting that PyTorch would refuse, or that is not modelled; `hint` says what to write."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def read_allocator(fields: Fields) -> str | None:
    """The key as written, if PyTorch would take it; None if it is absent or wrong."""
    text = fields.text("allocator")
    if text is None:
        return None
    if text == AUTO:
        return None
    try:
        settings_of(text)
    except BadSetting as error:
        fields.problem("allocator", str(error), hint=error.hint)
        return None
    return text


def offer(settings: str) -> str:
    """The text that leaves open whether the allocator is simulated, and gives it these settings if it is."""
    return f"{AUTO},{settings}"


def is_offer(text: str) -> bool:
    """Whether a text leaves open whether the allocator is simulated."""
    return text.partition(",")[0].strip() == AUTO


def settings_of(text: str) -> Settings | None:
    """The settings that a text stands for; None: the allocator is estimated. Raises BadSetting.

    Those of an offer are what it has if it is simulated.
    """
    if text == ESTIMATE:
        return None
    if is_offer(text):
        text = text.partition(",")[2]
        if ":" not in text:
            raise BadSetting(f"{text.strip()!r} is no setting", f"write {AUTO},name:value, or {AUTO} alone")
    if text == SIMULATE:
        return DEFAULT
    found = DEFAULT
    for name, value in _pairs(text):
        found = _with(found, name, value)
    return found


def text_of(settings: Settings | None) -> str:
    """What `settings_of` reads back as the same settings."""
    if settings is None:
        return ESTIMATE
    parts = []
    if settings.expandable_segments:
        parts.append("expandable_segments:True")
    if settings.max_split_size_bytes != UNLIMITED:
        parts.append(f"max_split_size_mb:{settings.max_split_size_bytes // MIB}")
    if settings.max_non_split_rounding_bytes != LARGE_SEGMENT_BYTES:
        parts.append(f"max_non_split_rounding_mb:{settings.max_non_split_rounding_bytes // MIB}")
    if settings.large_segment_bytes != LARGE_SEGMENT_BYTES:
        parts.append(f"large_segment_size_mb:{settings.large_segment_bytes // MIB}")
    if settings.garbage_collection_threshold:
        parts.append(f"garbage_collection_threshold:{settings.garbage_collection_threshold:g}")
    if settings.memory_fraction is not None:
        parts.append(f"per_process_memory_fraction:{settings.memory_fraction:g}")
    if settings.divisions:
        pairs = [f"{2**i}:{count}" for i, count in enumerate(settings.divisions)]
        parts.append(f"roundup_power2_divisions:[{','.join(pairs)}]")
    return ",".join(parts) or SIMULATE


def _pairs(text: str) -> list[tuple[str, str]]:
    compact = re.sub(r"\s", "", text)
    if ":" not in compact:
        known = (AUTO, ESTIMATE, SIMULATE)
        hint = near_matches(compact, known) or f"known: {', '.join(known)}, or settings of PYTORCH_ALLOC_CONF"
        raise BadSetting(f"{text!r} is no way to look at the allocator", hint)
    found = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\]?)?", compact):
        name, colon, value = part.partition(":")
        if not colon or not value:
            raise BadSetting(f"{part!r} is no setting", "write name:value, several with commas between them")
        if name not in SETTINGS and name not in WITHOUT_EFFECT:
            raise BadSetting(f"PYTORCH_ALLOC_CONF has no {name!r}", near_matches(name, SETTINGS) or _known())
        found.append((name, value))
    return found


def _known() -> str:
    return "known: " + ", ".join(SETTINGS)


def _with(settings: Settings, name: str, value: str) -> Settings:
    if name == "expandable_segments":
        if value not in ("True", "False"):
            raise BadSetting(f"{name} is True or False, not {value!r}")
        return settings._replace(expandable_segments=value == "True")
    if name == "max_split_size_mb":
        return settings._replace(max_split_size_bytes=_mib(name, value, least=LARGE_SEGMENT_BYTES // MIB))
    if name == "max_non_split_rounding_mb":
        return settings._replace(max_non_split_rounding_bytes=_mib(name, value, least=LARGE_SEGMENT_BYTES // MIB))
    if name == "large_segment_size_mb":
        return settings._replace(large_segment_bytes=_mib(name, value, least=MIN_LARGE_BYTES // MIB + 1))
    if name == "garbage_collection_threshold":
        return settings._replace(garbage_collection_threshold=_share(name, value))
    if name == "per_process_memory_fraction":
        share = 1.0 if value in ("1", "1.0") else _share(name, value)
        return settings._replace(memory_fraction=share)
    if name == "roundup_power2_divisions":
        return settings._replace(divisions=_divisions(value))
    if name == "backend" and value != "native":
        raise BadSetting(f"backend {value} is not modelled", "backend:native, PyTorch's own")
    return settings


def _mib(name: str, value: str, *, least: int) -> int:
    if not value.isdecimal() or not least <= int(value) <= 2**20:
        raise BadSetting(f"{name} is a whole number of MiB of at least {least}, not {value!r}")
    return int(value) * MIB


def _share(name: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise BadSetting(f"{name} lies between 0 and 1, not at {value!r}")
    return share


def _divisions(value: str) -> tuple[int, ...]:
    if not value.startswith("["):
        return (_power(value),) * INTERVALS
    found = [1] * INTERVALS
    last: int | None = None
    for pair in value.strip("[]").split(","):
        bound, colon, count = pair.partition(":")
        if not colon:
            raise BadSetting(f"roundup_power2_divisions has no {pair!r}", "[256:1,512:2,>:8]")
        if bound == ">":
            after = (last or 0) + 1
            found[after:] = [_power(count)] * (INTERVALS - after)
            continue
        place = min(_power(bound).bit_length() - 1, INTERVALS - 1)
        if last is None:
            found[:place] = [_power(count)] * place
        found[place] = _power(count)
        last = place
    return tuple(found)


def _power(text: str) -> int:
    if text == "0":  # no rounding, as 1
        return 1
    if not text.isdecimal() or int(text) < 1 or int(text) & (int(text) - 1):
        raise BadSetting(f"roundup_power2_divisions has powers of two, not {text!r}", "roundup_power2_divisions:4")
    return int(text)
