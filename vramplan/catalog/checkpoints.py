"""The shape of a checkpoint that no profile is called by: a repository of the Hugging Face hub, or its name alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import hf_config, hub, mirrors, model_names, scope, written
from vramplan.catalog.models import find_model_profile
from vramplan.errors import InputError
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

Found = tuple[ModelShape, tuple[Assumption, ...]]

OF_NAME = "the shape that the name says; its config.json was not looked at"
OF_OLLAMA = "{}, as Ollama writes its name"


def shape_of_checkpoint(name: str, unknown: InputError, dirs: Sequence[Path]) -> Found:
    """The shape, and what it was taken from. `unknown`, that no profile has the name, is raised where nothing has it.

    A name without its organisation, as `Llama-3.1-8B-Instruct`, is taken for what it says, and a colon in it, as in
    Ollama's `qwen3:8b`, for a dash.
    """
    if unknown.problems[0].file is not None:
        raise unknown
    if ":" in name and "/" not in name:
        return _with_a_colon(name, unknown, dirs)
    if "/" in name:
        return _of_repository(name, unknown, dirs)
    found = None if scope.out_of("models", name) is not None else _named(name, dirs)
    if found is None:
        raise unknown
    return found


def _with_a_colon(name: str, unknown: InputError, dirs: Sequence[Path]) -> Found:
    """That of the same name with a dash in the place of the colon, where it is known."""
    with_dash = name.replace(":", "-")
    try:
        loaded = find_model_profile(with_dash, dirs)
    except InputError as error:
        found = None if error.problems[0].file is not None else _named(with_dash, dirs)
        if found is None:
            raise unknown from None
        return found
    return loaded.shape(), (Assumption("model", loaded.name, OF_OLLAMA.format(name)), *loaded.assumptions())


def _of_repository(name: str, unknown: InputError, dirs: Sequence[Path]) -> Found:
    """That of the local cache of the hub, of what it is a copy of, or of what its name says."""
    if not hub.is_repository(name):
        raise unknown
    hint = unknown.problems[0].hint or ""
    near = hint if hint.startswith("did you mean") else "vramplan models lists what is modelled"
    try:
        path, commit = hub.cached_config(name, near)
    except InputError:
        found = _named(name, dirs)
        if found is not None:
            return found
        if scope.out_of("models", name) is None:
            raise
        raise unknown from None
    shape, taken = hf_config.read_hf_config(path)
    repository = name.partition("@")[0]
    told = Assumption("model", repository, f"config.json of revision {commit[:12]} in the local Hugging Face cache")
    return shape._replace(name=repository.rpartition("/")[2]), (told, *taken)


def _named(name: str, dirs: Sequence[Path]) -> Found | None:
    """The shape that a checkpoint is known to have, or that its name says, and of which kind its weights are."""
    mirror = mirrors.mirror_of(name, dirs) if "/" in name else mirrors.mirror_without_owner(name, dirs)
    named = model_names.profile_by(name, dirs) if mirror is None else mirror.model
    if named is None:
        return None
    loaded, weights = find_model_profile(named, dirs), written.by_name(name)
    why = OF_NAME if mirror is None else f"the shape of {name}: {mirror.source}"
    if weights is not None and weights.quantization is None:
        why += f"; {weights.why}"
    of_weights = () if weights is None else weights.told()
    return loaded.shape(), (Assumption("model", loaded.name, why), *of_weights, *loaded.assumptions())
