"""The GPU and the model that a job names: profiles, each read once, and GPUs that the job describes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vramplan.catalog import gpus, locate, models, runtimes
from vramplan.catalog.fields import Fields, shown
from vramplan.errors import InputError
from vramplan.job import vocabulary as words
from vramplan.spec import Assumption, Gpu, ModelShape, Runtime
from vramplan.units import parse_bandwidth_bytes_per_s

T = TypeVar("T")

_ATTRIBUTES = {"memory_bandwidth": "memory_bandwidth_bytes_per_s"}  # where Gpu has another name for the key


class Catalog:
    """The profiles of one run, each read once: a file of 300 jobs names a dozen. InputError for no such folder."""

    def __init__(self, dirs: Sequence[Path] = (), base_dir: Path | None = None) -> None:
        self.dirs, self.base_dir = locate.check_profile_dirs(dirs), base_dir
        self._models: dict[str, tuple[ModelShape, tuple[Assumption, ...]] | InputError] = {}
        self._gpus: dict[str, Gpu | InputError] = {}
        self._runtimes: dict[str, Runtime | InputError] = {}
        self._labels: dict[str, Gpu | InputError | None] = {}

    def model(self, name: str) -> tuple[ModelShape, tuple[Assumption, ...]]:
        """`models.find_model`."""
        return self._once(self._models, name, lambda: models.find_model(name, self.dirs, base_dir=self.base_dir))

    def gpu(self, name: str) -> Gpu:
        """`gpus.find_gpu`, as a `spec.Gpu`."""
        return self._once(self._gpus, name, lambda: gpus.find_gpu(name, self.dirs, base_dir=self.base_dir).gpu())

    def runtime(self, name: str) -> Runtime:
        """`runtimes.find_runtime`."""
        return self._once(self._runtimes, name, lambda: runtimes.find_runtime(name, self.dirs))

    def label(self, name: str) -> Gpu | None:
        """`gpus.match_gpu`, as a `spec.Gpu`."""

        def match() -> Gpu | None:
            found = gpus.match_gpu(name, self.dirs)
            return None if found is None else found.gpu()

        return self._once(self._labels, name, match)

    @staticmethod
    def _once(cache: dict[str, T | InputError], name: str, load: Callable[[], T]) -> T:
        if name not in cache:
            try:
                cache[name] = load()
            except InputError as error:
                cache[name] = error
        result = cache[name]
        if isinstance(result, InputError):
            raise result
        return result


def gpu_from_mapping(fields: Fields, catalog: Catalog) -> Gpu | None:
    """`{name, memory}`: the profile of that name with another capacity, or a label of which nothing else is known.

    The further keys are those that a resolved job is echoed with; a key that is there, be it as null, wins over the
    profile. None when something is wrong, which is noted; InputError when the profile is broken.
    """
    fields.reject_unknown(words.GPU_KEYS)
    name = fields.text("name")
    memory = fields.size_bytes("memory", rounding="down")
    bandwidth = fields.parsed("memory_bandwidth", parse_bandwidth_bytes_per_s)
    explicit: dict[str, Any] = {
        "title": fields.text("title"),
        "architecture": fields.text("architecture"),
        "compute_capability": fields.text("compute_capability"),
        "bf16": fields.boolean("bf16"),
        "flash_attention": fields.boolean("flash_attention"),
        "memory_bandwidth": bandwidth,
        "note": fields.prose("note"),
    }
    basis = fields.word("capacity_basis", words.CAPACITY_BASES)
    profile = catalog.label(name) if name is not None else None
    if memory is None and not fields.given("memory") and profile is None:
        hint = 'memory: "32 GiB"' if name is None else f"no profile is called {shown(name)}, so give its memory"
        fields.problem("memory", "required key is missing", hint=hint)
    if memory is None and profile is None:
        return None
    known: dict[str, Any] = dict.fromkeys(explicit)
    if profile is not None:
        known = {key: getattr(profile, _ATTRIBUTES.get(key, key)) for key in explicit}
    values = {key: explicit[key] if fields.present(key) else known[key] for key in explicit}
    if memory is None:
        assert profile is not None
        memory, basis = profile.capacity_bytes, basis or profile.capacity_basis
    return Gpu(
        name=profile.name if profile is not None else name or "GPU",
        capacity_bytes=memory,
        capacity_basis=basis or "given",
        title=values["title"],
        architecture=values["architecture"],
        compute_capability=values["compute_capability"],
        bf16=values["bf16"],
        flash_attention=values["flash_attention"],
        memory_bandwidth_bytes_per_s=values["memory_bandwidth"],
        note=values["note"],
    )
