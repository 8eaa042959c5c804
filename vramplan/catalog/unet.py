"""What modded-nanogpt's models have beside a plain transformer: from the fields of a model to a `spec.UNet`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vramplan.values.model import UNet

REQUIRED = ("value_embeddings", "mirrored", "embedding_rows", "fp32_rotary")
MISSING = "required key is missing: each record of modded-nanogpt has another"


def unet_of(values: Mapping[str, Any]) -> UNet | None:
    """What the fields describe; None for every other model."""
    if values["unet.value_embeddings"] is None:
        return None
    plain = {key: values[f"unet.{key}"] for key in REQUIRED}
    return UNet(**plain, attention_free=tuple(values["unet.attention_free"] or ()))


def wrong_unet(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is missing, and what makes no network."""
    missing = [f"unet.{key}" for key in REQUIRED if values[f"unet.{key}"] is None]
    yield from ((key, MISSING) for key in missing)
    if missing:
        return
    unet, layers = unet_of(values), values["layers"]
    assert unet is not None
    if 2 * unet.value_embeddings > layers:
        yield "unet.value_embeddings", f"{unet.value_embeddings} tables for each end of {layers} blocks"
    if not 1 <= unet.embedding_rows <= values["vocabulary_size"]:
        message = f"{unet.embedding_rows} rows for {values['vocabulary_size']} words, to which the head is padded"
        yield "unet.embedding_rows", message
    if any(block >= layers for block in unet.attention_free):
        message = f"there is no block {unet.attention_free[-1]}; the {layers} blocks are numbered from 0"
        yield "unet.attention_free", message
    elif any(unet.table_of(block, layers) is not None for block in unet.attention_free):
        yield "unet.attention_free", "a block with a value embedding has attention"
    if values["head_size"] % 4:
        yield "head_size", f"{values['head_size']} is no multiple of 4, and rotary positions turn halves by halves"
