"""A Hugging Face `config.json` -> `ModelShape`. The file is read, never executed, and nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vramplan.catalog import document
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.fields import Fields, Sink, nearest, shown
from vramplan.catalog.shapes import COUNT, FLAG, KNOWN_FAMILIES, RATIO, TEXT, defaulted_sizes, shape_from_fields
from vramplan.errors import InputError
from vramplan.spec import Assumption, ModelShape

_LLAMA = {
    "num_hidden_layers": ("layers", COUNT),
    "hidden_size": ("hidden_size", COUNT),
    "num_attention_heads": ("attention_heads", COUNT),
    "num_key_value_heads": ("key_value_heads", COUNT),
    "head_dim": ("head_size", COUNT),
    "intermediate_size": ("intermediate_size", COUNT),
    "vocab_size": ("vocabulary_size", COUNT),
    "max_position_embeddings": ("max_positions", COUNT),
    "tie_word_embeddings": ("tied_embeddings", FLAG),
    "hidden_act": ("activation", TEXT),
    "attention_dropout": ("attention_dropout", RATIO),
}
_KEYS: dict[str, dict[str, tuple[str, str]]] = {
    "gpt2": {
        "n_layer": ("layers", COUNT),
        "n_embd": ("hidden_size", COUNT),
        "n_head": ("attention_heads", COUNT),
        "n_inner": ("intermediate_size", COUNT),
        "vocab_size": ("vocabulary_size", COUNT),
        "n_positions": ("max_positions", COUNT),
        "tie_word_embeddings": ("tied_embeddings", FLAG),
        "activation_function": ("activation", TEXT),
        "embd_pdrop": ("embedding_dropout", RATIO),
        "attn_pdrop": ("attention_dropout", RATIO),
        "resid_pdrop": ("hidden_dropout", RATIO),
        # the names of the other classes are accepted by GPT2Config too (its attribute_map)
        "num_hidden_layers": ("layers", COUNT),
        "hidden_size": ("hidden_size", COUNT),
        "num_attention_heads": ("attention_heads", COUNT),
        "max_position_embeddings": ("max_positions", COUNT),
    },
    "llama": {**_LLAMA, "attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)},
    "mistral": {**_LLAMA, "sliding_window": ("sliding_window", COUNT)},
    "qwen2": {**_LLAMA, "sliding_window": ("sliding_window", COUNT)},
    "bert": {
        "num_hidden_layers": ("layers", COUNT),
        "hidden_size": ("hidden_size", COUNT),
        "num_attention_heads": ("attention_heads", COUNT),
        "intermediate_size": ("intermediate_size", COUNT),
        "vocab_size": ("vocabulary_size", COUNT),
        "max_position_embeddings": ("max_positions", COUNT),
        "type_vocab_size": ("token_types", COUNT),
        "tie_word_embeddings": ("tied_embeddings", FLAG),
        "hidden_act": ("activation", TEXT),
        "attention_probs_dropout_prob": ("attention_dropout", RATIO),
        "hidden_dropout_prob": ("hidden_dropout", RATIO),
    },
}
# switches that change the forward pass in a way that the engine does not know
_REFUSED_FLAGS = {
    "gpt2": ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"),
    "bert": ("is_decoder", "add_cross_attention"),
}
# heads by the end of the architecture's name; empty: of the headless class, so that the default is taken
_HEADS = {
    "ForSequenceClassification": "cls",
    "ForMaskedLM": "mlm",
    "ForPreTraining": "mlm",
    "LMHeadModel": "lm",
    "ForCausalLM": "lm",
    "Model": "",
}


def read_hf_config(path: Path | str) -> tuple[ModelShape, tuple[Assumption, ...]]:
    """The shape in a `config.json`, or in the one of a folder, and the sizes that it leaves to the class.

    Raises InputError with every problem: values of the wrong type, model types and switches that are not modelled. Keys
    that do not touch the shape are ignored, as Transformers itself does.
    """
    file = Path(path)
    if os.path.isdir(file):
        file = file / "config.json"
    loaded = document.load(file)
    return shape_of_config(Fields(loaded.root, Sink(loaded.file, loaded.problems)), default_name=name_of(file))


def shape_of_config(fields: Fields, *, default_name: str) -> tuple[ModelShape, tuple[Assumption, ...]]:
    """The same for the root of a file that is already open."""
    model_type = fields.text("model_type")
    if model_type is None and not fields.given("model_type"):
        fields.problem("model_type", "required key is missing", hint="is this a Hugging Face config.json?")
    elif model_type is not None and model_type not in _KEYS:
        hint = None if model_type in KNOWN_FAMILIES else nearest(model_type, (*_KEYS, *KNOWN_FAMILIES))
        fields.refuse("model_type", f"{shown(model_type)} is not modelled (modelled: {', '.join(_KEYS)})", hint=hint)
    if model_type is None or model_type not in _KEYS:
        fields.sink.raise_all()
        raise AssertionError  # unreachable: one of the two was noted
    keys = _KEYS[model_type]
    values: dict[str, Any] = {"transformers_model_type": model_type}
    for key, (field, kind) in keys.items():
        if fields.given(key):
            values[field] = read_value(fields, key, kind)
    _type_specific(fields, model_type, values)
    values["task"], assumptions = _task(fields, model_type)
    if values["task"] == "cls":
        values["classes"] = _classes(fields)
    _refuse_switches(fields, model_type)
    origin = fields.node_of("_name_or_path")
    name = origin.text.rstrip("/").rpartition("/")[2] if isinstance(origin, document.Scalar) else ""
    fields.sink.raise_problems()
    try:
        shape = shape_from_fields(values, name=name or default_name)
    except InputError as error:
        written = {field: key for key, (field, _) in keys.items() if fields.given(key)} | {"task": "architectures"}
        for problem in error.problems:
            fields.refuse(written.get(problem.key or "", problem.key), problem.message, hint=problem.hint)
        fields.sink.raise_all()
        raise
    fields.sink.raise_all()
    config = MODEL_TYPES[model_type].config
    sizes = (
        Assumption(f"model.{key}", value, f"the default of {config}")
        for key, value in defaulted_sizes(values, shape).items()
    )
    return shape, (*assumptions, *sizes)


def read_value(fields: Fields, key: str, kind: str) -> Any:
    """One value of the kinds of `shapes.FIELDS`; None with a note where it is wrong."""
    if kind == COUNT:
        return fields.integer(key, minimum=0 if key in {"token_types", "sliding_window"} else 1)
    if kind == RATIO:
        return fields.number(key, minimum=0, below=1)
    if kind == FLAG:
        return fields.boolean(key)
    return fields.text(key)


def _type_specific(fields: Fields, model_type: str, values: dict[str, Any]) -> None:
    if fields.present("num_key_value_heads") and not fields.given("num_key_value_heads"):
        # null, unlike an absent key, stands for as many as there are heads
        values["key_value_heads"] = values.get("attention_heads") or MODEL_TYPES[model_type].defaults["attention_heads"]
    if model_type == "llama":
        values["output_bias"] = values.get("qkv_bias")  # attention_bias: of all four projections
        if (fields.integer("pretraining_tp") or 1) > 1:
            fields.refuse(
                "pretraining_tp", "sliced projections are not modelled", hint="set it to 1: it trains the same"
            )
    if model_type == "mistral" and fields.present("sliding_window") and not fields.given("sliding_window"):
        values["sliding_window"] = None
    if model_type == "qwen2":
        used = fields.boolean("use_sliding_window")
        values["sliding_window"] = values.get("sliding_window", 4096) if used else None
    if model_type == "bert":
        position = fields.text("position_embedding_type")
        if position not in {None, "absolute"}:
            fields.refuse("position_embedding_type", f"{shown(position)} is not modelled (modelled: absolute)")


def _refuse_switches(fields: Fields, model_type: str) -> None:
    for key in _REFUSED_FLAGS.get(model_type, ()):
        if fields.boolean(key):
            fields.refuse(key, "true is not modelled")
    if fields.given("quantization_config"):
        fields.refuse("quantization_config", "quantised weights are not modelled")


def _task(fields: Fields, model_type: str) -> tuple[str, tuple[Assumption, ...]]:
    default = MODEL_TYPES[model_type].tasks[0]
    names = fields.texts("architectures") if fields.given("architectures") else None
    if not names:
        return default, ()
    for ending, task in _HEADS.items():
        if names[0].endswith(ending) and (ending != "Model" or not names[0].endswith("HeadsModel")):
            if ending == "ForPreTraining":
                why = f"{names[0]} has a next-sentence head too, which is left out"
                return "mlm", (Assumption("model.task", "mlm", why),)
            return task or default, ()
    fields.refuse(
        "architectures", f"the head of {shown(names[0])} is not modelled", hint=f"modelled: {', '.join(_HEADS)}"
    )
    return default, ()


def _classes(fields: Fields) -> int:
    if fields.given("id2label"):
        labels = fields.fields("id2label")
        return len(labels.names) if labels is not None else 2
    return fields.integer("num_labels") or 2


def name_of(file: Path) -> str:
    """What to call a model that does not say: the folder's name for the usual `MODEL/config.json`, else the file's."""
    if file.stem != "config":
        return file.stem
    return file.absolute().parent.name or "config"
