"""Stack profiles: what CUDA, cuBLAS, NCCL and PyTorch take beside a model, each figure with a source.

A runtime profile names its stack (`stack: pytorch`) and takes each field that it does not have itself from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import document, locate, profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.profile import Profile, Read
from vramplan.catalog.reading import once
from vramplan.errors import InputError
from vramplan.units import parse_size_bytes

DEFAULT = "pytorch"  # of a runtime profile that names none: the contexts by version
CONTEXT = "context_"  # context_volta, context_hopper: the exceptions, by architecture
LOADINGS = ("lazy", "eager")
FIGURE = re.compile(rf"context_({'|'.join(GENERATIONS)})_(\d{{1,2}}\.\d{{1,2}})_({'|'.join(LOADINGS)})")
"""A context by architecture, version of PyTorch and loading of kernels: `context_ampere_2.1_lazy`."""

WORKSPACE = "blas_workspace_"  # blas_workspace_hopper, blas_workspace_amd: exceptions, by architecture and vendor
VENDORS = tuple(dict.fromkeys(generation.vendor for generation in GENERATIONS.values()))


def _size(fields: Fields, name: str) -> int | None:
    return fields.parsed(name, lambda text: parse_size_bytes(text, rounding="up"))


def _release(fields: Fields, name: str) -> tuple[int, ...] | None:
    text = fields.text(name)
    match = None if text is None else re.fullmatch(r"(\d{1,2})\.(\d{1,2})(?:\.(\d{1,2}))?", text, re.ASCII)
    if text is not None and match is None:
        fields.problem(name, f"{text!r} is no release", hint='as in "2.0", in quotes')
    return None if match is None else tuple(int(one) for one in match.groups() if one is not None)


RELEASES = (
    *("lazy_loading_since", "workspaces_since", "gradients_set_to_none_since"),
    *("foreach_adam_in_place_since", "cache_objects_since", "fused_rms_norm_since", "second_flash_since"),
    "limited_gathers_since",
    *("logits_returned_since", "shifted_labels_since", "one_attention_since", "grouped_attention_since"),
    *("batched_masks_since", "strided_attention_since", "stacked_experts_since", "exact_layers_since"),
    *(
        "read_on_device_since",
        "quantized_room_since",
        "tied_once_since",
        "counted_bits_since",
        "quantized_as_read_since",
    ),
    *("wide_norms_since", "projections_apart_since", "copied_places_since", "flat_on_device_since"),
)
"""The release of PyTorch, of Transformers, of LitGPT or of DeepSpeed, from which on something is so."""


def _architecture(fields: Fields, name: str) -> str | None:
    return fields.word(name, GENERATIONS)


READERS: dict[str, Read] = {
    "context": _size,
    "context_kernels": _size,
    "process_group": _size,
    "blas_workspace": _size,
    "convolution_workspace": _size,
    **{CONTEXT + architecture: _size for architecture in GENERATIONS},
    **{WORKSPACE + name: _size for name in (*GENERATIONS, *VENDORS)},
    **dict.fromkeys(RELEASES, _release),
    "calibrated": _architecture,
    "calibrated_groups": _architecture,
}
"""The fields of a stack, all of which a runtime profile may have itself. `figures_of` adds the contexts by version."""

FIELDS = tuple(READERS)
REQUIRED = ("context", "process_group")


def figures_of(fields: Fields) -> dict[str, Read]:
    """The readers of the contexts by version that a profile has; there are too many to name them all."""
    table = fields.node_of("fields")
    names = table.entries if isinstance(table, document.Mapping) else ()
    return {name: _size for name in names if FIGURE.fullmatch(name)}


def check_required(fields: Fields, found: Profile, required: Sequence[str]) -> None:
    """A problem where a field without which nothing can be answered has no value."""
    missing = [key for key in required if found.value(key) is None]
    if missing and not fields.sink.problems:
        fields.problem("fields", f"{', '.join(missing)} missing")
    fields.sink.raise_all()


@once
def load_stack_profile(path: Path | str) -> Profile:
    """Read one stack profile. Raises InputError with every problem of the file."""
    fields = profile.open_profile(Path(path))
    found = profile.read(fields, "stack", {**READERS, **figures_of(fields)})
    check_required(fields, found, REQUIRED)
    return found


def find_stack_profile(name: str, dirs: Sequence[Path] = ()) -> Profile:
    """The profile of that name. Raises InputError, with near matches."""
    found = locate.find("stacks", name, dirs, load_stack_profile)
    if found is None:
        raise InputError([locate.unknown("stacks", name, dirs)._replace(key="stack")])
    return found


def with_stack(runtime: Profile, dirs: Sequence[Path] = ()) -> Profile:
    """The runtime profile with the fields of its stack that it does not have itself, and with their sources.

    Raises InputError at the key `stack` of the runtime's file where no stack has that name.
    """
    if runtime.stack is None:
        return runtime
    try:
        stack = find_stack_profile(runtime.stack, dirs)
    except InputError as error:
        unknown = [one._replace(file=runtime.file) if one.key == "stack" else one for one in error.problems]
        raise InputError(unknown) from None
    names = {key: key if key not in runtime.sources else f"{stack.name}/{key}" for key in stack.sources}
    inherited = {
        key: field if field.source is None else field._replace(source=names[field.source])
        for key, field in stack.fields.items()
        if key not in runtime.fields
    }
    used = {field.source for field in inherited.values()}
    sources = {names[key]: source for key, source in stack.sources.items() if names[key] in used}
    return runtime._replace(fields={**runtime.fields, **inherited}, sources={**runtime.sources, **sources})
