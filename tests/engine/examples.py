"""Small models and plain setups, for draws that are kept as examples: an example names what it differs in."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.shapes import shape_from_fields
from vramplan.replay.models.modules import Segment
from vramplan.replay.step import Setup
from vramplan.values.model import LatentAttention, ModelShape

SMALL = {
    "layers": 2,
    "hidden_size": 16,
    "attention_heads": 2,
    "key_value_heads": 2,
    "intermediate_size": 64,
    "vocabulary_size": 64,
    "max_positions": 1024,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "experts.count": 4,
    "experts.active": 1,
    "experts.groups": 1,
    "experts.active_groups": 1,
    "experts.intermediate_size": 24,
    "experts.dense_layers": (),
    "state_space.heads": 2,
    "state_space.head_size": 16,
    "state_space.groups": 1,
}


def model(model_type: str, **fields: Any) -> ModelShape:
    """A model of two narrow layers, with these fields of `ModelShape` in place of its own."""
    kind = MODEL_TYPES[model_type]
    known = {"layers", *kind.defaults, *("experts.active" for key in kind.defaults if key == "experts.count")}
    if "state_space.heads" in kind.defaults:  # which have experts or none
        known -= {key for key in SMALL if key.startswith("experts.")}
    small = {key: value for key, value in SMALL.items() if key in known and key not in kind.fixed}
    if "state_space.step_rank" in kind.defaults:  # each channel is a head, twice as many as in the hidden state
        del small["state_space.heads"]
    if kind.defaults.get("experts.shared", 0) is None:  # which has to be told
        small["experts.shared"] = 1
    if "alternating.states" in kind.defaults:
        small["key_value_sharing_layers"] = 0
    return shape_from_fields({"transformers_model_type": model_type, **small})._replace(**fields)


def setup(of: ModelShape, **fields: Any) -> Setup:
    """An iteration in fp32 with fused AdamW that stores every block, with these fields of `Setup` in place of its."""
    plain = Setup(
        model=of,
        precision="fp32",
        sequence_length=3 * of.takes_text if of.waveform is None else of.shortest,
        attention="eager",
        segments=tuple(Segment(1, layers, False) for layers in of.stacks),
        optimizer="adamw",
        optimizer_implementation="fused",
        accumulating=False,
        hold_outputs=False,
    )
    return plain._replace(**fields)


PACKED_TURNS = setup(
    model(
        "deepseek_v2",
        layers=1,
        hidden_size=96,
        attention_heads=1,
        key_value_heads=1,
        head_size=32,
        latent_attention=LatentAttention(
            query_rank=None, key_value_rank=16, plain_size=16, rotary_size=16, value_size=16, interleaved=True
        ),
    ),
    packed=True,
)
"""The complex numbers that turn queries and keys grow with the micro-batch where sequences are packed."""

SMALL_ENCODER = {
    "layers": 1,
    "hidden_size": 8,
    "attention_heads": 1,
    "key_value_heads": 1,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 8,
    "channels": 1,
    "vision_layers": 1,
    "vision_hidden_size": 8,
    "vision_attention_heads": 1,
    "vision_intermediate_size": 24,
}
IN_ONE_ROW = model("mistral3", **SMALL_ENCODER, head_size=8, tied_embeddings=False, vision_merge=1)
"""A small model of which the patches of all images of a micro-batch are one row, with a mask that keeps them apart."""

TILES = model(
    "mllama",
    **SMALL_ENCODER,
    vision_global_layers=1,
    vision_tapped_layers=(0,),
    vision_tiles=1,
    cross_attention_layers=(0,),
)
"""A model whose text looks at the tiles of an image, which two encoders read."""

ONE_BY_ONE = model("qwen2_vl", **SMALL_ENCODER, vision_merge=1, vision_frames=1)
"""Its vision encoder looks at one image after the other."""
