"""The GPU and the model that a job names: profiles, each read once, and GPUs that the job describes itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vramplan.catalog import gpus, locate, models, runtimes
from vramplan.catalog.fields import Fields, shown
from vramplan.catalog.gpu_profile import GpuProfile
from vramplan.engines import imported
from vramplan.errors import InputError
from vramplan.options import words
from vramplan.units import parse_bandwidth_bytes_per_s, parse_power_watts, parse_throughput_flop_per_s
from vramplan.values.job import Assumption, ResolvedJob
from vramplan.values.machine import Gpu, LinkShares, Runtime
from vramplan.values.model import ModelShape

T = TypeVar("T")
Told = tuple[Assumption, ...]

_ATTRIBUTES = {  # where Gpu has another name for the key
    "memory_bandwidth": "memory_bandwidth_bytes_per_s",
    "fp32": "fp32_flop_per_s",
    "fp16": "fp16_flop_per_s",
    "bf16_rate": "bf16_flop_per_s",
    "fp8_rate": "fp8_flop_per_s",
    "link_bandwidth": "link_bytes_per_s",
    "tdp": "tdp_watts",
}
_MEASURED = (
    "multiprocessors",
    "link_peers",
    "link_domain",
    "product_flop_per_s",
    "attention_flop_per_s",
)  # which a job does not say: of its GPU
_RATES = ("fp32", "fp16", "bf16_rate", "fp8_rate")


OF_TEXTS = re.compile(r"(^|[/_-])(bge|e5|gte|colbert\w*|\w*embed\w*|rerank\w*)(?=[_.-]|$)")
"""What the name of an embedding model or of a reranker has."""


class Catalog:
    """The profiles of one run, each read once: a file of 300 jobs names a dozen. InputError for no such folder."""

    def __init__(self, dirs: Sequence[Path] = (), base_dir: Path | None = None) -> None:
        self.dirs, self.base_dir = locate.check_profile_dirs(dirs), base_dir
        self._models: dict[str, tuple[ModelShape, Told] | InputError] = {}
        self._gpus: dict[str, tuple[Gpu, Told] | InputError] = {}
        self._runtimes: dict[str, tuple[Runtime, Told] | InputError] = {}
        self._others: tuple[str, ...] | None = None
        self._labels: dict[str, tuple[Gpu | None, Told] | InputError] = {}
        self.platforms: dict[tuple[str, bool], tuple[float | None, float | None, LinkShares | None]] = {}

    @classmethod
    def of(cls, job: ResolvedJob) -> Catalog:
        """A catalog that has the runtime and the GPU of a resolved job by their names, wherever they were found."""
        catalog = cls()
        catalog._runtimes[job.runtime.name] = job.runtime, ()
        catalog._labels[job.gpu.name] = job.gpu, ()
        catalog._others = (*catalog.other_runtimes(), job.runtime.name)
        return catalog

    def model(self, name: str) -> tuple[ModelShape, Told]:
        """`models.find_model`, and what is to be told of where it was found."""
        return self._once(self._models, name, lambda: models.find_model(name, self.dirs, base_dir=self.base_dir))

    def is_of_texts(self, name: str, told: Told) -> bool:
        """Whether a name is that of an embedding model or a reranker, by its words or by what was `told` of it."""
        if OF_TEXTS.search(name.lower()):
            return True
        is_copy = any(one.key == "model" for one in told)
        return is_copy and bool(imported("vramplan.catalog.mirrors:is_of_texts")(name, self.dirs))

    def models_of_size(self, count: str) -> str | None:
        """Names of models with so many parameters, as in `7b`; None where there is none."""
        named: str | None = imported("vramplan.catalog.unfound:of_size")(count, self.dirs)
        return named

    def gpu(self, name: str) -> tuple[Gpu, Told]:
        """`gpus.find_gpu` as a `spec.Gpu`, and what is to be told of where it was found."""

        def find() -> tuple[Gpu, Told]:
            found = gpus.find_gpu(name, self.dirs, base_dir=self.base_dir)
            return found.gpu(), _told_of_gpu(found, name)

        return self._once(self._gpus, name, find)

    def runtime(self, name: str) -> tuple[Runtime, Told]:
        """`runtimes.find_runtime`, and what is to be told of where it was found."""
        return self._once(self._runtimes, name, lambda: runtimes.find_runtime(name, self.dirs))

    def with_contexts(self, runtime: Runtime) -> Runtime:
        """The runtime with the contexts by version of the stack `pytorch`, where neither it nor its stack has any."""
        return runtime if runtime.contexts else runtimes.with_contexts(runtime, self.dirs)

    def other_runtimes(self) -> tuple[str, ...]:
        """The runtimes of the user's folders and of other packages, beside those that come with vramplan."""
        if self._others is None:
            known = runtimes.names_of_runtimes(self.dirs)
            self._others = tuple(name for name in known if locate.shipped_file("runtimes", name) is None)
        return self._others

    def label(self, name: str) -> tuple[Gpu | None, Told]:
        """`gpus.match_gpu` as a `spec.Gpu`, and what is to be told of where it was found."""

        def match() -> tuple[Gpu | None, Told]:
            found = gpus.match_gpu(name, self.dirs)
            return (None, ()) if found is None else (found.gpu(), _told_of_gpu(found, name))

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


def _told_of_gpu(profile: GpuProfile, asked: str) -> Told:
    return (*locate.shadow_told("gpus", profile, asked), *profile.assumptions())


def gpu_from_mapping(fields: Fields, catalog: Catalog) -> tuple[Gpu, Told] | None:
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
        **{key: fields.parsed(key, parse_throughput_flop_per_s) for key in _RATES},
        "link_bandwidth": fields.parsed("link_bandwidth", parse_bandwidth_bytes_per_s),
        "tdp": fields.parsed("tdp", parse_power_watts),
    }
    basis = fields.word("capacity_basis", words.CAPACITY_BASES)
    profile, told = catalog.label(name) if name is not None else (None, ())
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
    else:
        told = tuple(one for one in told if one.key != "gpu.memory")
    if all(fields.present(key) for key in explicit):
        told = ()  # nothing of the profile is left: a resolved job that was fed back in
    of_another = any(values[key] != known[key] for key in ("architecture", "memory_bandwidth", *_RATES))
    measured = {} if profile is None or of_another else {key: getattr(profile, key) for key in _MEASURED}
    gpu = Gpu(
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
        **{_ATTRIBUTES[key]: values[key] for key in (*_RATES, "link_bandwidth", "tdp")},
        **measured,
    )
    return gpu, told
