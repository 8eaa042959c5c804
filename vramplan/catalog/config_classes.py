"""What is known of each Transformers model type, in the words of the job format: one `ModelType` each.

A model type is described in one place, `vramplan/catalog/families/<family>.py`: the defaults of its configuration
class, the keys of its `config.json`, and what of both is not modelled. Its forward pass lies in the file of the same
name in `vramplan/models/`. `FAMILY_OF` below names the types; the rest is read when a type is asked for.

Source: huggingface/transformers 5.23.0, src/transformers/models/<type>/configuration_<type>.py, and for what cannot be
chosen modeling_<type>.py beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vramplan.tuples import NamedTuple

if TYPE_CHECKING:
    from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

TEXT, COUNT, COUNTS, RATIO, SHARE, FLAG, BLOCKS = "text", "count", "counts", "ratio", "share", "flag", "blocks"
"""Kinds of values: a count is a whole number and counts are a list of them, ratios are at least 0 and below 1, shares
from 0 to 1, flags booleans, blocks lists of their numbers."""

FAMILY_OF = {
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "bert": "bert",
    "qwen3": "llama",
    "gpt_neox": "neox",
    "opt": "opt",
    "phi3": "phi3",
    "phi": "phi",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "bloom": "bloom",
    "mpt": "mpt",
    "vit": "vit",
    "resnet": "resnet",
    "clip": "clip",
    "roberta": "roberta",
    "distilbert": "distilbert",
    "xlm-roberta": "roberta",
    "t5": "t5",
    "bart": "bart",
    "whisper": "whisper",
    "mixtral": "mixtral",
    "qwen2_moe": "qwen_moe",
    "qwen3_moe": "qwen_moe",
    "deepseek_v3": "deepseek",
    "deepseek_v2": "deepseek",
    "glm": "glm",
    "glm4": "glm4",
    "falcon": "falcon",
    "chatglm": "chatglm",
    "llava": "llava",
    "smollm3": "llama",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmoe": "olmoe",
    "starcoder2": "starcoder2",
    "gpt_oss": "gpt_oss",
    "llama4_text": "llama4",
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "gemma3": "gemma3_images",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "glm4_moe": "glm4_moe",
    "gpt_neo": "gpt_neo",
    "qwen3_next": "qwen3_next",
    "qwen3_5_text": "qwen3_next",
    "qwen3_5_moe_text": "qwen3_next",
    "ministral3": "ministral3",
    "gemma4_text": "gemma4",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "granite": "granite",
    "granitemoehybrid": "granitemoehybrid",
    "nemotron_h": "nemotron_h",
    "falcon_h1": "falcon_h1",
    "bamba": "bamba",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2_moe",
    "seed_oss": "seed_oss",
    "arcee": "arcee",
    "apertus": "apertus",
    "olmo": "olmo",
    "hunyuan_v1_dense": "hunyuan_v1_dense",
    "cohere2": "cohere",
    "cohere": "cohere",
    "ernie4_5": "ernie4_5",
    "exaone4": "exaone4",
    "stablelm": "stablelm",
    "nemotron": "nemotron",
    "helium": "helium",
    "mistral3": "mistral3",
    "mllama": "mllama",
    "dbrx": "dbrx",
    "deberta-v2": "deberta_v2",
    "electra": "electra",
    "modernbert": "modernbert",
    "glm4_moe_lite": "deepseek",
    "mistral4": "mistral4",
    "minimax_m2": "minimax_m2",
    "afmoe": "afmoe",
    "gptj": "gptj",
    "gpt_bigcode": "gpt_bigcode",
    "jamba": "jamba",
    "mamba": "mamba",
    "falcon_mamba": "mamba",
    "gemma3n_text": "gemma3n",
    "internlm3": "llama",
    "ernie4_5_moe": "ernie4_5_moe",
    "hunyuan_v1_moe": "hunyuan_v1_moe",
    "dinov2": "dinov2",
    "siglip": "siglip",
    "paligemma": "paligemma",
    "mbart": "mbart",
    "m2m_100": "m2m_100",
    "pegasus": "pegasus",
    "marian": "marian",
    "esm": "esm",
    "wav2vec2": "wav2vec2",
    "hubert": "wav2vec2",
    "internvl": "internvl",
    "llava_next": "llava_next",
    "llava_onevision": "llava_onevision",
    "idefics3": "idefics3",
    "smolvlm": "smolvlm",
    "convnext": "convnext",
    "swin": "swin",
    "camembert": "roberta",
    "mt5": "t5",
    "deit": "deit",
    "convnextv2": "convnextv2",
    "mpnet": "mpnet",
    "dinov2_with_registers": "dinov2_with_registers",
    "granitemoe": "granitemoe",
    "nomic_bert": "nomic_bert",
    "albert": "albert",
    "eurobert": "eurobert",
    "dots1": "dots1",
    "flex_olmo": "flex_olmo",
    "exaone_moe": "exaone_moe",
    "wavlm": "wavlm",
    "data2vec-text": "roberta",
    "ernie": "bert",
    "vit_msn": "vit",
    "beit": "beit",
}
"""The family of each model type. The first type of a family is the one that the family's name alone stands for."""

