"""Model profiles: `profiles/models/NAME.yaml` -> `spec.ModelShape`; and what `--model` may be besides a name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.catalog import hf_config, locate, profile, shapes
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile, Read
from vramplan.catalog.reading import once
from vramplan.errors import InputError, Problem
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape


def _reader(kind: str) -> Read:
    return lambda fields, name: hf_config.read_value(fields, name, kind)


_READERS: dict[str, Read] = {name: _reader(kind) for name, kind in shapes.FIELDS.items()}
for _name in ("token_types", "experts.shared", "key_value_sharing_layers"):
    _READERS[_name] = lambda fields, name: fields.integer(name, minimum=0)

FIELDS = tuple(_READERS)
"""The fields of a model profile."""


class ModelProfile(Profile):
    """One model with the source of every value."""

    __slots__ = ()

    def shape(self) -> ModelShape:
        """The architecture; fields that are absent have the default of the configuration class. Raises InputError."""
        return shapes.shape_from_fields(self._values(), name=self.name)

    def assumptions(self) -> tuple[Assumption, ...]:
        """The sizes that the profile leaves to the configuration class."""
        return sizes_taken(self._values(), self.shape())

    def _values(self) -> dict[str, Any]:
        values = {name: field.value for name, field in self.fields.items()}
        # a profile that says nothing about a window or inputs for each layer has none to warn of
        return {"sliding_window": None, "layer_input_size": None, **values}


@once
def load_model_profile(path: Path | str) -> ModelProfile:
    """Read one model profile. Raises InputError with every problem of the file."""
    return _profile(profile.open_profile(Path(path)))


def find_model_profile(name: str, dirs: Sequence[Path] = (), *, base_dir: Path | None = None) -> ModelProfile:
    """The model profile with that name or alias, or at that path. Raises InputError, with near matches."""
    if locate.is_path(name):
        return load_model_profile(locate.resolve_path(name, base_dir))
    found = locate.find("models", name, dirs, load_model_profile)
    if found is None:
        raise InputError([locate.unknown("models", name, dirs)._replace(key="model")])
    return found


def find_model(
    name: str, dirs: Sequence[Path] = (), *, base_dir: Path | None = None
) -> tuple[ModelShape, tuple[Assumption, ...]]:
    """The shape behind a name, an alias, or the path of a profile or a Hugging Face `config.json` or its folder.

    A name of the Hugging Face hub that is no alias is looked up in the local cache. With the shape, the sizes that were
    left to the configuration class. Raises InputError.
    """
    if locate.is_path(name):
        path = locate.resolve_path(name, base_dir)
        if os.path.isdir(path):
            return hf_config.read_hf_config(path)
        fields = hf_config.open_config(path)
        if fields.present("model_type") and not fields.present("kind"):
            return hf_config.shape_of_config(fields, default_name=hf_config.name_of(path))
        loaded = _profile(fields)
        return loaded.shape(), loaded.assumptions()
    try:
        loaded = find_model_profile(name, dirs)
    except InputError as error:
        if "/" not in name:
            raise
        return _cached(name, error, dirs)
    return loaded.shape(), (*locate.shadow_told("models", loaded, name), *loaded.assumptions())


def list_models(dirs: Sequence[Path] = (), broken: list[Problem] | None = None) -> list[ModelProfile]:
    """Every model profile by name. Raises InputError with the problems of broken files, unless `broken` takes them."""
    return locate.load_all("models", dirs, load_model_profile, broken)


def sizes_taken(values: dict[str, Any], shape: ModelShape) -> tuple[Assumption, ...]:
    """The assumptions for sizes that `values` left to the configuration class."""
    config = MODEL_TYPES[shape.transformers_model_type].config
    return tuple(
        Assumption(f"model.{key}", value, f"the default of {config}")
        for key, value in shapes.defaulted_sizes(values, shape).items()
    )


def _cached(name: str, unknown: InputError, dirs: Sequence[Path]) -> tuple[ModelShape, tuple[Assumption, ...]]:
    """The shape of a repository in the local Hugging Face cache, of which it is a copy, or which its name says.

    Which of the three it is, is told. `unknown` is raised where the name cannot be one of a repository.
    """
    # only names with a slash that no profile has pay for these
    from vramplan.catalog import hub, mirrors, model_names, scope, written

    if unknown.problems[0].file is not None or not hub.is_repository(name):
        raise unknown
    hint = unknown.problems[0].hint or ""
    try:
        path, commit = hub.cached_config(name, hint if hint.startswith("did you mean") else None)
    except InputError:
        mirror = mirrors.mirror_of(name, dirs)
        named = model_names.profile_by(name, dirs) if mirror is None else mirror.model
        why = "the shape that the name says; its config.json was not looked at"
        if mirror is not None:
            why = f"the shape of {name}: {mirror.source}"
        if named is not None:
            loaded, weights = find_model_profile(named, dirs), written.by_name(name)
            if weights is not None and weights.quantization is None:
                why += f"; {weights.why}"
            of_weights = () if weights is None else weights.told()
            return loaded.shape(), (Assumption("model", loaded.name, why), *of_weights, *loaded.assumptions())
        if scope.out_of("models", name) is None:
            raise
        raise unknown from None
    shape, taken = hf_config.read_hf_config(path)
    repository = name.partition("@")[0]
    told = Assumption("model", repository, f"config.json of revision {commit[:12]} in the local Hugging Face cache")
    return shape._replace(name=repository.rpartition("/")[2]), (told, *taken)


def _profile(fields: Fields) -> ModelProfile:
    common = profile.read(fields, "model", _READERS)
    loaded = ModelProfile(*common)
    if not fields.sink.problems:
        try:
            loaded.shape()
        except InputError as error:
            table = fields.fields("fields")
            assert table is not None
            for problem in error.problems:
                table.refuse(problem.key, problem.message, hint=problem.hint)
    fields.sink.raise_all()
    return loaded
