"""Qwen2-VL (models/qwen2_vl/configuration_qwen2_vl.py): a vision and a text configuration inside of one, or the keys of
the text beside that of the images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, TEXT, Keys, ModelType, Peft, tower
from vramplan.catalog.families.clip import read_all, read_inside
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.fields import Fields
from vramplan.tuples import NamedTuple
from vramplan.values.model import ModelShape

IMAGE_SIZE = 448  # pixels of an edge where nobody says it: any size is possible
VISION_KEYS: Keys = {
    "depth": ("vision_layers", COUNT),
    "embed_dim": ("vision_hidden_size", COUNT),
    "num_heads": ("vision_attention_heads", COUNT),
    "hidden_act": ("vision_activation", TEXT),
    "patch_size": ("patch_size", COUNT),
    "in_channels": ("channels", COUNT),
    "spatial_merge_size": ("vision_merge", COUNT),
    "temporal_patch_size": ("vision_frames", COUNT),
}
TEXT_KEYS: Keys = {key: one for key, one in KEYS.items() if key not in ("head_dim", "tie_word_embeddings")}


class Parts(NamedTuple):
    """The two configurations of a model type that puts images among text, in one."""

    name: str  # of the model type; those of its configurations are made of it
    text: Keys
    vision: Keys
    width: str  # which key of the vision configuration says how wide a token of an image is

    def read(self, fields: Fields, values: dict[str, Any]) -> Fields | None:
        """Read both; returns that of the images, if there is one."""
        self._read_text(fields, values)
        vision = read_inside(fields, "vision_config", self.vision, values)
        if vision is not None and vision.given(self.width):
            said, width = vision.integer(self.width), values.get("hidden_size")
            if said is not None and width is not None and said != width:
                vision.refuse(self.width, f"tokens of {said} elements in a text of {width} make no network")
        return vision

    def _read_text(self, fields: Fields, values: dict[str, Any]) -> None:
        """In a configuration of its own or, as files of the hub have it, beside that of the images."""
        read_all(fields, self.text, values)
        inside = read_inside(fields, "text_config", self.text, values)
        for one in (fields, inside):
            if one is not None and one.boolean("use_sliding_window"):
                one.refuse("use_sliding_window", "true is not modelled beside images")

    def written(self, shape: ModelShape, **vision: Any) -> dict[str, Any]:
        """Both, as `config.json` writes them, with more of the images."""
        text = {**tower(f"{self.name}_text", shape, self.text), "rope_parameters": axes_of(shape)}
        images = {**tower(f"{self.name}_vision", shape, self.vision), self.width: shape.hidden_size, **vision}
        special = {"image_token_id": shape.vocabulary_size - 1, "video_token_id": shape.vocabulary_size - 2}
        return {"text_config": text, "vision_config": images, **special}


PARTS = Parts("qwen2_vl", TEXT_KEYS, VISION_KEYS, "hidden_size")


def _qwen2_vl(fields: Fields, values: dict[str, Any]) -> None:
    inside = PARTS.read(fields, values)
    if inside is not None:
        ratio = inside.integer("mlp_ratio", minimum=1) if inside.given("mlp_ratio") else RATIO
        values["vision_intermediate_size"] = (ratio or RATIO) * values.get("vision_hidden_size", WIDTH)


WIDTH, RATIO = 1280, 4


def _written(shape: ModelShape) -> dict[str, Any]:
    width, inner = shape.vision_hidden_size, shape.vision_intermediate_size
    assert width is not None
    assert inner is not None
    return PARTS.written(shape, mlp_ratio=inner // width)


def axes_of(shape: ModelShape) -> dict[str, Any]:
    """Rotary positions whose frequencies are of three axes: of time a quarter of them, of height and width the rest."""
    half = shape.head_size // 2
    side = half * 3 // 8
    return {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [half - 2 * side, side, side]}


def quarters(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Heads of the vision encoder whose elements do not turn by height and width."""
    width, heads = values["vision_hidden_size"], values["vision_attention_heads"]
    if width % heads == 0 and (width // heads) % 4:
        return [("vision_hidden_size", f"heads of {width // heads} elements have no quarters to turn")]
    return []


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    width, inner = values["vision_hidden_size"], values["vision_intermediate_size"]
    found = quarters(values)
    if inner % width:
        found.append(("vision_intermediate_size", f"{inner} is no multiple of {width}, which mlp_ratio would say"))
    return found


TEXT_DEFAULTS = {
    **{key: DEFAULTS[key] for key in ("activation", "tied_embeddings", "attention_dropout")},
    "vocabulary_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "layers": 80,
    "attention_heads": 64,
    "key_value_heads": 8,
    "max_positions": 32768,
}
BESIDE_IMAGES = {
    **FIXED,
    "qkv_bias": True,
    "output_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "vision_attention_dropout": 0.0,
}

TYPES = {
    "qwen2_vl": ModelType(
        config="Qwen2VLConfig",
        family="qwen2_vl",
        tasks=("lm",),
        written=_written,
        peft=Peft(),
        defaults={
            "image_size": IMAGE_SIZE,
            "patch_size": 14,
            "channels": 3,
            "vision_merge": 2,
            "vision_frames": 2,
            "vision_layers": 32,
            "vision_hidden_size": WIDTH,
            "vision_attention_heads": 16,
            "vision_intermediate_size": RATIO * WIDTH,
            "vision_activation": "quick_gelu",
            **TEXT_DEFAULTS,
        },
        fixed=BESIDE_IMAGES,
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_qwen2_vl,
        contradictions=contradictions,
        grouped=True,
    ),
}