OTHERWISE = {
    "gemma3n": "it has towers for images and audio (modelled: gemma3n_text, which is its text_config)",
    "gemma4": "it has towers for images and audio (modelled: gemma4_text, which is its text_config)",
    "llama4": "it has a tower for images (modelled: llama4_text, which is its text_config)",
}
"""Model types that compute otherwise than any known one, though their keys are the usual ones; and why."""

OF_RUNTIMES = {
    "modded_nanogpt": "modded_nanogpt",
    "megatron_gpt": "megatron_gpt",
    "torchvision_vit": "torchvision_vit",
}
"""The same of model types that are no class of Transformers: only the code of a runtime, or of a library, has them."""

FAMILIES = tuple(dict.fromkeys(FAMILY_OF.values()))
"""The forward passes that exist."""

NEUTRAL: dict[str, Any] = {
    "qk_norm": False,
    "partial_rotary_factor": 1.0,
    "position_span": None,
    "mean_pooling": False,
    "parallel_residual": False,
    "pre_norm": True,
    "embedding_size": None,
    "attention_softcap": False,
    "logit_softcap": False,
    "clipped_qkv": False,
    "scaled_embeddings": False,
    "sliding_window_pattern": None,
    "image_size": None,
    "patch_size": None,
    "channels": None,
    "depths": None,
    "widths": None,
    "bottleneck": False,
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
    "drops_paths": False,
    "vision_layers": None,
    "vision_hidden_size": None,
    "vision_attention_heads": None,
    "vision_intermediate_size": None,
    "vision_activation": None,
    "vision_attention_dropout": 0.0,
    "vision_qkv_bias": None,
    "vision_merge": None,
    "vision_frames": None,
    "vision_window": None,
    "vision_full_layers": (),
    "vision_positions": None,
    "vision_deepstack_layers": (),
    "vision_rotary": False,
    "vision_global_layers": None,
    "vision_tapped_layers": (),
    "vision_newline": False,
    "vision_tiles": None,
    "cross_attention_layers": (),
    "scaled_queries": False,
    "text_type": None,
    "projection_size": None,
    "decoder_layers": None,
    "activation_dropout": 0.0,
    "mel_bins": None,
    "audio_positions": None,
    "experts.count": None,
    "experts.active": None,
    "experts.shared": None,
    "experts.intermediate_size": None,
    "experts.shared_intermediate_size": None,
    "experts.normalized": None,
    "experts.dense_layers": None,
    "experts.groups": None,
    "experts.active_groups": None,
    "experts.latent_size": None,
    "experts.noisy": False,
    "latent_attention.query_rank": None,
    "latent_attention.key_value_rank": None,
    "latent_attention.plain_size": None,
    "latent_attention.rotary_size": None,
    "latent_attention.value_size": None,
    "latent_attention.interleaved": None,
    "linear_attention.key_heads": None,
    "linear_attention.value_heads": None,
    "linear_attention.key_size": None,
    "linear_attention.value_size": None,
    "linear_attention.kernel": None,
    "linear_attention.layers": None,
    "state_space.heads": None,
    "state_space.head_size": None,
    "state_space.state_size": None,
    "state_space.groups": None,
    "state_space.kernel": None,
    "state_space.chunk": None,
    "state_space.layers": None,
    "state_space.feedforward_layers": (),
    "state_space.conv_bias": None,
    "state_space.input_bias": None,
    "state_space.output_bias": None,
    "state_space.norm": None,
    "state_space.step_rank": None,
    "short_convolution.kernel": None,
    "short_convolution.bias": None,
    "short_convolution.layers": None,
    "waveform.widths": None,
    "waveform.kernels": None,
    "waveform.strides": None,
    "waveform.bias": None,
    "waveform.norm": None,
    "waveform.projection_norm": None,
    "waveform.projection_dropout": None,
    "waveform.final_dropout": None,
    "waveform.masks": None,
    "waveform.masked_share": None,
    "waveform.masked_length": None,
    "waveform.least_masks": None,
    "waveform.place_kernel": None,
    "waveform.place_groups": None,
    "sliding_window_start": None,
    "new_decoder_architecture": False,
    "parallel_norms": None,
    "unrotated_layers": (),
    "rope_scaling": None,
    "full_head_size": None,
    "full_key_value_heads": None,
    "keys_as_values": False,
    "layer_input_size": None,
    "layer_input_vocabulary_size": None,
    "key_value_sharing_layers": 0,
    "wide_sharing_layers": False,
    "alternating.states": None,
    "alternating.laurel_rank": None,
    "alternating.sparse_layers": None,
    "unet.value_embeddings": None,
    "unet.mirrored": None,
    "unet.embedding_rows": None,
    "unet.fp32_rotary": None,
    "unet.attention_free": None,
}
"""Fields of a few model types, and what every other type has of them. A dot stands between a mapping and its key."""

