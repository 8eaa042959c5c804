"""Releases of bitsandbytes: which are known, and where they differ.

Source: bitsandbytes 0.41.1, 0.42.0, 0.43.0, 0.43.2, 0.49.2, 0.50.0 and 0.50.2, autograd/_functions.py, MatMul4Bit and
MatMul8bitLt; nn/modules.py, Params4bit.cuda; its release notes of 0.43.2 ("QLoRA bug fix") and pull request 1270; of
these, 0.44.1, 0.45.5, 0.46.0 and 0.48.0 functional.py, quantize_blockwise.
"""

from __future__ import annotations

import re

OLDEST, NEWEST = "0.41.1", "0.50.2"  # of those that were read; a job that says nothing has the newest
FP16_UNTIL = (0, 43, 0)  # before it weights were brought to fp16 to be quantized, whatever the model has
INPUTS_DROPPED_SINCE = (0, 43, 2)  # before it 4-bit products kept their input, which no gradient needs
CODES_COPIED_SINCE = (0, 46, 0)  # before it the code of double quantization was one tensor for all layers
EIGHT_BITS_SINCE = (0, 49, 2)  # the oldest that was read whose 8-bit product is that of the newest
AT_ONCE_SINCE = (0, 50, 0)  # before it a working copy had the dtype that was quantized, and was then cast

_RELEASE = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}", re.ASCII)


def release(version: str) -> tuple[int, ...]:
    """`0.43.2` as numbers that can be compared."""
    return tuple(int(part) for part in version.split("."))


def written(number: tuple[int, ...]) -> str:
    """The reverse of `release`."""
    return ".".join(map(str, number))


def is_release(text: str) -> bool:
    """Whether a text is three numbers."""
    return _RELEASE.fullmatch(text) is not None


def is_known(text: str) -> bool:
    """Whether a release lies between those that were read."""
    return release(OLDEST) <= release(text) <= release(NEWEST)
