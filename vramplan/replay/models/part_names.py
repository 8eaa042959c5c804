"""Names of the parts that every family has, as jobs and reports write them."""

from __future__ import annotations

EMBEDDINGS, LAYERS, NORMS, HEAD = "embeddings", "layers", "norms", "head"