Keys = Mapping[str, tuple[str, str]]
"""Key of a `config.json` -> field and kind."""


BOUND = 30.0  # of logits and scores, where a `config.json` is written: whether there is one matters, not which


def field_of(shape: ModelShape, field: str) -> Any:
    """A field of a shape; one with a dot is of its experts, its attention, its state spaces or convolutions."""
    group, dot, name = field.partition(".")
    if not dot:
        return getattr(shape, field)
    inside = getattr(shape, group)
    return getattr(inside, {"count": "routed"}.get(name, name), None)


def tower(model_type: str, shape: ModelShape, keys: Keys) -> dict[str, Any]:
    """A configuration inside of one, as `config.json` writes it."""
    values = {key: field_of(shape, field) for key, (field, _) in keys.items()}
    return {"model_type": model_type, **{key: value for key, value in values.items() if value is not None}}


class Peft(NamedTuple):
    """What adapters sit on where nobody says it, and what a type calls its fused projection.

    Source: peft 0.21.2, utils/constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING and
    TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING; of kinds whose targets are others than LoRA's, those of theirs.
    """

    lora: tuple[str, ...] = ()
    ia3: tuple[str, ...] = ()
    ia3_feedforward: tuple[str, ...] = ()  # those of ia3 that are feedforward
    of_kind: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # other kinds whose targets are not LoRA's: theirs
    norms: tuple[str, ...] = ()  # of LN tuning: TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING
    fused: str | None = None  # the projection that is queries, keys and values
    made_fused: bool = False  # whether other code of the same model has the three in one


