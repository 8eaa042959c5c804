"""Runtime profiles: what a framework does where the job leaves it open, each figure with a source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.catalog import document, locate, profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.profile import Profile, Read
from vramplan.errors import InputError
from vramplan.options import table as options
from vramplan.options.option import Option
from vramplan.options.read import read as read_option
from vramplan.options.words import HALVES, pattern_of
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

ONLY_OF = {"adapter": "adapter.kind", "sharding": "parallel.sharding", "quantized_precision": "precision"}
"""The keys of a job behind such names, where they are others."""


_REQUIRED = ("optimizer_implementation", "loss", "gradients", "context", "process_group")
LOSSES = ("causal-lm-fp32", "causal-lm")
GRADIENTS = ("set-to-none", "persistent")
EMBEDDING_STATES = ("as-others", "fp32")
MODEL_CODES = (
    "transformers",
    "megatron",
    "torchtitan",
    "torchtune",
    "litgpt",
    "nanogpt",
    "llm-foundry",
    "fms-fsdp",
    "unsloth",
    "llm.c",
    "modded-nanogpt",
)


def _one_of(words: Sequence[str]) -> Read:
    def read(fields: Fields, name: str) -> str | None:
        return fields.word(name, words)

    return read


def _context(fields: Fields, name: str) -> int | None:
    return fields.parsed(name, lambda text: parse_size_bytes(text, rounding="up"))


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


def _words(fields: Fields, name: str) -> tuple[str, ...] | None:
    texts = fields.texts(name)
    return None if texts is None else tuple(texts)


def _only(key: str) -> Read:
    """Reads the words of a key that a runtime has; `none` stands for doing without."""
    if key == "family":
        return _words
    known = (*options.find(ONLY_OF.get(key, key)).words, "none")

    def read(fields: Fields, name: str) -> tuple[str, ...] | None:
        texts = _words(fields, name)
        for text in texts or ():
            if pattern_of(text, known) not in known:
                fields.unknown_word(name, text, known)
        return texts

    return read


def _default(option: Option) -> Read:
    """Reads a default for a key of a job as the key itself is read."""

    def read(fields: Fields, name: str) -> Any:
        return read_option(option, fields, name, more=option.profile_words)

    return read


OF_KEYS: dict[str, Read] = {
    **{field: _default(option) for field, option in options.profile_fields().items()},
    "bitsandbytes": _release,
}
"""Fields that have the words and ranges of the key of a job."""

DEFAULTS: dict[str, Read] = {
    **{field: read for field, read in OF_KEYS.items() if field not in _REQUIRED},
    "adapter_chunk_tokens": _count,
}
"""What a job has of a runtime where it says nothing; `job/runtime.py` says how each is taken."""

_READERS: dict[str, Read] = {
    "version": _text,
    **OF_KEYS,
    "loss": _one_of(LOSSES),
    "gradients": _one_of(GRADIENTS),
    "context": _context,
    "context_kernels": _context,
    "process_group": _context,
    "blas_workspace": _context,
    "convolution_workspace": _context,
    "embedding_states": _one_of(EMBEDDING_STATES),
    "caching_allocator": _boolean,
    "model_code": _one_of(MODEL_CODES),
    "quantized_from": _one_of(HALVES),
    **DEFAULTS,
    "only_one_device": _boolean,
    **{ONLY + key: _only(key) for key in ONLY_KEYS},
    **{CONTEXT + architecture: _context for architecture in GENERATIONS},
    **{WORKSPACE + name: _context for name in (*GENERATIONS, *VENDORS)},
}
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
    """Every runtime profile by name. Raises InputError with the problems of all broken files."""
    return locate.load_all("runtimes", dirs, load_runtime_profile)


def find_runtime_profile(name: str, dirs: Sequence[Path] = ()) -> Profile:
    """The profile of that name, with the source of every field. Raises InputError, with near matches."""
    found = locate.find("runtimes", name, dirs, load_runtime_profile)
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
        model_code=found.value("model_code") or "transformers",
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
