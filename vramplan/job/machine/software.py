"""The CUDA context of a PyTorch version, and what of its libraries is in the allocator.

Sources: PyTorch 1.13 asks CUDA for lazy loading (pytorch/pytorch pull request 86509), which came with CUDA 11.7 and is
on by default since 12.2 (CUDA programming guide, Lazy Loading). PyTorch 2.0 gives cuBLAS its workspaces, which stay in
the caching allocator (pytorch/pytorch issue 95668: 1.13 did not).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vramplan.catalog.fields import shown
from vramplan.catalog.generations import GENERATIONS
from vramplan.units import format_gib

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import ContextFigure, Gpu, Runtime

LAZY, EAGER = "lazy", "eager"
LAST_OF_1 = 13  # 2.0 came after 1.13

Version = tuple[int, int]


def version_of(text: str) -> Version | None:
    """`2.1`, `2.1.1` and `2.1.1+cu121` are (2, 1); None: no version that PyTorch had or may have."""
    match = re.fullmatch(r"v?([12])\.(\d{1,2})(?:\.\d+)?(?:\+\w+)?", text.strip(), re.ASCII)
    if match is None:
        return None
    version = int(match[1]), int(match[2])
    return None if version[0] == 1 and version[1] > LAST_OF_1 else version


def with_software(resolver: Resolver, runtime: Runtime, gpu: Gpu) -> Runtime:
    """The runtime with the context of the job's PyTorch and loading; both are settled in the resolver's raw job."""
    raw, fields = resolver.raw, resolver.fields
    version = None
    if raw.pytorch_version is not None:
        version = version_of(raw.pytorch_version)
        if version is None:
            message = f"{shown(raw.pytorch_version)} is no version of PyTorch"
            fields.refuse("pytorch_version", message, hint="1.10 or 2.1, for example")
            return runtime
        raw.pytorch_version = f"{version[0]}.{version[1]}"
    generation = GENERATIONS.get(gpu.architecture or "")
    if gpu.architecture is not None and (generation is None or generation.vendor != "nvidia"):
        key = "cuda_module_loading" if version is None else "pytorch_version"
        message = f"no source says what a context takes on {gpu.architecture}, by version"
        fields.refuse(key, message, hint="leave it out for the figure of the runtime's profile")
        return runtime
    if raw.cuda_module_loading == LAZY and version is not None and version < runtime.lazy_loading_since:
        message = f"lazy loading needs CUDA 11.7, and PyTorch {raw.pytorch_version} was built with an older one"
        fields.refuse("cuda_module_loading", message, hint="eager, or pytorch_version 1.13 or later")
        return runtime
    if raw.cuda_module_loading is None:
        assert version is not None
        lazy = version >= runtime.lazy_loading_since
        raw.cuda_module_loading = LAZY if lazy else EAGER
        since = ".".join(map(str, runtime.lazy_loading_since))
        why = f"PyTorch's default since {since}" if lazy else f"lazy loading came with PyTorch {since}"
        resolver.assume("cuda_module_loading", raw.cuda_module_loading, why)
    source = resolver.catalog.with_contexts(runtime)
    found = nearest_figure(source.contexts, raw.cuda_module_loading, version, gpu.architecture)
    if found is None:
        message = f"the runtime's profile has no context with {raw.cuda_module_loading} loading"
        fields.refuse("cuda_module_loading", message, hint="leave it out, or add one to a profile of yours")
        return runtime
    size, basis = _size(source, found)
    _tell(resolver, found, size, gpu.architecture)
    runtime = runtime._replace(context_bytes=size, context_by_architecture={}, context_basis=basis)
    if version is not None and version < runtime.workspaces_since:
        runtime = runtime._replace(blas_workspace_bytes=0, blas_workspace_by_architecture={})
    return runtime


def nearest_figure(
    figures: tuple[ContextFigure, ...], loading: str, version: Version | None, architecture: str | None
) -> ContextFigure | None:
    """The stated context of that loading whose version is nearest, then its architecture, then the larger one.

    The version goes first: from PyTorch 1.10 to 1.13 the context of one card became half as large, while the cards of
    two generations differ by a quarter (stas00/ml-engineering). None as a version: the newest that is stated.
    """

    def distance(figure: ContextFigure) -> tuple[int, int, int]:
        own = version_of(figure.version) or (1, 0)
        apart = -_place(own) if version is None else abs(_place(own) - _place(version))
        order = list(GENERATIONS)
        beside = 0 if architecture is None else abs(order.index(figure.architecture) - order.index(architecture))
        return apart, beside, -figure.context_bytes

    return min((one for one in figures if one.loading == loading), key=distance, default=None)


def _place(version: Version) -> int:
    """The number of a release, so that 2.0 follows 1.13."""
    major, minor = version
    return minor if major == 1 else LAST_OF_1 + 1 + minor


def _size(runtime: Runtime, figure: ContextFigure) -> tuple[int, str]:
    """A lazy context with the kernels that a model loads into it, which are never more than all of them."""
    basis = f"of PyTorch {figure.version}, {figure.loading} loading, {figure.architecture}"
    if figure.loading == EAGER or not runtime.context_kernels_bytes:
        return figure.context_bytes, basis
    size = figure.context_bytes + runtime.context_kernels_bytes
    same = [one for one in runtime.contexts if one[:2] == figure[:2] and one.loading == EAGER]
    return min(size, *(one.context_bytes for one in same)) if same else size, basis


def _tell(resolver: Resolver, found: ContextFigure, size: int, architecture: str | None) -> None:
    """Say where the figure is not that of this very software on this very card."""
    asked = resolver.raw.pytorch_version
    if (found.version, found.architecture) == (asked, architecture):
        return
    own = f"PyTorch {found.version} on {found.architecture}"
    on = architecture or "an unknown architecture"
    why = f"no source has {found.loading} PyTorch {asked} on {on}; the nearest is {own}"
    if asked is None:
        why = f"no version is given: the newest with {found.loading} loading is {own}"
    resolver.assume("context", format_gib(size), why)