class ModelType(NamedTuple):
    """One Transformers model type: its configuration class, its defaults and what cannot be chosen."""

    config: str
    family: str
    tasks: tuple[str, ...]  # the first is the default
    defaults: Mapping[str, Any]  # a callable computes from the fields that are known by then
    fixed: Mapping[str, Any]  # here too
    keys: Keys
    refused: tuple[str, ...] = ()  # switches of config.json that, if true, change the forward pass in an unknown way
    adjust: Callable[[Fields, dict[str, Any]], None] | None = None  # what config.json says in more than a key
    grouped: bool = False  # may have fewer key-value heads than heads
    own_head_size: bool = False  # may have heads of another size than hidden_size / attention_heads
    classes: int = 2  # where nothing says how many: PreTrainedConfig.num_labels, or those of the data that all train on
    contradictions: Callable[[Mapping[str, Any]], list[tuple[str, str]]] | None = None  # fields, and what is wrong
    peft: Peft = Peft()
    scalings: Mapping[str, str] = MappingProxyType({})  # kinds of rotary scaling that its class reads as another
    remote: bool = False  # its code is in the repository of its weights, not in Transformers
    ties_head: bool = False  # Transformers 5 ties the head even where the configuration says not to
    written: Callable[[ModelShape], dict[str, Any]] | None = None  # keys of `config.json` that `keys` does not say
    rotary_given_since: tuple[int, int] = (4, 48)  # the release from which on attention makes no rotary positions

    def fixed_fields(self) -> dict[str, Any]:
        """What cannot be chosen, the neutral fields included."""
        neutral = {key: value for key, value in NEUTRAL.items() if key not in self.defaults}
        return {**neutral, **self.fixed}


class _ModelTypes(Mapping[str, ModelType]):
    """Every model type by name; a family's file is imported when one of its types is asked for.

    Those of runtimes are found by their names, and are not in the list of Transformers' own.
    """

    def __getitem__(self, name: str) -> ModelType:
        module = import_module(f"vramplan.catalog.families.{FAMILY_OF.get(name) or OF_RUNTIMES[name]}")
        found: ModelType = module.TYPES[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(FAMILY_OF)

    def __len__(self) -> int:
        return len(FAMILY_OF)

    def __contains__(self, name: object) -> bool:
        return name in FAMILY_OF or name in OF_RUNTIMES


MODEL_TYPES: Mapping[str, ModelType] = _ModelTypes()


def type_of(family: str) -> str:
    """The model type that a family's name alone stands for."""
    return next(name for name, of in (*FAMILY_OF.items(), *OF_RUNTIMES.items()) if name == family or of == family)


# Defaults that follow from other fields.


def same_heads(fields: Mapping[str, Any]) -> Any:
    """As many key-value heads as heads."""
    return fields["attention_heads"]


def four_times(fields: Mapping[str, Any]) -> Any:
    """A feed-forward layer four times as wide as the model."""
    return 4 * fields["hidden_size"]


def hidden_dropout(fields: Mapping[str, Any]) -> Any:
    """One setting for both dropouts."""
    return fields["hidden_dropout"]


def hidden_size(fields: Mapping[str, Any]) -> Any:
    """Embeddings as wide as the model."""
    return fields["hidden_size"]


def as_many_layers(fields: Mapping[str, Any]) -> Any:
    """A decoder of as many blocks as the encoder."""
    return fields["layers"]


def qkv_bias(fields: Mapping[str, Any]) -> Any:
    """One setting for the biases of several projections."""
    return fields["qkv_bias"]


def intermediate_size(fields: Mapping[str, Any]) -> Any:
    """Experts as wide as the feed-forward layer that they stand for."""
    return fields["intermediate_size"]


# What configurations of several types say in the same way.


ROPE_SCALINGS = ("dynamic", "longrope")
"""Kinds of scaled rotary positions that keep tensors of their own; the others only have other numbers in the same."""


def rotary_parameters(fields: Fields, values: dict[str, Any]) -> None:
    """`rope_parameters` of newer configurations: the rotated share may stand there instead of beside it."""
    inside = fields.fields("rope_parameters")
    if inside is not None and inside.given("partial_rotary_factor"):
        values["partial_rotary_factor"] = inside.number("partial_rotary_factor", minimum=0, maximum=1)
