"""Names of the parts that every family has, as jobs and reports write them."""

from __future__ import annotations

from collections.abc import Sequence

EMBEDDINGS, LAYERS, NORMS, HEAD = "embeddings", "layers", "norms", "head"
ENCODER = "encoder"  # whose blocks a model has beside those of a decoder

HEAD_LAYER = "lm_head"
TIED_HEAD = f"{HEAD_LAYER}.weight"
"""What the head of a language model is called where it is tied to the embeddings."""

GATE_UP, DOWN, ROUTER = "experts.gate_up_proj", "experts.down_proj", "gate.weight"  # tensors of a layer of experts

GATED_EXPERTS = {"gate": ROUTER, "gate_proj": GATE_UP, "up_proj": GATE_UP, "down_proj": DOWN}
"""What PEFT's LoRA takes for tensors of experts where these are the names of the layers before."""

NUMBERED_EXPERTS = {"gate": ROUTER, "w1": GATE_UP, "w3": GATE_UP, "w2": DOWN}
"""The same of Mixtral, whose checkpoints have numbers for the layers of an expert."""

IMAGES = "vision_encoder"  # the part of a model that reads images before text


def is_of_tokens(part: Sequence[str]) -> bool:
    """Whether a weight belongs to the embeddings of tokens: an encoder of images has embeddings of its own."""
    return EMBEDDINGS in part and IMAGES not in part
