"""Runtime profiles: what a framework does where the job leaves it open, each figure with a source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan import engines
from vramplan.catalog import document, locate, profile
from vramplan.catalog.fields import Fields, shown
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.profile import Profile, Read
from vramplan.errors import InputError, Problem
from vramplan.units import parse_size_bytes
from vramplan.values.job import Assumption
from vramplan.values.machine import ContextFigure, Runtime

CONTEXT = "context_"  # context_volta, context_hopper: the exceptions, by architecture
LOADINGS = ("lazy", "eager")
FIGURE = re.compile(rf"context_({'|'.join(GENERATIONS)})_(\d{{1,2}}\.\d{{1,2}})_({'|'.join(LOADINGS)})")
"""A context by architecture, version of PyTorch and loading of kernels: `context_ampere_2.1_lazy`."""

WORKSPACE = "blas_workspace_"  # blas_workspace_hopper, blas_workspace_amd: exceptions, by architecture and vendor
VENDORS = tuple(dict.fromkeys(generation.vendor for generation in GENERATIONS.values()))
ONLY = "only_"  # only_family, only_sharding: what the framework has at all
ONLY_KEYS = (
    *("family", "precision", "optimizer", "adapter", "quantization", "sharding", "activation_checkpointing"),
    *("attention", "loss", "offload", "quantized_precision"),
)
"""What an `only_` field may be about; of `adapter` the kinds, of `family` the families of models."""


LOSSES = ("causal-lm-fp32", "causal-lm")
GRADIENTS = ("set-to-none", "persistent")
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
EMBEDDING_STATES = ("as-others", "fp32")
PLAIN = "pytorch"  # the engine of a profile that names none and is called like none: a loop around any model
PRECISIONS = (
    *("fp32", "amp-fp16", "amp-bf16", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16"),
    *("fsdp-bf16", "fsdp-fp16", "fp8"),
)
OPTIMIZERS = ("adamw", "adam", "sgd", "adamw-8bit", "adamw-paged", "adamw-8bit-paged", "lion", "muon")
ATTENTIONS = ("eager", "flash", "efficient", "sdpa")
SHARDINGS = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "distributed-optimizer")
DTYPES = ("fp32", "bf16", "fp16")
QUANTIZED_FROM = ("bf16", "fp16")
AS_GATHERED = "as-gathered"
REDUCTIONS = (AS_GATHERED, *DTYPES)
"""What a policy of FSDP sums gradients in: a type, or that of the parameters that it gathers."""


def _one_of(words: Sequence[str]) -> Read:
    def read(fields: Fields, name: str) -> str | None:
        return fields.word(name, words)

    return read


def _context(fields: Fields, name: str) -> int | None:
    return fields.parsed(name, lambda text: parse_size_bytes(text, rounding="up"))


def _engine(fields: Fields, name: str) -> str | None:
    text = fields.text(name)
    if text is not None and text not in engines.FOLDERS and text not in engines.of_packages():
        fields.problem(name, f"there is no engine {shown(text)}", hint=f"known: {', '.join(engines.names())}")
        return None
    return text


def _boolean(fields: Fields, name: str) -> bool | None:
    return fields.boolean(name)


def _release(fields: Fields, name: str) -> str | None:
    text = fields.text(name)
    if text is not None:
        from vramplan.replay.techniques.bitsandbytes import (  # only its profiles pay for it
            NEWEST,
            OLDEST,
            is_known,
            is_release,
        )

        if not (is_release(text) and is_known(text)):
            fields.problem(name, f"{text!r} is no release from {OLDEST} to {NEWEST}")
    return text


def _text(fields: Fields, name: str) -> str | None:
    return fields.text(name)


def _count(fields: Fields, name: str) -> int | None:
    return fields.integer(name)


def _probability(fields: Fields, name: str) -> float | None:
    return fields.number(name, minimum=0, below=1)


def _norm(fields: Fields, name: str) -> float | None:
    return fields.number(name, minimum=0)


def _words(fields: Fields, name: str) -> tuple[str, ...] | None:
    texts = fields.texts(name)
    return None if texts is None else tuple(texts)


DEFAULTS: dict[str, Read] = {
    "sequence_length": _count,
    "micro_batch_size": _count,
    "global_batch_size": _count,
    "precision": _one_of(PRECISIONS),
    "sharded_precision": _one_of(PRECISIONS),
    "quantized_precision": _one_of(PRECISIONS),
    "optimizer": _one_of(OPTIMIZERS),
    "quantized_optimizer": _one_of(OPTIMIZERS),
    "gradient_dtype": _one_of(DTYPES),
    "max_gradient_norm": _norm,
    "attention": _one_of(ATTENTIONS),
    "head_loss": _text,
    "adapter_chunk_tokens": _count,
    "adapter_dropout": _probability,
    "dropout": _probability,
    "hold_outputs": _boolean,
    "compile": _boolean,
    "bitsandbytes": _release,
    "checkpoint_reentrant": _boolean,
    "sharding": _one_of(SHARDINGS),
    "no_sync": _boolean,
    "fsdp_version": _count,
    "reduce_dtype": _one_of(REDUCTIONS),
    "gradient_as_bucket_view": _boolean,
    "allocator": _text,
    "allocator_of_several_nodes": _text,
}
"""What a job has of a runtime where it says nothing; `job/runtime.py` says how each is taken."""

_READERS: dict[str, Read] = {
    "version": _text,
    "optimizer_implementation": _one_of(IMPLEMENTATIONS),
    "loss": _one_of(LOSSES),
    "gradients": _one_of(GRADIENTS),
    "context": _context,
    "context_kernels": _context,
    "process_group": _context,
    "blas_workspace": _context,
    "convolution_workspace": _context,
    "embedding_states": _one_of(EMBEDDING_STATES),
    "caching_allocator": _boolean,
    "engine": _engine,
    "quantized_from": _one_of(QUANTIZED_FROM),
    **DEFAULTS,
    "only_one_device": _boolean,
    **{ONLY + key: _words for key in ONLY_KEYS},
    **{CONTEXT + architecture: _context for architecture in GENERATIONS},
    **{WORKSPACE + name: _context for name in (*GENERATIONS, *VENDORS)},
}
_REQUIRED = ("optimizer_implementation", "loss", "gradients", "context", "process_group")


FIELDS = tuple(_READERS)
"""The fields of a runtime profile."""


def load_runtime_profile(path: Path | str) -> Profile:
    """Read one runtime profile. Raises InputError with every problem of the file."""
    fields = profile.open_profile(Path(path))
    common = profile.read(fields, "runtime", {**_READERS, **_figures_of(fields)})
    missing = [key for key in _REQUIRED if common.value(key) is None]
    if missing and not fields.sink.problems:
        fields.problem("fields", f"{', '.join(missing)} missing")
    fields.sink.raise_all()
    return common


def list_runtimes(dirs: Sequence[Path] = ()) -> list[Profile]:
    """Every runtime profile by name, those of other packages last.

    Raises InputError with the problems of all broken files, or that of a package whose engine cannot be imported.
    """
    known = locate.load_all("runtimes", dirs, load_runtime_profile)
    names = {profile.name for profile in known}
    others = [_profile_of(name) for name in engines.of_packages() if name not in names]
    return [*known, *(profile for profile in others if profile is not None)]


def names_of_runtimes(dirs: Sequence[Path] = ()) -> tuple[str, ...]:
    """What `runtime` may be: the profiles by name, and the engines of other packages. No file is read."""
    return tuple(dict.fromkeys((*locate.files("runtimes", dirs), *engines.of_packages())))


def engine_name(found: Profile) -> str:
    """The engine of a runtime profile: the one that it names, or the one that it is called like."""
    name = found.value("engine")
    if name is None and (found.name in engines.FOLDERS or found.name in engines.of_packages()):
        name = found.name
    return name or PLAIN


def _profile_of(name: str) -> Profile | None:
    """The runtime profile of another package's engine; None if it has none."""
    path = engines.engine_of(name).profile
    if path is None:
        return None
    found = load_runtime_profile(path)
    if found.name != name:
        raise InputError([Problem(f"{found.name!r} is not {name!r}, the name of its engine", "name", file=path)])
    return found


