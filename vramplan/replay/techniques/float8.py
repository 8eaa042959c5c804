"""Which GPUs multiply in fp8."""

from __future__ import annotations

from vramplan.values.machine import Gpu

SINCE = (8, 9)  # compute capability (pytorch/ao, torchao/float8/README.md)
WITHOUT = ("pascal", "volta", "turing", "ampere", "cdna1", "cdna2", "rdna2", "rdna3")
WITH = ("ada", "hopper", "blackwell", "cdna3", "cdna4")


def runs_float8(gpu: Gpu) -> bool | None:
    """Whether a GPU multiplies in fp8, by its compute capability or else its architecture; None: nobody knows."""
    major, _, minor = (gpu.compute_capability or "").partition(".")
    if major.isdigit() and minor.isdigit():
        return (int(major), int(minor)) >= SINCE
    if gpu.architecture in WITH:
        return True
    return False if gpu.architecture in WITHOUT else None
