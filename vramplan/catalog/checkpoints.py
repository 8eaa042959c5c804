"""The shape of a checkpoint that no profile is called by: a repository of the Hugging Face hub, or its name alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import hf_config, hub, mirrors, model_names, scope, written
from vramplan.catalog.models import ModelProfile, find_model_profile
from vramplan.errors import InputError
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

Found = tuple[ModelShape, tuple[Assumption, ...]]

OF_NAME = "the shape that the name says; its config.json was not looked at"
OF_OLLAMA = "{}, as Ollama writes its name"
OF_GGUF = "; Ollama's weights of {} are for serving, and those that it was made of count"
_WRITTEN = re.compile(r"[-_]((it[-_])?qat|i?q\d(_\w+)?|fp16|bf16|mxfp4)$", re.IGNORECASE)
"""How Ollama says at the end of a name what its weights were rounded to: registry.ollama.ai/library/llama3.1/tags."""
A_TENTH = 0.1
MOST_NEAR = 4  # models that a tag may mean, in a hint


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
    """That of the same name with a dash in the place of the colon, where it is known.

    A tag may say less than a name: `deepseek-r1:14b` is the one model that begins and ends so.
    """
    plain = _WRITTEN.sub("", name)
    with_dash = plain.replace(":", "-")
    of_weights = OF_GGUF.format(name[len(plain) + 1 :]) if plain != name else ""
    try:
        loaded = find_model_profile(with_dash, dirs)
    except InputError as error:
        if error.problems[0].file is not None:
            raise unknown from None
        found = _named(with_dash, dirs)
        if found is not None:
            shape, (told, *rest) = found
            return shape, (told._replace(why=told.why + of_weights), *rest)
        family, _, tag = plain.partition(":")
        loaded = _of_that_size(family, tag, dirs) or _between(family, tag, unknown, dirs)
    told = Assumption("model", loaded.name, OF_OLLAMA.format(name) + of_weights)
    return loaded.shape(), (told, *loaded.assumptions())


def _of_that_size(family: str, tag: str, dirs: Sequence[Path]) -> ModelProfile | None:
    """The model of that name where a tag is its size, as in `phi4:14b`: the parameters agree but for a tenth."""
    try:
        loaded = find_model_profile(family, dirs)
    except InputError:
        return None
    size, field = re.fullmatch(r"(\d+(?:\.\d+)?)b", tag.lower()), loaded.fields.get("parameters")
    if size is None or field is None or field.value is None:
        return None
    return loaded if abs(field.value / (float(size[1]) * 1e9) - 1) < A_TENTH else None


def _between(family: str, tag: str, unknown: InputError, dirs: Sequence[Path]) -> ModelProfile:
    """The only model that a family and a tag can mean. Raises InputError where there is none, or several."""
    meant = model_names.with_words_between(family, tag, dirs)
    if len(set(meant.values())) == 1 and any(not re.search(r"\d", between) for between in meant):
        return find_model_profile(next(iter(meant.values())), dirs)
    near = sorted(set(meant.values()))
    if 0 < len(near) <= MOST_NEAR:
        raise InputError([unknown.problems[0]._replace(hint=f"did you mean {' or '.join(near)}?")]) from None
    raise unknown from None


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
    why = OF_NAME if mirror is None else f"the shape of {name} (source: {mirror.source})"
    if weights is not None and weights.quantization is None:
        why += f"; {weights.why}"
    of_weights = () if weights is None else weights.told()
    return loaded.shape(), (Assumption("model", loaded.name, why), *of_weights, *loaded.assumptions())
