"""What people write around the name of a GPU: who makes or rents it in front, `GPU` or `VRAM` behind."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MAKERS = "nvidia|amd|geforce|tesla|instinct"
_CLOUDS = (
    r"(?:google[\s-]?)?colab(?:[\s-]?(?:pro\+?|plus|free))?|kaggle|runpod(?:\.?io)?|vast(?:\.?ai)?|lambda(?:[\s-]?labs)?|paperspace|modal|coreweave|crusoe"
    r"|nebius|together(?:\.?ai)?|hyperstack|tensordock|jarvislabs|lightning(?:\.?ai)?|sagemaker|vertex(?:-?ai)?"
    r"|google[\s-]?cloud|gcp|gce|aws|ec2|azure|oci|oracle|scaleway|ovh(?:cloud)?|databricks"
)
_BEFORE = re.compile(rf"\s*(?:{_MAKERS}|{_CLOUDS})[\s_:-]+(?=\S)", re.IGNORECASE)
_BEHIND = re.compile(r"(?<=\S)[\s_-]+(?:gpus?|cards?|(?:of\s+)?v?ram|(?:gpu\s+)?memory)\s*$", re.IGNORECASE)


def names_in(text: str) -> Iterator[str]:
    """The text, and what is left of it each time that a word around the name is taken away."""
    rest = text
    yield rest
    while (found := _BEFORE.match(rest) or _BEHIND.search(rest)) is not None:
        rest = rest[: found.start()] + rest[found.end() :]
        yield rest
