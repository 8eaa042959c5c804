"""A `config.json` of a model that takes images: what stands inside of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.catalog.families.dinov2 import inside_width, ratio_of
from vramplan.catalog.hf_config import read_hf_config
from vramplan.catalog.shapes import shape_from_fields
from vramplan.errors import InputError
from vramplan.values.model import ModelShape

VIT = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "id2label": {"0": "a", "1": "b", "2": "c"}}
DINOV2 = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "image_size": 518,
    "patch_size": 14,
    "hidden_size": 384,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "use_swiglu_ffn": False,
    "drop_path_rate": 0.0,
}
CLIP: dict[str, Any] = {
    "architectures": ["CLIPModel"],
    "model_type": "clip",
    "projection_dim": 768,
    "text_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768},
    "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14},
}
SIGLIP: dict[str, Any] = {
    "architectures": ["SiglipModel"],
    "model_type": "siglip",
    "text_config": {"model_type": "siglip_text_model", "vocab_size": 250000},
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14},
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


INTERNVL: dict[str, Any] = {
    "architectures": ["InternVLForConditionalGeneration"],
    "model_type": "internvl",
    "downsample_ratio": 0.5,
    "image_token_id": 151667,
    "text_config": {"model_type": "qwen2", "vocab_size": 151674, "hidden_size": 896, "num_attention_heads": 14}
    | {"num_hidden_layers": 24, "num_key_value_heads": 2, "intermediate_size": 4864, "max_window_layers": 70}
    | {"tie_word_embeddings": False, "rope_scaling": {"rope_type": "dynamic", "type": "dynamic", "factor": 2.0}},
    "vision_config": {"model_type": "internvl_vision", "attention_bias": True, "image_size": [448, 448]},
}
LLAVA_NEXT: dict[str, Any] = {
    "architectures": ["LlavaNextForConditionalGeneration"],
    "model_type": "llava_next",
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    "text_config": {"model_type": "mistral", "vocab_size": 32064, "sliding_window": None},
    "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "num_hidden_layers": 24},
}
ONEVISION: dict[str, Any] = {
    "architectures": ["LlavaOnevisionForConditionalGeneration"],
    "model_type": "llava_onevision",
    "image_grid_pinpoints": [[384, 384], [2304, 2304]],
    "vision_aspect_ratio": "anyres_max_9",
    "tie_word_embeddings": True,
    "text_config": {"model_type": "qwen2", "vocab_size": 152000, "hidden_size": 896, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864},
    "vision_config": {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, "hidden_size": 1152}
    | {"intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 26, "vision_use_head": False},
}
IDEFICS3: dict[str, Any] = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "model_type": "idefics3",
    "image_token_id": 49190,
    "scale_factor": 4,
    "text_config": {"model_type": "llama", "vocab_size": 49280, "hidden_size": 576, "num_attention_heads": 9}
    | {"num_hidden_layers": 30, "num_key_value_heads": 3, "intermediate_size": 1536, "tie_word_embeddings": True},
    "vision_config": {"model_type": "idefics3", "image_size": 512, "patch_size": 16, "hidden_size": 768}
    | {"num_attention_heads": 12},
}
PALIGEMMA: dict[str, Any] = {
    "architectures": ["PaliGemmaForConditionalGeneration"],
    "model_type": "paligemma",
    "projection_dim": 2048,
    "image_token_index": 257152,
    "text_config": {"model_type": "gemma", "vocab_size": 257216, "hidden_size": 2048, "num_hidden_layers": 18}
    | {"num_attention_heads": 8, "num_key_value_heads": 1, "intermediate_size": 16384},
    "vision_config": {"model_type": "siglip_vision_model", "image_size": 448, "intermediate_size": 4304},
}

QWEN2_VL: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "vocab_size": 152064,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3},
}
"""As files of the hub have it: the keys of the text stand beside the configuration of the images."""

QWEN25_VL: dict[str, Any] = {
    **QWEN2_VL,
    "model_type": "qwen2_5_vl",
    "vision_config": {"hidden_size": 1280, "out_hidden_size": 3584, "intermediate_size": 3420, "window_size": 56},
}
QWEN3_VL: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": {"hidden_size": 2560, "num_hidden_layers": 36, "head_dim": 128, "model_type": "qwen3_vl_text"}
    | {"rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}},
    "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2560}
    | {"deepstack_visual_indexes": [5, 11, 17], "num_position_embeddings": 2304, "model_type": "qwen3_vl"},
}
MLLAMA: dict[str, Any] = {
    "architectures": ["MllamaForConditionalGeneration"],
    "model_type": "mllama",
    "image_token_index": 128256,
    "text_config": {"model_type": "mllama_text_model", "num_hidden_layers": 100, "hidden_size": 8192, "dropout": 0.1}
    | {"num_attention_heads": 64, "intermediate_size": 28672, "cross_attention_layers": list(range(3, 100, 5))}
    | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}},
    "vision_config": {"model_type": "mllama_vision_model", "image_size": 560, "vision_output_dim": 7680}
    | {"intermediate_layers_indices": [3, 7, 15, 23, 30], "attention_heads": 16, "max_num_tiles": 4},
}
MISTRAL3: dict[str, Any] = {
    "model_type": "mistral3",
    "spatial_merge_size": 2,
    "text_config": {"model_type": "ministral3", "hidden_size": 3072, "num_hidden_layers": 26},
    "vision_config": {"model_type": "pixtral", "num_hidden_layers": 12, "patch_size": 14, "hidden_act": "silu"},
}
QWEN3_VL_MOE: dict[str, Any] = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe",
    "text_config": {"hidden_size": 2048, "num_hidden_layers": 48, "head_dim": 128, "model_type": "qwen3_vl_moe_text"}
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": [3]}
    | {"norm_topk_prob": True, "decoder_sparse_step": 1},
    "vision_config": {"depth": 27, "hidden_size": 1152, "out_hidden_size": 2048, "model_type": "qwen3_vl_moe"},
}
GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 64,
    "text_config": {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    | {"final_logit_softcapping": 30.0, "model_type": "gemma3_text"},
    "vision_config": {"image_size": 448, "model_type": "siglip_vision_model", "vision_use_head": False},
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


def test_dinov2_has_a_ratio_in_place_of_a_width(tmp_path: Path) -> None:
    shape = read(tmp_path, DINOV2)
    assert (shape.task, shape.hidden_size, shape.intermediate_size, shape.max_positions) == ("image", 384, 1536, 1370)
    assert (shape.gated_mlp, shape.classes) == (False, 2)
    giant = read(tmp_path, {**DINOV2, "hidden_size": 1536, "num_attention_heads": 24, "use_swiglu_ffn": True})
    assert (giant.gated_mlp, giant.intermediate_size) == (True, 4096)
    assert read(tmp_path, {"model_type": "dinov2", "mlp_ratio": 3}).intermediate_size == 2304
    assert "drop_path_rate: paths that are dropped" in refused(tmp_path, {**DINOV2, "drop_path_rate": 0.1})
    assert "use_mask_token: false is not modelled" in refused(tmp_path, {**DINOV2, "use_mask_token": False})


@pytest.mark.parametrize("gated", [False, True])
def test_every_ratio_of_dinov2_is_found_again(gated: bool) -> None:
    for hidden in (64, 96, 384, 768, 1536):
        for ratio in range(1, 9):
            assert ratio_of(hidden, inside_width(hidden, ratio, gated=gated), gated=gated) == ratio
    with pytest.raises(InputError, match="1000 follows from no mlp_ratio that is a whole number"):
        shape_from_fields({"family": "dinov2", "intermediate_size": 1000})


def test_clip_has_a_configuration_for_each_tower(tmp_path: Path) -> None:
    shape = read(tmp_path, CLIP)
    assert (shape.hidden_size, shape.attention_heads, shape.layers) == (768, 12, 12)
    assert (shape.vision_hidden_size, shape.vision_layers, shape.vision_intermediate_size) == (1024, 24, 3072)
    assert (shape.projection_size, shape.patch_size, shape.task) == (768, 14, "contrastive")


def test_an_older_file_of_clip_has_the_configurations_twice(tmp_path: Path) -> None:
    shape = read(tmp_path, {**CLIP, "text_config_dict": {"hidden_size": 640, "num_attention_heads": 10}})
    assert (shape.hidden_size, shape.attention_heads, shape.intermediate_size) == (640, 10, 2048)


def test_siglip_compares_or_classifies(tmp_path: Path) -> None:
    shape = read(tmp_path, SIGLIP)
    assert (shape.task, shape.stacks, shape.projection_size) == ("contrastive", (27, 12), 768)
    assert (shape.patch_size, shape.vision_hidden_size, shape.vocabulary_size) == (14, 1152, 250000)
    images = read(tmp_path, {**SIGLIP, "architectures": ["SiglipForImageClassification"], "num_labels": 7})
    assert (images.task, images.stacks, images.classes) == ("image", (27,), 7)
    assert images.takes_images
    assert not images.takes_text
    without = {**SIGLIP, "vision_config": {"vision_use_head": False}}
    assert "vision_use_head: false is not modelled beside" in refused(tmp_path, without)


def test_llava_has_a_llama_and_the_tower_of_clip(tmp_path: Path) -> None:
    shape = read(tmp_path, LLAVA)
    assert (shape.vocabulary_size, shape.max_positions, shape.layers) == (32064, 4096, 32)
    assert (shape.vision_hidden_size, shape.image_tokens, shape.stacks) == (1024, 576, (23, 1, 32))


def test_paligemma_has_a_gemma_whose_tokens_are_as_wide_as_what_is_projected(tmp_path: Path) -> None:
    shape = read(tmp_path, PALIGEMMA)
    assert (shape.vocabulary_size, shape.layers, shape.key_value_heads, shape.head_size) == (257216, 18, 1, 256)
    assert (shape.vision_intermediate_size, shape.image_tokens, shape.stacks) == (4304, 1024, (27, 18))
    assert "projection_dim: 2304 is not the width of the text, 2048" in refused(
        tmp_path, {**PALIGEMMA, "projection_dim": 2304}
    )
    other = {**PALIGEMMA, "text_config": {"model_type": "llama"}}
    assert "'llama' is not modelled inside of paligemma (modelled: gemma, gemma2)" in refused(tmp_path, other)
    pooled = {**PALIGEMMA, "vision_config": {"vision_use_head": True}}
    assert "vision_use_head: a head that pools" in refused(tmp_path, pooled)


def test_paligemma_2_has_a_gemma_2_with_what_its_class_has_by_default(tmp_path: Path) -> None:
    text = {"model_type": "gemma2", "vocab_size": 257216}
    shape = read(tmp_path, {**PALIGEMMA, "projection_dim": 2304, "text_config": text})
    assert (shape.family, shape.text_type, shape.hidden_size, shape.layers) == ("paligemma", "gemma2", 2304, 26)
    assert (shape.key_value_heads, shape.head_size, shape.sliding_window) == (4, 256, 4096)
    assert shape.attention_softcap
    assert shape.logit_softcap
    assert read(tmp_path, PALIGEMMA).text_type == "gemma"
    unbound = {**text, "attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": None}
    plain = read(tmp_path, {**PALIGEMMA, "projection_dim": 2304, "text_config": unbound})
    assert (plain.text_type, plain.attention_softcap, plain.logit_softcap) == ("gemma2", False, False)
    assert plain.sliding_window is None


def test_a_gemma_beside_images_has_nothing_that_is_of_a_gemma_2() -> None:
    for key, value in (("sliding_window", 64), ("logit_softcap", True), ("attention_softcap", True)):
        with pytest.raises(InputError) as caught:
            shape_from_fields({"family": "paligemma", key: value})
        (problem,) = caught.value.problems
        assert (problem.key, problem.message) == (key, "a gemma has none, a gemma2 has")
    with pytest.raises(InputError) as caught:
        shape_from_fields({"family": "paligemma", "text_type": "llama"})
    assert [one.key for one in caught.value.problems] == ["text_type"]


def test_internvl_has_tiles_and_the_text_that_its_configuration_names(tmp_path: Path) -> None:
    shape = read(tmp_path, INTERNVL)
    assert (shape.text_type, shape.hidden_size, shape.head_size, shape.key_value_heads) == ("qwen2", 896, 64, 2)
    assert (shape.image_size, shape.vision_tiles, shape.image_tokens, shape.stacks) == (448, 13, 13 * 256, (24, 24))
    assert (shape.qkv_bias, shape.vision_qkv_bias, shape.rope_scaling) == (True, True, "dynamic")
    assert not shape.tied_embeddings  # what the text says, as a checkpoint with a head of its own is not tied
    assert read(tmp_path, {**INTERNVL, "tie_word_embeddings": True}).tied_embeddings
    assert read(tmp_path, {"model_type": "internvl"}).tied_embeddings
    text = {"model_type": "qwen3", "num_attention_heads": 16, "hidden_size": 1024, "num_key_value_heads": 8}
    newer = read(tmp_path, {**INTERNVL, "text_config": text, "vision_config": {"image_size": 224, "patch_size": 16}})
    assert (newer.qk_norm, newer.qkv_bias, newer.head_size, newer.image_tokens) == (True, False, 128, 13 * 49)
    llama = read(tmp_path, {**INTERNVL, "text_config": {"model_type": "llama", "attention_bias": True}})
    assert (llama.qk_norm, llama.qkv_bias, llama.output_bias, llama.vocabulary_size) == (False, True, True, 32000)


def test_llava_next_has_a_square_of_tiles_beside_the_whole_image(tmp_path: Path) -> None:
    shape = read(tmp_path, LLAVA_NEXT)
    assert (shape.text_type, shape.intermediate_size, shape.key_value_heads) == ("mistral", 14336, 8)
    assert (shape.vision_tiles, shape.image_tokens, shape.stacks) == (5, 2928, (23, 1, 32))
    assert read(tmp_path, {"model_type": "llava_next"}).vision_tiles == 5
    nine = read(tmp_path, {**LLAVA_NEXT, "image_grid_pinpoints": [[336, 336], [1008, 1008]]})
    assert (nine.vision_tiles, nine.image_tokens) == (10, 576 + 72 * 73)
    qwen = read(tmp_path, {**LLAVA_NEXT, "text_config": {"model_type": "qwen2", "max_window_layers": 20}})
    assert (qwen.qkv_bias, qwen.output_bias, qwen.sliding_window_start) == (True, False, None)


def test_llava_onevision_has_the_tiles_of_its_aspect_ratio(tmp_path: Path) -> None:
    shape = read(tmp_path, ONEVISION)
    assert (shape.vision_tiles, shape.image_tokens, shape.stacks) == (10, 729 + 81 * 82, (26, 24))
    assert (shape.qkv_bias, shape.output_bias, shape.tied_embeddings) == (True, False, True)
    assert read(tmp_path, {**ONEVISION, "vision_aspect_ratio": "anyres_max_4"}).image_tokens == 729 + 54 * 55
    for key, value in (
        ("vision_aspect_ratio", "anyres_max_5"),
        ("vision_feature_layer", -2),
        ("vision_feature_select_strategy", "default"),
        ("multimodal_projector_bias", False),
        ("text_config", {"model_type": "llama"}),
        ("vision_config", {**ONEVISION["vision_config"], "vision_use_head": True}),
    ):
        with pytest.raises(InputError):
            read(tmp_path, {**ONEVISION, key: value})


def test_beit_has_a_bias_of_places_in_each_block_or_none(tmp_path: Path) -> None:
    beit = {"model_type": "beit", "architectures": ["BeitForImageClassification"]}
    assert read(tmp_path, beit).positions == "none"
    relative = read(tmp_path, {**beit, "use_relative_position_bias": True, "drop_path_rate": 0.0})
    assert (relative.positions, relative.drops_paths, relative.max_positions) == ("relative", False, 197)
    for key, value in (
        ("use_absolute_position_embeddings", True),
        ("use_shared_relative_position_bias", True),
        ("use_mask_token", True),
        ("use_mean_pooling", False),
        ("layer_scale_init_value", 0.0),
    ):
        with pytest.raises(InputError):
            read(tmp_path, {**beit, key: value})


@pytest.mark.parametrize("model_type", ["idefics3", "smolvlm"])
def test_idefics3_and_smolvlm_have_tiles_and_a_llama(tmp_path: Path, model_type: str) -> None:
    shape = read(tmp_path, {**IDEFICS3, "model_type": model_type})
    assert (shape.family, shape.transformers_model_type, shape.tied_embeddings) == (model_type, model_type, False)
    assert (shape.hidden_size, shape.head_size, shape.key_value_heads, shape.layers) == (576, 64, 3, 30)
    assert (shape.vision_layers, shape.vision_intermediate_size, shape.vision_activation) == (
        12,
        3072,
        "gelu_pytorch_tanh",
    )
    assert (shape.vision_tiles, shape.vision_merge, shape.image_tokens, shape.stacks) == (17, 4, 17 * 64, (12, 30))
    assert read(tmp_path, {**IDEFICS3, "tie_word_embeddings": True}).tied_embeddings


CONVNEXT: dict[str, Any] = {"model_type": "convnext", "depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024]}
SWIN: dict[str, Any] = {"model_type": "swin", "embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]}
SWIN |= {"window_size": 12, "image_size": 384}


def test_stages_of_images(tmp_path: Path) -> None:
    convnext = read(tmp_path, CONVNEXT)
    assert (convnext.layers, convnext.hidden_size, convnext.drops_paths, convnext.classes) == (36, 1024, False, 2)
    assert read(tmp_path, {**CONVNEXT, "drop_path_rate": 0.2}).drops_paths
    swin = read(tmp_path, SWIN)
    assert (swin.layers, swin.widths, swin.attention_heads, swin.head_size) == (24, (128, 256, 512, 1024), 4, 32)
    assert (swin.vision_window, swin.intermediate_size, swin.drops_paths) == (48, 4096, True)
    assert not read(tmp_path, {**SWIN, "drop_path_rate": 0.0}).drops_paths
    assert read(tmp_path, {**SWIN, "mlp_ratio": 2.0}).intermediate_size == 2048
    assert read(tmp_path, {"model_type": "swin"}).widths == (96, 192, 384, 768)


def test_the_text_of_qwen2_vl_stands_beside_the_images_or_inside(tmp_path: Path) -> None:
    shape = read(tmp_path, QWEN2_VL)
    assert (shape.layers, shape.hidden_size, shape.key_value_heads, shape.vocabulary_size) == (28, 3584, 4, 152064)
    assert (shape.vision_hidden_size, shape.vision_intermediate_size, shape.stacks) == (1280, 5120, (32, 28))
    text = {"hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2}
    inside = read(tmp_path, {"model_type": "qwen2_vl", "text_config": text, "tie_word_embeddings": True})
    assert (inside.hidden_size, inside.attention_heads, inside.tied_embeddings) == (1536, 12, True)


def test_qwen25_vl_has_windows(tmp_path: Path) -> None:
    shape = read(tmp_path, QWEN25_VL)
    assert (shape.vision_hidden_size, shape.vision_window, shape.vision_full_layers) == (1280, 56, (7, 15, 23, 31))


def test_qwen3_vl_gives_results_of_some_vision_blocks_to_the_first_blocks_of_the_text(tmp_path: Path) -> None:
    shape = read(tmp_path, QWEN3_VL)
    assert (shape.hidden_size, shape.head_size, shape.vision_hidden_size, shape.qk_norm) == (2560, 128, 1024, True)
    assert (shape.vision_deepstack_layers, shape.vision_positions) == ((5, 11, 17), 2304)
    assert shape.stacks == (6, 6, 6, 6, 1, 1, 1, 33)
    plain = read(tmp_path, {**QWEN3_VL, "vision_config": {"depth": 24, "deepstack_visual_indexes": []}})
    assert plain.stacks == (24, 36)


def test_mistral_3_has_the_text_that_its_configuration_names(tmp_path: Path) -> None:
    shape = read(tmp_path, MISTRAL3)
    assert (shape.family, shape.scaled_queries, shape.vision_activation) == ("mistral3", True, "silu")
    assert (shape.hidden_size, shape.layers, shape.head_size, shape.sliding_window) == (3072, 26, 128, None)
    assert (shape.vision_layers, shape.patch_size, shape.vision_merge, shape.stacks) == (12, 14, 2, (12, 26))
    plain = read(tmp_path, {"model_type": "mistral3", "text_config": {"model_type": "mistral", "num_hidden_layers": 8}})
    assert (plain.scaled_queries, plain.layers, plain.hidden_size, plain.head_size) == (False, 8, 4096, 128)
    assert (plain.vocabulary_size, plain.sliding_window) == (32000, 4096)  # what MistralConfig has by default
    assert not plain.tied_embeddings  # what the text says, as a checkpoint with a head of its own is not tied
    tied = {**MISTRAL3, "text_config": {"model_type": "ministral3", "tie_word_embeddings": True}}
    assert read(tmp_path, tied).tied_embeddings
    assert not read(tmp_path, {**tied, "tie_word_embeddings": False}).tied_embeddings
    bare = read(tmp_path, {"model_type": "mistral3", "tie_word_embeddings": False})
    assert (bare.hidden_size, bare.vocabulary_size, bare.patch_size, bare.tied_embeddings) == (5120, 131072, 14, False)


def test_llama_32_vision_has_two_encoders_and_a_text_that_looks_at_them(tmp_path: Path) -> None:
    shape = read(tmp_path, MLLAMA)
    assert (shape.family, shape.image_size, shape.vision_tiles, shape.image_tokens) == ("mllama", 560, 4, 0)
    assert (shape.vision_tapped_layers, shape.cross_attention_layers) == ((3, 7, 15, 23, 30), tuple(range(3, 100, 5)))
    assert (shape.layers, shape.hidden_size, shape.head_size, shape.attention_dropout) == (100, 8192, 128, 0.1)
    assert (shape.stacks, shape.stored_blocks, shape.numbered_blocks) == ((100,), (32, 8), 140)
    assert shape.with_layers(10).cross_attention_layers == (3, 8)


@pytest.mark.parametrize(("image_size", "tokens"), [(28, 1), (29, 4), (448, 256), (1540, 3025)])
def test_mistral_3_fills_the_last_square_of_an_image_up(image_size: int, tokens: int, tmp_path: Path) -> None:
    assert read(tmp_path, MISTRAL3)._replace(image_size=image_size).image_tokens == tokens


def test_qwen3_vl_has_experts_in_all_blocks_but_those_that_are_named(tmp_path: Path) -> None:
    shape = read(tmp_path, QWEN3_VL_MOE)
    assert shape.experts is not None
    assert (shape.family, shape.stacks) == ("qwen3_vl", (9, 8, 8, 2, 1, 1, 1, 45))
    assert (shape.experts.routed, shape.experts.active, shape.experts.intermediate_size) == (128, 8, 768)
    assert (shape.experts.normalized, shape.experts.dense_layers) == (True, (3,))


def test_gemma_3_pools_its_patches_to_tokens_and_bounds_no_logits(tmp_path: Path) -> None:
    shape = read(tmp_path, GEMMA3)
    assert (shape.family, shape.vision_merge, shape.image_tokens) == ("gemma3_images", 4, 64)
    assert (shape.layers, shape.sliding_window, shape.logit_softcap) == (34, 1024, False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**QWEN2_VL, "use_sliding_window": True}, "use_sliding_window: true is not modelled"),
        ({**LLAVA_NEXT, "image_grid_pinpoints": [[336, 672]]}, "whose largest picture is a square"),
        ({**LLAVA_NEXT, "text_config": {"model_type": "mistral"}}, "windows of a text beside images are not modelled"),
        ({**LLAVA_NEXT, "text_config": {"model_type": "phi3"}}, "'phi3' is not modelled inside of llava_next"),
        ({**LLAVA_NEXT, "vision_feature_layer": -1}, "vision_feature_layer: only -2 is modelled"),
        ({**CONVNEXT, "num_stages": 3}, "num_stages: 3 stages have no 4 depths"),
        ({**CONVNEXT, "layer_scale_init_value": 0.0}, "layers without a factor for each channel are not modelled"),
        ({**SWIN, "num_heads": [4, 4, 4, 4]}, "only heads that double from stage to stage"),
        ({**SWIN, "use_absolute_embeddings": True}, "use_absolute_embeddings: true is not modelled"),
        ({**SWIN, "image_size": 224}, "224 pixels leave 7 patches in the last stage, whose windows have 12"),
        ({"model_type": "idefics3"}, "squares of 2 do not cover the 7 patches of an edge"),  # the class's own sizes
        ({**IDEFICS3, "scale_factor": 3}, "squares of 3 do not cover the 32 patches of an edge"),
        ({**IDEFICS3, "text_config": {"model_type": "mistral"}}, "'mistral' is not modelled inside of idefics3"),
        ({**IDEFICS3, "vision_config": {"model_type": "clip_vision_model"}}, "is not modelled inside of idefics3"),
        ({**INTERNVL, "vision_config": {"norm_type": "rms_norm"}}, "norm_type: 'rms_norm' is not modelled"),
        ({**INTERNVL, "vision_config": {"use_qk_norm": True}}, "use_qk_norm: true is not modelled"),
        ({**INTERNVL, "vision_config": {"use_mean_pooling": False}}, "use_mean_pooling: false is not modelled"),
        ({**INTERNVL, "vision_config": {"use_absolute_position_embeddings": False}}, "false is not modelled"),
        ({**INTERNVL, "vision_config": {"hidden_dropout_prob": 0.1}}, "dropout of the hidden states of images"),
        ({**INTERNVL, "vision_config": {"image_size": [448, 224]}}, "image_size: only squares are modelled"),
        ({**INTERNVL, "vision_config": {"patch_size": 16, "image_size": 432}}, "squares of 2 do not cover the 27"),
        ({**INTERNVL, "vision_config": {"model_type": "clip_vision_model"}}, "(modelled: internvl_vision)"),
        ({**INTERNVL, "vision_feature_layer": -2}, "vision_feature_layer: only -1 is modelled"),
        ({**INTERNVL, "vision_feature_select_strategy": "full"}, "'full' is not modelled"),
        ({**INTERNVL, "text_config": {"model_type": "gpt_oss"}}, "'gpt_oss' is not modelled inside of internvl"),
        (
            {**INTERNVL, "text_config": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}},
            "windows of a text beside images are not modelled",
        ),
        ({**QWEN2_VL, "vision_config": {"hidden_size": 1536}}, "tokens of 1536 elements in a text of 3584"),
        ({**QWEN25_VL, "vision_config": {"window_size": 14}}, "less than a square of 28"),
        ({**QWEN3_VL, "vision_config": {"deepstack_visual_indexes": [8, 27]}}, "there is no block 27 of 27"),
        ({**QWEN3_VL, "vision_config": {"num_position_embeddings": 2300}}, "2300 are no square"),
        ({**MISTRAL3, "vision_feature_layer": -2}, "vision_feature_layer: only -1 is modelled"),
        ({**MISTRAL3, "vision_feature_layer": [-1, -2]}, "vision_feature_layer: only -1 is modelled"),
        ({**MISTRAL3, "multimodal_projector_bias": True}, "multimodal_projector_bias: true is not modelled"),
        ({**MISTRAL3, "projector_hidden_act": "silu"}, "projector_hidden_act: 'silu' is not modelled"),
        ({**MISTRAL3, "text_config": {"model_type": "mistral4"}}, "text_config.model_type: 'mistral4' is not modelled"),
        ({**MISTRAL3, "vision_config": {"model_type": "clip_vision_model"}}, "model_type: 'clip_vision_model'"),
        ({**MLLAMA, "text_config": {"cross_attention_layers": []}}, "cross_attention_layers: none of them is not"),
        ({**MLLAMA, "text_config": {"cross_attention_layers": [40]}}, "there is no block 40 of layers 40"),
        ({**MLLAMA, "vision_config": {"intermediate_layers_indices": [1, 32]}}, "no block 32 of vision_layers 32"),
        ({**MLLAMA, "vision_config": {"vision_output_dim": 1280}}, "vision_output_dim: 1280 elements in place of"),
        ({**MLLAMA, "vision_config": {"supported_aspect_ratios": [[1, 1]]}}, "supported_aspect_ratios: only the 8"),
        ({**MISTRAL3, "vision_config": {"hidden_size": 96}}, "heads of 6 elements have no quarters"),
        ({**QWEN3_VL_MOE, "text_config": {"output_router_logits": True}}, "the load-balancing loss of the router"),
        ({**GEMMA3, "vision_config": {"image_size": 448}}, "vision_use_head: a head that pools"),
        ({**GEMMA3, "vision_config": {"model_type": "clip_vision_model"}}, "vision_config.model_type"),
    ],
)
def test_what_is_refused_of_images_among_text(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, values)


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
