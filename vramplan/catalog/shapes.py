"""From the fields of a model to its `ModelShape`: the one place for defaults and for what makes no network.

What is absent has the default of the Transformers configuration class of that model type (transformers 5.23.0,
`models/<type>/configuration_<type>.py`). Inline models, profiles and Hugging Face configurations all end here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import (
    BLOCKS,
    COUNT,
    COUNTS,
    FAMILIES,
    FLAG,
    MODEL_TYPES,
    NEUTRAL,
    RATIO,
    ROPE_SCALINGS,
    SHARE,
    TEXT,
    ModelType,
    type_of,
)
from vramplan.catalog.experts import COUNTS as EXPERT_COUNTS
from vramplan.catalog.experts import NULLABLE as LATENT_NULLABLE
from vramplan.catalog.experts import (
    alternating_of,
    defaulted_experts,
    experts_of,
    latent_of,
    linear_of,
    short_convolution_of,
    space_of,
    waveform_of,
    wrong_experts,
    wrong_latent,
    wrong_linear,
    wrong_short_convolution,
    wrong_space,
    wrong_waveform,
)
from vramplan.catalog.fields import nearest
from vramplan.engines import imported
from vramplan.errors import InputError, Problem
from vramplan.values.model import ModelShape

MAX_DIMENSION = 2**31
MAX_LAYERS = 10_000
MAX_PIXELS = 2**16  # of an edge of an image

FIELDS: dict[str, str] = {
    "family": TEXT,
    "transformers_model_type": TEXT,
    "unknown_type": TEXT,
    "task": TEXT,
    "layers": COUNT,
    "hidden_size": COUNT,
    "attention_heads": COUNT,
    "key_value_heads": COUNT,
    "head_size": COUNT,
    "intermediate_size": COUNT,
    "vocabulary_size": COUNT,
    "max_positions": COUNT,
    "tied_embeddings": FLAG,
    "positions": TEXT,
    "activation": TEXT,
    "gated_mlp": FLAG,
    "qkv_bias": FLAG,
    "output_bias": FLAG,
    "mlp_bias": FLAG,
    "token_types": COUNT,
    "embedding_dropout": RATIO,
    "attention_dropout": RATIO,
    "hidden_dropout": RATIO,
    "classes": COUNT,
    "sliding_window": COUNT,
    "qk_norm": FLAG,
    "partial_rotary_factor": SHARE,
    "position_span": COUNT,
    "mean_pooling": FLAG,
    "parallel_residual": FLAG,
    "pre_norm": FLAG,
    "embedding_size": COUNT,
    "attention_softcap": FLAG,
    "logit_softcap": FLAG,
    "clipped_qkv": FLAG,
    "scaled_embeddings": FLAG,
    "sliding_window_pattern": COUNT,
    "image_size": COUNT,
    "patch_size": COUNT,
    "channels": COUNT,
    "depths": COUNTS,
    "widths": COUNTS,
    "bottleneck": FLAG,
    "downsample_in_first_stage": FLAG,
    "downsample_in_bottleneck": FLAG,
    "drops_paths": FLAG,
    "vision_layers": COUNT,
    "vision_hidden_size": COUNT,
    "vision_attention_heads": COUNT,
    "vision_intermediate_size": COUNT,
    "vision_activation": TEXT,
    "vision_attention_dropout": RATIO,
    "vision_qkv_bias": FLAG,
    "vision_merge": COUNT,
    "vision_frames": COUNT,
    "vision_window": COUNT,
    "vision_full_layers": BLOCKS,
    "vision_positions": COUNT,
    "vision_deepstack_layers": BLOCKS,
    "vision_rotary": FLAG,
    "vision_global_layers": COUNT,
    "vision_tapped_layers": BLOCKS,
    "vision_newline": FLAG,
    "vision_tiles": COUNT,
    "cross_attention_layers": BLOCKS,
    "scaled_queries": FLAG,
    "text_type": TEXT,
    "projection_size": COUNT,
    "decoder_layers": COUNT,
    "activation_dropout": RATIO,
    "mel_bins": COUNT,
    "audio_positions": COUNT,
    "experts.count": COUNT,
    "experts.active": COUNT,
    "experts.shared": COUNT,
    "experts.intermediate_size": COUNT,
    "experts.shared_intermediate_size": COUNT,
    "experts.normalized": FLAG,
    "experts.dense_layers": BLOCKS,
    "experts.groups": COUNT,
    "experts.active_groups": COUNT,
    "experts.latent_size": COUNT,
    "experts.noisy": FLAG,
    "latent_attention.query_rank": COUNT,
    "latent_attention.key_value_rank": COUNT,
    "latent_attention.plain_size": COUNT,
    "latent_attention.rotary_size": COUNT,
    "latent_attention.value_size": COUNT,
    "latent_attention.interleaved": FLAG,
    "linear_attention.key_heads": COUNT,
    "linear_attention.value_heads": COUNT,
    "linear_attention.key_size": COUNT,
    "linear_attention.value_size": COUNT,
    "linear_attention.kernel": COUNT,
    "linear_attention.layers": BLOCKS,
    "state_space.heads": COUNT,
    "state_space.head_size": COUNT,
    "state_space.state_size": COUNT,
    "state_space.groups": COUNT,
    "state_space.kernel": COUNT,
    "state_space.chunk": COUNT,
    "state_space.layers": BLOCKS,
    "state_space.feedforward_layers": BLOCKS,
    "state_space.conv_bias": FLAG,
    "state_space.input_bias": FLAG,
    "state_space.output_bias": FLAG,
    "state_space.norm": TEXT,
    "state_space.step_rank": COUNT,
    "short_convolution.kernel": COUNT,
    "short_convolution.bias": FLAG,
    "short_convolution.layers": BLOCKS,
    "waveform.widths": COUNTS,
    "waveform.kernels": COUNTS,
    "waveform.strides": COUNTS,
    "waveform.bias": FLAG,
    "waveform.norm": TEXT,
    "waveform.projection_norm": FLAG,
    "waveform.projection_dropout": RATIO,
    "waveform.final_dropout": RATIO,
    "waveform.masks": FLAG,
    "waveform.masked_share": RATIO,
    "waveform.masked_length": COUNT,
    "waveform.least_masks": COUNT,
    "waveform.place_kernel": COUNT,
    "waveform.place_groups": COUNT,
    "sliding_window_start": COUNT,
    "new_decoder_architecture": FLAG,
    "parallel_norms": COUNT,
    "unrotated_layers": BLOCKS,
    "rope_scaling": TEXT,
    "full_head_size": COUNT,
    "full_key_value_heads": COUNT,
    "keys_as_values": FLAG,
    "layer_input_size": COUNT,
    "layer_input_vocabulary_size": COUNT,
    "key_value_sharing_layers": COUNT,
    "wide_sharing_layers": FLAG,
    "alternating.states": COUNT,
    "alternating.laurel_rank": COUNT,
    "alternating.sparse_layers": COUNT,
    "unet.value_embeddings": COUNT,
    "unet.mirrored": FLAG,
    "unet.embedding_rows": COUNT,
    "unet.fp32_rotary": FLAG,
    "unet.attention_free": BLOCKS,
    "parameters": COUNT,
    "recipe_global_batch_size": COUNT,
    "dtype": TEXT,
}
"""Every modelled field and the kind of its value."""

NULLABLE = ("sliding_window", "layer_input_size", *LATENT_NULLABLE)
"""Fields for which null means that the model has no such thing. Their default is a number."""

SIZE_FIELDS = (
    "layers",
    "hidden_size",
    "attention_heads",
    "key_value_heads",
    "intermediate_size",
    "vocabulary_size",
)
"""The fields whose default is worth telling: each of them moves the answer."""

IMAGE_FIELDS = ("image_size", "patch_size", "channels")
VISION_FIELDS = ("vision_layers", "vision_hidden_size", "vision_attention_heads", "vision_intermediate_size")
"""The same of models that take images."""

AUDIO_FIELDS = ("mel_bins", "audio_positions")

TILE_FIELDS = ("vision_global_layers", "vision_tiles")

STACKS = ("layers", "vision_layers", "vision_global_layers", "decoder_layers")
MOST = {**dict.fromkeys(STACKS, MAX_LAYERS), **dict.fromkeys(IMAGE_FIELDS, MAX_PIXELS)}

WINDOW_FIELDS = ("sliding_window_pattern", "sliding_window_start")

KNOWN_FAMILIES = (
    *("neox", "opt", "phi", "phi3", "gemma", "gemma2", "t5", "vit", "resnet", "mixtral", "falcon", "bloom", "mpt"),
    *("chatglm", "gpt_neox", "gpt_neo", "gptj", "qwen", "gemma3", "olmo2", "starcoder2"),
    *("deepseek_v2", "deepseek_v3", "qwen2_moe", "qwen3_moe", "roberta", "albert", "deberta"),
    *(
        "bart",
        "mt5",
        "clip",
        "swin",
        "convnext",
        "mamba",
        "gpt_oss",
        "xglm",
        "codegen",
        "longformer",
        "segformer",
        "trocr",
    ),
    *("blip-2", "umt5", "wavlm", "beit", "layoutlmv3"),
)
"""Families and model types that people ask for, most of which have no forward pass here."""

DTYPES = ("fp32", "fp16", "bf16")
TASKS = ("lm", "mlm", "cls", "seq2seq", "image", "contrastive", "ctc")
CLASSIFIERS = ("cls", "image")
ACTIVATIONS = ("gelu_new", "gelu", "gelu_pytorch_tanh", "relu", "silu", "quick_gelu", "relu2")
_ACTIVATION_ALIASES = {"swish": "silu"}
_KNOWN_ACTIVATIONS = ("gelu_fast", "gelu_python", "gelu_python_tanh", "gelu_10", "relu6", "mish")


def shape_from_fields(fields: Mapping[str, Any], *, name: str | None = None) -> ModelShape:
    """The shape of the model that `fields` describes; the keys are those of `FIELDS`.

    Values have their Python types; None is the same as absent, but for what is `NULLABLE`, where it means none.
    Raises InputError with a problem per field: contradictions, sizes that make no network, and what is not modelled.
    """
    problems: list[Problem] = []
    model_type = _model_type(fields, problems)
    if model_type is None:
        raise InputError(problems)
    kind = MODEL_TYPES[model_type]
    for key in STACKS:  # before a default makes a list of so many blocks
        if (fields.get(key) or 0) > MAX_LAYERS:
            raise InputError([*problems, Problem(f"{fields[key]} is out of range, 1 to {MAX_LAYERS}", key)])
    values = _with_defaults(fields, kind)
    for key, value in kind.fixed_fields().items():
        fixed = value(values) if callable(value) else value
        given = fields.get(key)
        if given is not None and given != fixed:
            problems.append(_not_modelled(key, given, f"a {model_type} model has {_word(fixed)}"))
        values[key] = fixed
    for key in ("activation", "vision_activation"):
        values[key] = activation = _ACTIVATION_ALIASES.get(values[key], values[key])
        if activation not in (*ACTIVATIONS, kind.fixed.get(key)) and (key == "activation" or activation is not None):
            known = (*ACTIVATIONS, *_KNOWN_ACTIVATIONS)
            hint = None if activation in known else nearest(activation, known)
            problems.append(_not_modelled(key, activation, f"modelled: {', '.join(ACTIVATIONS)}", hint))
    scaling = values["rope_scaling"]
    if scaling is not None and "rope_scaling" in kind.defaults and scaling not in ROPE_SCALINGS:
        why = f"modelled: {', '.join(ROPE_SCALINGS)}; every other kind is made of the same tensors as none"
        problems.append(_not_modelled("rope_scaling", scaling, why, "leave it out"))
    dtype = fields.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        problems.append(_not_modelled("dtype", dtype, f"modelled: {', '.join(DTYPES)}", nearest(dtype, DTYPES)))
    task = fields.get("task") or kind.tasks[0]
    if task not in kind.tasks:
        hint = nearest(task, TASKS) if task not in TASKS else None
        problems.append(_not_modelled("task", task, f"modelled for {model_type}: {', '.join(kind.tasks)}", hint))
    problems += _sizes(values, model_type, kind)
    if not problems:
        problems += [*wrong_experts(values), *wrong_latent(values), *wrong_linear(values), *wrong_space(values)]
        problems += [*wrong_short_convolution(values), *wrong_waveform(values)]
    if problems:
        raise InputError(problems)
    return ModelShape(
        name=name or f"inline {model_type}",
        family=kind.family,
        transformers_model_type=model_type,
        task=task,
        layers=values["layers"],
        hidden_size=values["hidden_size"],
        attention_heads=values["attention_heads"],
        key_value_heads=values["key_value_heads"],
        head_size=values["head_size"],
        intermediate_size=values["intermediate_size"],
        vocabulary_size=values["vocabulary_size"],
        max_positions=values["max_positions"],
        tied_embeddings=values["tied_embeddings"],
        positions=values["positions"],
        activation=values["activation"],
        gated_mlp=values["gated_mlp"],
        qkv_bias=values["qkv_bias"],
        output_bias=values["output_bias"],
        mlp_bias=values["mlp_bias"],
        embedding_dropout=float(values["embedding_dropout"]),
        attention_dropout=float(values["attention_dropout"]),
        hidden_dropout=float(values["hidden_dropout"]),
        token_types=values["token_types"],
        classes=fields.get("classes") or kind.classes,
        sliding_window=values["sliding_window"],
        declared_parameters=fields.get("parameters"),
        recipe_global_batch_size=fields.get("recipe_global_batch_size"),
        dtype=dtype,
        unknown_type=fields.get("unknown_type"),
        **{key: values[key] for key in NEUTRAL if "." not in key},
        experts=experts_of(values),
        latent_attention=latent_of(values),
        linear_attention=linear_of(values),
        state_space=space_of(values),
        short_convolution=short_convolution_of(values),
        waveform=waveform_of(values),
        alternating=alternating_of(values),
        unet=None if values["unet.value_embeddings"] is None else imported("vramplan.catalog.unet:unet_of")(values),
    )


def defaulted_sizes(fields: Mapping[str, Any], shape: ModelShape) -> dict[str, int]:
    """The sizes that `fields` left to the configuration class, with the values that `shape` has for them."""
    derived = {"key_value_heads"} if shape.key_value_heads == shape.attention_heads else set()
    if callable(MODEL_TYPES[shape.transformers_model_type].defaults.get("intermediate_size")):
        derived.add("intermediate_size")
    kind = MODEL_TYPES[shape.transformers_model_type]
    told = (*SIZE_FIELDS, *IMAGE_FIELDS, *VISION_FIELDS, "projection_size")
    own = [key for key in told if key not in derived and key in kind.defaults]
    taken = {key: value for key in own if fields.get(key) is None and (value := getattr(shape, key)) is not None}
    return {**taken, **defaulted_experts(fields, shape, kind.defaults)}


def _model_type(fields: Mapping[str, Any], problems: list[Problem]) -> str | None:
    """The Transformers model type, from `transformers_model_type` or, where that is absent, the family."""
    family, model_type = fields.get("family"), fields.get("transformers_model_type")
    if family is None and model_type is None:
        hint = f"one of {', '.join(FAMILIES)}"
        problems.append(Problem("required key is missing", "family", hint))
        return None
    for key, word in (("transformers_model_type", model_type), ("family", family)):
        if word is not None and word not in MODEL_TYPES and (key != "family" or word not in FAMILIES):
            problems.append(_unknown_type(key, word))
            return None
    chosen = str(model_type or type_of(str(family)))
    if family is not None and model_type is not None and family != model_type:
        expected = MODEL_TYPES[chosen].family
        if family != expected:
            message = f"{family!r} contradicts transformers_model_type {model_type!r}, whose family is {expected!r}"
            problems.append(Problem(message, "family"))
            return None
    return chosen


def _unknown_type(key: str, word: str) -> Problem:
    supported = FAMILIES if key == "family" else tuple(MODEL_TYPES)
    hint = None if word in KNOWN_FAMILIES else nearest(word, (*supported, *KNOWN_FAMILIES))
    return _not_modelled(key, word, f"modelled: {', '.join(supported)}", hint)


def _not_modelled(key: str, value: Any, why: str, hint: str | None = None) -> Problem:
    return Problem(f"{_word(value)} is not modelled ({why})", key, hint)


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = str(value)
    if isinstance(value, tuple):
        text = f"[{', '.join(map(str, value))}]"
    return text if len(text) <= 40 and text.isprintable() else repr(text[:40] + "...")


def _with_defaults(fields: Mapping[str, Any], kind: ModelType) -> dict[str, Any]:
    values: dict[str, Any] = {}
    said = {key: value for key, value in fields.items() if value is not None}
    for key, default in kind.defaults.items():
        given = fields.get(key)
        if given is None and not (key in NULLABLE and key in fields):
            given = default(said | values) if callable(default) else default
        values[key] = given
    values.setdefault("head_size", fields.get("head_size"))
    return values


def _sizes(values: dict[str, Any], model_type: str, kind: ModelType) -> list[Problem]:
    """Check the sizes against each other, and fill in the head size."""
    problems = []
    others = ("max_positions", "head_size", "embedding_size", "projection_size", "decoder_layers")
    more = (*TILE_FIELDS, *AUDIO_FIELDS, *WINDOW_FIELDS, *EXPERT_COUNTS)
    for key in (*SIZE_FIELDS, *IMAGE_FIELDS, *VISION_FIELDS, *others, *more):
        if key in kind.fixed and not callable(kind.fixed[key]):
            continue  # nobody chose it: 0 tokens in the vocabulary of a model of images
        least = 0 if key == "sliding_window_start" else 1
        most = MOST.get(key, MAX_DIMENSION)
        if values[key] is not None and not least <= values[key] <= most:
            problems.append(Problem(f"{values[key]} is out of range, {least} to {most}", key))
    if (values["patch_size"] or 0) > (values["image_size"] or 0):
        message = f"{values['image_size']} is less than the patch_size {values['patch_size']}"
        problems.append(Problem(message, "image_size"))
    problems += _stages(values)
    if problems or not values["attention_heads"]:
        return problems
    hidden, heads, groups = values["hidden_size"], values["attention_heads"], values["key_value_heads"]
    if heads % groups:
        problems.append(
            Problem(f"{heads} attention heads cannot share {groups} key-value heads evenly", "key_value_heads")
        )
    if values["head_size"] is None:
        if hidden % heads:
            hint = "give head_size" if kind.own_head_size else None
            problems.append(Problem(f"{hidden} is not a multiple of the {heads} attention heads", "hidden_size", hint))
        values["head_size"] = max(1, hidden // heads)
    elif not kind.own_head_size and values["head_size"] * heads != hidden:
        message = f"{values['head_size']} is not modelled (a {model_type} model has hidden_size / attention_heads)"
        problems.append(Problem(message, "head_size"))
    if not kind.grouped and groups != heads:
        message = f"{groups} is not modelled (a {model_type} model has as many as attention heads)"
        problems.append(Problem(message, "key_value_heads"))
    width, vision_heads = values["vision_hidden_size"], values["vision_attention_heads"]
    if width is not None and width % vision_heads:
        message = f"{width} is not a multiple of the {vision_heads} attention heads"
        problems.append(Problem(message, "vision_hidden_size"))
    if values["positions"] == "rope" and values["latent_attention.rotary_size"] is None:
        problems += _rotary(values["head_size"], values["partial_rotary_factor"])
    if kind.contradictions is not None:
        problems += [Problem(message, key) for key, message in kind.contradictions(values)]
    return problems


def _stages(values: Mapping[str, Any]) -> list[Problem]:
    """The stages of a convolutional network: a depth and a width for each."""
    depths, widths = values["depths"], values["widths"]
    if depths is None:
        return []
    if len(depths) != len(widths):
        return [Problem(f"{len(widths)} widths for {len(depths)} depths: each stage has one of each", "widths")]
    reduction = imported("vramplan.replay.models.resnet:REDUCTION")
    narrow = next((width for width in widths if values["bottleneck"] and width % reduction), None)
    if narrow is not None:
        return [Problem(f"{narrow} is not a multiple of {reduction}, by which a bottleneck is narrower", "widths")]
    if max(widths) > MAX_DIMENSION:
        return [Problem(f"{max(widths)} is out of range, 1 to {MAX_DIMENSION}", "widths")]
    return []


def _rotary(head_size: int, factor: float) -> list[Problem]:
    """Rotary positions turn pairs of elements, so there must be pairs."""
    rotated = int(head_size * factor)
    if rotated >= 2 and rotated % 2 == 0:
        return []
    if factor == 1:
        return [Problem(f"rotary positions need an even head size, not {head_size}", "head_size")]
    message = f"{factor} of a head of {head_size} elements is {rotated}, and rotary positions turn pairs"
    return [Problem(message, "partial_rotary_factor")]
