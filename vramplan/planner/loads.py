"""How the loaders of Transformers bring weights of few bits to a device, by its release."""

from __future__ import annotations

from vramplan.replay.loading import HALF, STORED, Loading
from vramplan.values.job import ResolvedJob

BITSANDBYTES = ("nf4", "nf4-double", "int8")


def by_transformers(job: ResolvedJob, *, stored: bool = False, empties: bool = False) -> Loading | None:
    """That of `from_pretrained`; None where it quantizes nothing.

    `stored`: the checkpoint has few bits. `empties`: free segments go back before the first step.
    """
    if job.quantization not in BITSANDBYTES:
        return None
    runtime = job.runtime
    release = None if job.transformers_version is None else tuple(map(int, job.transformers_version.split(".")))

    def since(first: tuple[int, int]) -> bool:
        return release is None or release >= first

    room = None
    if since(runtime.quantized_room_since):
        room = STORED if since(runtime.counted_bits_since) else HALF
    read_there = since(runtime.read_on_device_since)
    twice = read_there and not since(runtime.quantized_as_read_since)
    tied_again = job.model.tied_embeddings and not since(runtime.tied_once_since)
    return Loading(stored=stored, room=room, twice=twice, twice_8bit=read_there, tied_again=tied_again, empties=empties)