def find_runtime_profile(name: str, dirs: Sequence[Path] = ()) -> Profile:
    """The profile of that name, with the source of every field. Raises InputError, with near matches."""
    found = locate.find("runtimes", name, dirs, load_runtime_profile)
    if found is None and name in engines.of_packages():
        found = _profile_of(name)
    if found is None:
        raise InputError([locate.unknown("runtimes", name, dirs)._replace(key="runtime")])
    return found


def find_runtime(name: str, dirs: Sequence[Path] = ()) -> tuple[Runtime, tuple[Assumption, ...]]:
    """The runtime of that name as a policy, and whether it shadows the shipped one.

    Raises InputError, with near matches.
    """
    found = find_runtime_profile(name, dirs)
    contexts = {one: found.value(CONTEXT + one) for one in GENERATIONS if found.value(CONTEXT + one) is not None}
    figures = ((FIGURE.fullmatch(key), value.value) for key, value in found.fields.items())
    runtime = Runtime(
        name=found.name,
        title=found.title or found.name,
        optimizer_implementation=found.value("optimizer_implementation"),
        loss=found.value("loss"),
        gradients=found.value("gradients"),
        context_bytes=found.value("context"),
        context_by_architecture=contexts,
        contexts=tuple(
            ContextFigure(key[1], key[2], key[3], size) for key, size in figures if key is not None and size
        ),
        context_kernels_bytes=found.value("context_kernels") or 0,
        blas_workspace_bytes=found.value("blas_workspace"),
        blas_workspace_by_architecture=_workspaces_of(found),
        process_group_bytes=found.value("process_group"),
        embedding_states=found.value("embedding_states") or "as-others",
        caches=found.value("caching_allocator") is not False,
        engine=engine_name(found),
        quantized_from=found.value("quantized_from"),
        defaults=_given(found, DEFAULTS),
        only={key.removeprefix(ONLY): words for key, words in _given(found, _READERS).items() if key.startswith(ONLY)},
        notes={key: field.note for key, field in found.fields.items() if field.note is not None},
    )
    return runtime, locate.shadow_told("runtimes", found)


def _workspaces_of(found: Profile) -> dict[str, int | None]:
    """What a profile has of an architecture, or else of its vendor; None: it says that nobody knows."""
    both = {one: (WORKSPACE + one, WORKSPACE + generation.vendor) for one, generation in GENERATIONS.items()}
    known = {one: next((key for key in keys if key in found.fields), None) for one, keys in both.items()}
    return {one: found.value(key) for one, key in known.items() if key is not None}


def _figures_of(fields: Fields) -> dict[str, Read]:
    """The readers of the contexts by version that a profile has; there are too many to name them all."""
    table = fields.node_of("fields")
    names = table.entries if isinstance(table, document.Mapping) else ()
    return {name: _context for name in names if FIGURE.fullmatch(name)}


def _given(found: Profile, keys: dict[str, Read]) -> dict[str, Any]:
    return {key: found.value(key) for key in keys if found.value(key) is not None}
