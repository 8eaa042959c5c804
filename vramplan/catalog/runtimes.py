"""Runtime profiles: what a framework does where the job leaves it open, each figure with a source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan import engines
from vramplan.catalog import locate, profile, stacks
from vramplan.catalog.fields import Fields, shown
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.profile import Profile, Read
from vramplan.catalog.reading import once
from vramplan.catalog.stacks import CONTEXT, FIGURE, WORKSPACE
from vramplan.engines import imported
from vramplan.errors import InputError, Problem
from vramplan.options import table as options
from vramplan.options.option import Option
from vramplan.options.read import read as read_option
from vramplan.options.words import HALVES, pattern_of
from vramplan.values.job import Assumption
from vramplan.values.machine import ContextFigure, Runtime

ONLY = "only_"  # only_family, only_sharding: what the framework has at all
ONLY_KEYS = (
    *("family", "precision", "optimizer", "adapter", "quantization", "sharding", "activation_checkpointing"),
    *("attention", "loss", "offload", "quantized_precision"),
)
"""What an `only_` field may be about; of `adapter` the kinds, of `family` the families of models."""

ONLY_OF = {"adapter": "adapter.kind", "sharding": "parallel.sharding", "quantized_precision": "precision"}
"""The keys of a job behind such names, where they are others."""


_REQUIRED = ("optimizer_implementation", "loss", "gradients")
LOSSES = ("causal-lm-fp32", "causal-lm", "causal-lm-in-place")
GRADIENTS = ("set-to-none", "persistent")
EMBEDDING_STATES = ("as-others", "fp32")
PLAIN = "pytorch"  # the engine of a profile that names none and is called like none: a loop around any model


def _one_of(words: Sequence[str]) -> Read:
    def read(fields: Fields, name: str) -> str | None:
        return fields.word(name, words)

    return read


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
        library = imported("vramplan.replay.techniques.bitsandbytes")
        if not (library.is_release(text) and library.is_known(text)):
            fields.problem(name, f"{text!r} is no release from {library.OLDEST} to {library.NEWEST}")
    return text


def _text(fields: Fields, name: str) -> str | None:
    return fields.text(name)


def _count(fields: Fields, name: str) -> int | None:
    return fields.integer(name)


def _words(fields: Fields, name: str) -> tuple[str, ...] | None:
    texts = fields.texts(name)
    return None if texts is None else tuple(texts)


def _by_release(fields: Fields, name: str) -> tuple[tuple[tuple[int, int], str], ...] | None:
    """Texts of the form `2.10 WORDS`: what holds before a release, the oldest of them first."""
    found = []
    for text in _words(fields, name) or ():
        match = re.fullmatch(r"(\d+)\.(\d+) (\S+)", text)
        if match is None:
            fields.problem(name, f"{shown(text)} is no release with what holds before it", hint="2.10 simulate")
            return None
        found.append(((int(match[1]), int(match[2])), match[3]))
    return tuple(sorted(found))


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
    "allocator_before": _by_release,
}
"""What a job has of a runtime where it says nothing; `job/runtime.py` says how each is taken."""

_READERS: dict[str, Read] = {
    "version": _text,
    **OF_KEYS,
    "loss": _one_of(LOSSES),
    "gradients": _one_of(GRADIENTS),
    "embedding_states": _one_of(EMBEDDING_STATES),
    "caching_allocator": _boolean,
    "engine": _engine,
    "quantized_from": _one_of(HALVES),
    **DEFAULTS,
    "only_one_device": _boolean,
    "checkpointing_settings": _only("activation_checkpointing"),
    **{ONLY + key: _only(key) for key in ONLY_KEYS},
    **stacks.READERS,
}
FIELDS = tuple(_READERS)
"""The fields of a runtime profile."""


@once
def load_runtime_profile(path: Path | str) -> Profile:
    """Read one runtime profile, without the fields of its stack. Raises InputError with every problem of the file."""
    fields = profile.open_profile(Path(path))
    common = profile.read(fields, "runtime", {**_READERS, **stacks.figures_of(fields)})
    own = _REQUIRED if common.stack is not None else (*_REQUIRED, *stacks.REQUIRED)
    stacks.check_required(fields, common, own)
    return common


def list_runtimes(dirs: Sequence[Path] = (), broken: list[Problem] | None = None) -> list[Profile]:
    """Every runtime profile by name, those of other packages last.

    Raises InputError with the problems of all broken files, unless `broken` takes them, or that of a package whose
    engine cannot be imported.
    """
    known = locate.load_all("runtimes", dirs, load_runtime_profile, broken)
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
    """The profile of that name with the fields of its stack, each with its source.

    Raises InputError, with near matches.
    """
    found = locate.find("runtimes", name, dirs, load_runtime_profile)
    if found is None and name in engines.of_packages():
        found = _profile_of(name)
    if found is None:
        raise InputError([locate.unknown("runtimes", name, dirs)._replace(key="runtime")])
    return stacks.with_stack(found, dirs)


def find_runtime(name: str, dirs: Sequence[Path] = ()) -> tuple[Runtime, tuple[Assumption, ...]]:
    """The runtime of that name as a policy, and whether it shadows the shipped one.

    Raises InputError, with near matches.
    """
    found = find_runtime_profile(name, dirs)
    contexts = {one: found.value(CONTEXT + one) for one in GENERATIONS if found.value(CONTEXT + one) is not None}
    runtime = Runtime(
        name=found.name,
        title=found.title or found.name,
        optimizer_implementation=found.value("optimizer_implementation"),
        loss=found.value("loss"),
        gradients=found.value("gradients"),
        context_bytes=found.value("context"),
        context_by_architecture=contexts,
        contexts=_contexts_of(found),
        context_kernels_bytes=found.value("context_kernels") or 0,
        blas_workspace_bytes=found.value("blas_workspace"),
        blas_workspace_by_architecture=_workspaces_of(found),
        process_group_bytes=found.value("process_group"),
        calibrated=found.value("calibrated"),
        calibrated_groups=found.value("calibrated_groups"),
        **{key: found.value(key) for key in stacks.RELEASES if found.value(key) is not None},
        embedding_states=found.value("embedding_states") or "as-others",
        caches=found.value("caching_allocator") is not False,
        engine=engine_name(found),
        quantized_from=found.value("quantized_from"),
        defaults=_given(found, DEFAULTS),
        checkpointing_settings=found.value("checkpointing_settings") or found.value("only_activation_checkpointing"),
        only={key.removeprefix(ONLY): words for key, words in _given(found, _READERS).items() if key.startswith(ONLY)},
        notes={key: field.note for key, field in found.fields.items() if field.note is not None},
    )
    return runtime, locate.shadow_told("runtimes", found, name)


def with_contexts(runtime: Runtime, dirs: Sequence[Path] = ()) -> Runtime:
    """The runtime with the contexts by version of the default stack. Raises InputError where that stack is broken."""
    stack = stacks.find_stack_profile(stacks.DEFAULT, dirs)
    kernels = stack.value("context_kernels") or 0
    return runtime._replace(contexts=_contexts_of(stack), context_kernels_bytes=kernels)


def _contexts_of(found: Profile) -> tuple[ContextFigure, ...]:
    """The contexts of a profile by architecture, version and loading, in its order."""
    figures = ((FIGURE.fullmatch(key), value.value) for key, value in found.fields.items())
    return tuple(ContextFigure(key[1], key[2], key[3], size) for key, size in figures if key is not None and size)


def _workspaces_of(found: Profile) -> dict[str, int | None]:
    """What a profile has of an architecture, or else of its vendor; None: it says that nobody knows."""
    both = {one: (WORKSPACE + one, WORKSPACE + generation.vendor) for one, generation in GENERATIONS.items()}
    known = {one: next((key for key in keys if key in found.fields), None) for one, keys in both.items()}
    return {one: found.value(key) for one, key in known.items() if key is not None}


def _given(found: Profile, keys: dict[str, Read]) -> dict[str, Any]:
    return {key: found.value(key) for key in keys if found.value(key) is not None}
