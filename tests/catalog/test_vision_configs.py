"""A `config.json` of a model that takes images: what stands inside of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.catalog.hf_config import read_hf_config
from vramplan.errors import InputError
from vramplan.values.model import ModelShape

VIT = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "id2label": {"0": "a", "1": "b", "2": "c"}}
CLIP: dict[str, Any] = {
    "architectures": ["CLIPModel"],
    "model_type": "clip",
    "projection_dim": 768,
    "text_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768},
    "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14},
}
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "projector_hidden_act": "gelu",
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
    "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "num_hidden_layers": 24},
}


def read(folder: Path, values: dict[str, Any]) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(values))
    return read_hf_config(folder)[0]


def refused(folder: Path, values: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, values)
    return str(caught.value)


def test_the_classes_of_a_vit_are_its_labels(tmp_path: Path) -> None:
    shape = read(tmp_path, {**VIT, "image_size": 384, "patch_size": 32})
    assert (shape.task, shape.classes, shape.max_positions) == ("image", 3, 145)


def test_clip_has_a_configuration_for_each_tower(tmp_path: Path) -> None:
    shape = read(tmp_path, CLIP)
    assert (shape.hidden_size, shape.attention_heads, shape.layers) == (768, 12, 12)
    assert (shape.vision_hidden_size, shape.vision_layers, shape.vision_intermediate_size) == (1024, 24, 3072)
    assert (shape.projection_size, shape.patch_size, shape.task) == (768, 14, "contrastive")


def test_an_older_file_of_clip_has_the_configurations_twice(tmp_path: Path) -> None:
    shape = read(tmp_path, {**CLIP, "text_config_dict": {"hidden_size": 640, "num_attention_heads": 10}})
    assert (shape.hidden_size, shape.attention_heads, shape.intermediate_size) == (640, 10, 2048)


def test_llava_has_a_llama_and_the_tower_of_clip(tmp_path: Path) -> None:
    shape = read(tmp_path, LLAVA)
    assert (shape.vocabulary_size, shape.max_positions, shape.layers) == (32064, 4096, 32)
    assert (shape.vision_hidden_size, shape.image_tokens, shape.stacks) == (1024, 576, (23, 1, 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vision_feature_layer": -1}, "vision_feature_layer: only -2 is modelled"),
        ({"vision_feature_layer": [-2, -5]}, "vision_feature_layer: only -2 is modelled"),
        ({"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy: 'full' is not modelled"),
        ({"projector_hidden_act": "silu"}, "projector_hidden_act: 'silu' is not modelled"),
        ({"multimodal_projector_bias": False}, "multimodal_projector_bias: false is not modelled"),
        ({"text_config": {"model_type": "mistral"}}, "text_config.model_type: 'mistral' is not modelled"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "vision_config.model_type"),
        ({"vision_config": {"hidden_act": "mish"}}, "mish is not modelled"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refused(tmp_path, {**LLAVA, **change})
