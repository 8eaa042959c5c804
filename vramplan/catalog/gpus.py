"""The GPUs of the catalogue: by name, by file, all of them, and the card of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vramplan.catalog import locate
from vramplan.catalog.gpu_profile import FIELDS as FIELDS
from vramplan.catalog.gpu_profile import GpuProfile as GpuProfile
from vramplan.catalog.gpu_profile import asks_for_local
from vramplan.catalog.gpu_profile import load_gpu_profile as load_gpu_profile
from vramplan.errors import InputError, Problem


def find_gpu(name: str, dirs: Sequence[Path] = (), *, base_dir: Path | None = None) -> GpuProfile:
    """The GPU profile with that name or alias, or at that path; `local` is the card of this machine.

    Raises InputError, with near matches.
    """
    if asks_for_local(name):
        return _local(name, dirs)
    if locate.is_path(name):
        return load_gpu_profile(locate.resolve_path(name, base_dir))
    found = _find(name, dirs)
    if found is None:
        raise InputError([locate.unknown("gpus", name, dirs)._replace(key="gpu")])
    return found


def match_gpu(name: str, dirs: Sequence[Path] = ()) -> GpuProfile | None:
    """The GPU profile with that name or alias, or the local card; None if `name` is only a label.

    Raises InputError if the profile is broken.
    """
    if asks_for_local(name):
        return _local(name, dirs)
    return _find(name, dirs)


def list_gpus(dirs: Sequence[Path] = (), broken: list[Problem] | None = None) -> list[GpuProfile]:
    """Every GPU profile by name. Raises InputError with the problems of broken files, unless `broken` takes them."""
    return locate.load_all("gpus", dirs, load_gpu_profile, broken)


# what people write around the name of a GPU: who makes or rents it in front, `GPU` or `VRAM` behind
_MAKERS = "nvidia|amd|geforce|tesla|instinct"
_CLOUDS = (
    r"(?:google[\s-]?)?colab(?:[\s-]?(?:pro\+?|plus|free))?|kaggle|runpod(?:\.?io)?|vast(?:\.?ai)?"
    r"|lambda(?:[\s-]?labs)?|paperspace|modal|coreweave|crusoe"
    r"|nebius|together(?:\.?ai)?|hyperstack|tensordock|jarvislabs|lightning(?:\.?ai)?|sagemaker|vertex(?:-?ai)?"
    r"|google[\s-]?cloud|gcp|gce|aws|ec2|azure|oci|oracle|scaleway|ovh(?:cloud)?|databricks"
)
_BEFORE = re.compile(rf"\s*(?:{_MAKERS}|{_CLOUDS})[\s_:-]+(?=\S)", re.IGNORECASE)
_SEVERAL = re.compile(r"(?<=[\dgti])(?:'s|s|\u2019s)$", re.IGNORECASE)  # `3090s`: no name ends so but the V100S
_BEHIND = re.compile(r"(?<=\S)[\s_-]+(?:gpus?|cards?|(?:of\s+)?v?ram|(?:gpu\s+)?memory)\s*$", re.IGNORECASE)


def names_in(text: str) -> Iterator[str]:
    """The text, and what is left of it each time that a word around the name is taken away."""
    rest = text
    yield rest
    while (found := _BEFORE.match(rest) or _BEHIND.search(rest)) is not None:
        rest = rest[: found.start()] + rest[found.end() :]
        yield rest
    if _SEVERAL.search(rest) is not None:
        yield _SEVERAL.sub("", rest)


# the size of a card behind its name, or inside it as in `H100 80GB PCIe`
_SIZE = re.compile(r"(?<=\S)[\s_-]+\(?(\d+)\s?(gi?b|g)\)?(?=[\s_-]|$)", re.IGNORECASE)


def _find(name: str, dirs: Sequence[Path]) -> GpuProfile | None:
    """The profile of a name or an alias, also without the words around it: `NVIDIA GeForce RTX 4090`, `RunPod A40`."""
    found, rest = None, name
    for rest in names_in(name):
        found = locate.find("gpus", rest, dirs, load_gpu_profile)
        if found is not None:
            break
    size = _SIZE.search(rest) if found is None else None
    if size is None:
        return found
    bare = rest[: size.start()] + rest[size.end() :]
    found = _of_its_size(bare, int(size[1]), dirs)
    return found or locate.find("gpus", f"{bare} {size[1]}GB", dirs, load_gpu_profile)


def _of_its_size(name: str, size: int, dirs: Sequence[Path]) -> GpuProfile | None:
    """The profile of a name that its own size stands behind, as in `RTX 3060 12GB`; None for another size."""
    found = locate.find("gpus", name, dirs, load_gpu_profile)
    memory = None if found is None else found.value("memory") or found.value("visible_memory")
    return found if memory is not None and memory in (size << 30, size * 10**9) else None


def _local(name: str, dirs: Sequence[Path]) -> GpuProfile:
    from vramplan.catalog import local_profile  # only who asks for a local card pays for it

    return local_profile.load(name, dirs)
