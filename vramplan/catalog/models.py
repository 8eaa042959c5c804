"""Model profiles: `profiles/models/NAME.yaml` -> `spec.ModelShape`; and what `--model` may be besides a name."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from vramplan.catalog import hf_config, locate, profile, shapes
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile, Read
from vramplan.catalog.reading import once
from vramplan.engines import imported
from vramplan.errors import InputError, Problem
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape


def _reader(kind: str) -> Read:
    return lambda fields, name: hf_config.read_value(fields, name, kind)


_READERS: dict[str, Read] = {name: _reader(kind) for name, kind in shapes.FIELDS.items()}
for _name in (
    "token_types",
    "experts.shared",
    "key_value_sharing_layers",
    "alternating.sparse_layers",
    "waveform.least_masks",
):
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


OF_HUB = ("huggingface.co/", "hf.co/")
"""What the address of a page of the hub has in it."""


@once
def load_model_profile(path: Path | str) -> ModelProfile:
    """Read one model profile. Raises InputError with every problem of the file."""
    return _profile(profile.open_profile(Path(path)))


@once
def load_model_shape(path: Path | str) -> ModelShape:
    """The shape of a model profile. Raises InputError with every problem of the file."""
    return load_model_profile(path).shape()


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

    A name of the Hugging Face hub that is no alias is looked up in the local cache; one without its organisation is
    taken for the shape that it says. With the shape, the sizes that were
    left to the configuration class. The address of a page of the hub is its repository. Raises InputError.
    """
    if any(address in name for address in OF_HUB):
        name = imported("vramplan.catalog.hub:of_address")(name)
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
        of_checkpoint = imported("vramplan.catalog.checkpoints:shape_of_checkpoint")
        found: tuple[ModelShape, tuple[Assumption, ...]] = of_checkpoint(name, error, dirs)
        return found
    return loaded.shape(), (*locate.shadow_told("models", loaded, name), *loaded.assumptions())


def list_models(
    dirs: Sequence[Path] = (), broken: list[Problem] | None = None, having: Collection[str] = ()
) -> list[ModelProfile]:
    """Every model profile by name. Raises InputError with the problems of broken files, unless `broken` takes them.

    `having`: texts that the file of a profile has somewhere; one without them is left out unparsed.
    """
    return locate.load_all("models", dirs, load_model_profile, broken, having)


def sizes_taken(values: dict[str, Any], shape: ModelShape) -> tuple[Assumption, ...]:
    """The assumptions for sizes that `values` left to the configuration class."""
    config = MODEL_TYPES[shape.transformers_model_type].config
    return tuple(
        Assumption(f"model.{key}", value, f"the default of {config}")
        for key, value in shapes.defaulted_sizes(values, shape).items()
    )


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
