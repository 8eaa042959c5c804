"""What the catalogue knows of the models that files name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import log
from typing import Any

from vramplan.catalog import model_names, models
from vramplan.catalog.mirrors import mirror_of
from vramplan.errors import InputError
from vramplan.job.trained.adapter_targets import layers_of
from vramplan.replay.techniques.trained import names_of
from vramplan.values.model import ModelShape


class Catalogue:
    """What readers ask of the catalogue of models."""

    def __init__(self, folders: Sequence[Any] = ()) -> None:
        self.folders = folders
        self._names: dict[str, str] | None = None

    def aliases_of(self, name: str) -> tuple[str, ...]:
        """The other names of a profile, none where there is no profile of that name."""
        try:
            return tuple(models.find_model_profile(name, self.folders).aliases)
        except InputError:
            return ()

    def names(self) -> dict[str, str]:
        """`model_names.profiles_by_name`, looked up once."""
        if self._names is None:
            self._names = model_names.profiles_by_name(self.folders)
        return self._names

    def has(self, name: str) -> bool:
        """Whether a name or an alias is the catalogue's."""
        return name.lower() in self.names()

    def cached(self, name: str) -> bool:
        """Whether its config.json is in the cache of the Hugging Face hub."""
        try:
            models.find_model(name, self.folders)
        except InputError:
            return False
        return True

    def name_of(self, name: str) -> str | None:
        """The name of the profile with the shape of a checkpoint."""
        return model_names.shape_of(name, self._known)

    def begun_from(self, name: str) -> str | None:
        """The profile of the base that a name may begin with."""
        return model_names.begun_from(name, self.folders)

    def _known(self, text: str) -> str | None:
        """The name of the profile with a name, an alias or a copy on the Hugging Face hub."""
        found = self.names().get(text.lower())
        mirror = mirror_of(text, self.folders) if found is None and "/" in text else None
        return found if mirror is None else mirror.model

    def shape(self, name: str) -> ModelShape | None:
        """The shape of a profile."""
        found = self.name_of(name)
        if found is None:
            return None
        try:
            return models.find_model(found, self.folders)[0]
        except InputError:
            return None

    def layers_of(self, name: str) -> int | None:
        """The blocks of a model."""
        shape = self.shape(name)
        return None if shape is None else shape.layers

    def linears_of(self, name: str) -> list[str] | None:
        """The linear layers of a model with tensors of experts beside them, without its head; None for any other."""
        shape = self.shape(name)
        if shape is None or shape.experts is None:
            return None
        return [name for name in layers_of(shape, names_of(shape)) if name != "lm_head"]

    def nearest_to(self, model: Any) -> list[str]:
        """The models with the most similar sizes, those of the same task first; none where the sizes are not known.

        `model`: a name, or a mapping of the keys of a model.
        """
        shape = self.shape(model) if isinstance(model, str) else None
        sizes = model if isinstance(model, Mapping) else {} if shape is None else shape._asdict()
        if not sizes:
            return []
        found: list[tuple[bool, float, str]] = []
        for profile in models.list_models(self.folders, []):
            with suppress(InputError):
                other = models.load_model_shape(profile.file)
                if other.name != sizes.get("name"):
                    found.append((other.task != sizes.get("task", "lm"), _distance(sizes, other), profile.name))
        return [name for *_, name in sorted(found)]

    def of_families(self, families: Collection[str]) -> list[str]:
        """The models of some families."""
        found = []
        for profile in models.list_models(self.folders, []):
            with suppress(InputError):
                if models.load_model_shape(profile.file).family in families:
                    found.append(profile.name)
        return found

    def shape_named(self, sizes: Mapping[str, Any]) -> str | None:
        """The name of a model of these sizes: one of texts, with as many positions, then the shortest name."""
        best: tuple[Any, ...] | None = None
        numbers = [str(sizes[size]) for size in ("hidden_size", "layers") if sizes.get(size)]  # which files write out
        for profile in models.list_models(self.folders, [], numbers):
            try:
                shape = models.load_model_shape(profile.file)
            except InputError:
                continue
            if not _alike(shape, sizes):
                continue
            other = shape.max_positions != sizes.get("max_positions")
            key = (
                bool(getattr(shape, "takes_images", False)) and "takes_images" not in sizes,
                other,
                "multilingual" in profile.name,
                "uncased" not in profile.name,
                len(profile.name),
                profile.name,
            )
            best = key if best is None or key < best else best
        return None if best is None else str(best[-1])


SIZES = ("layers", "hidden_size", "attention_heads", "key_value_heads", "intermediate_size", "vocabulary_size")


def _distance(sizes: Mapping[str, Any], other: ModelShape) -> float:
    """How far two models are apart: the sum over their sizes of how many times one is the other, in powers of e."""
    pairs = ((sizes.get(size), getattr(other, size)) for size in SIZES)
    return sum(abs(log(a / b)) if a and b else float(bool(a) != bool(b)) for a, b in pairs)


SLACK = 2048  # tokens that a program may pad the vocabulary by


def _alike(shape: ModelShape, sizes: Mapping[str, Any]) -> bool:
    exact = (
        "takes_images",
        "family",
        "layers",
        "hidden_size",
        "attention_heads",
        "intermediate_size",
        "key_value_heads",
        "head_size",
        "tied_embeddings",
        "gated_mlp",
        "qkv_bias",
    )
    if any(name in sizes and getattr(shape, name, None) != sizes[name] for name in exact):
        return False
    vocabulary = sizes.get("vocabulary_size")
    return vocabulary is None or abs(shape.vocabulary_size - vocabulary) <= SLACK
