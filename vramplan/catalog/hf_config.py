"""A Hugging Face `config.json` -> `ModelShape`. The file is read, never executed, and nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vramplan.catalog import document
from vramplan.catalog.config_classes import (
    BLOCKS,
    COUNT,
    COUNTS,
    FLAG,
    MODEL_TYPES,
    RATIO,
    ROPE_SCALINGS,
    SHARE,
    Keys,
)
from vramplan.catalog.fields import Fields, Sink, one_line, shown
from vramplan.catalog.reading import once
from vramplan.catalog.shapes import (
    CLASSIFIERS,
    MAX_DIMENSION,
    MOST,
    defaulted_sizes,
    shape_from_fields,
)
from vramplan.engines import imported
from vramplan.errors import InputError
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

# heads by the end of the architecture's name; empty: of the headless class, so that the default is taken
_HEADS = {
    "ForSequenceClassification": "cls",
    "ForMaskedLM": "mlm",
    "ForImageClassification": "image",
    "ForPreTraining": "mlm",
    "T5WithLMHeadModel": "seq2seq",
    "LMHeadModel": "lm",
    "ForCausalLM": "lm",
    "ForCTC": "ctc",
    "ForConditionalGeneration": "",  # of several tasks: the type has one
    "Model": "",
}

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "half": "fp16", "float": "fp32"}
"""Names of torch for the element types of a checkpoint; another one leaves it unknown."""

_FROM_ZERO = (
    *("token_types", "sliding_window", "sliding_window_start", "max_window_layers", "shared"),
    *("key_value_sharing_layers", "sparse_layers", "moe_num_shared_experts", "least_masks"),
)


def read_hf_config(path: Path | str) -> tuple[ModelShape, tuple[Assumption, ...]]:
    """The shape in a `config.json`, or in the one of a folder, and the sizes that it leaves to the class.

    Raises InputError with every problem: values of the wrong type, model types and switches that are not modelled. Keys
    that do not touch the shape are ignored, as Transformers itself does.
    """
    file = Path(path)
    if os.path.isdir(file):
        file = file / "config.json"
    return shape_of_config(open_config(file), default_name=name_of(file))


def open_config(file: Path) -> Fields:
    """The root of the file of a model, whichever kind of file it is. Raises InputError."""
    loaded = _loaded(file)
    return Fields(loaded.root, Sink(loaded.file, loaded.problems))


@once
def _loaded(file: Path | str) -> document.Document:
    return document.load(file)


def shape_of_config(fields: Fields, *, default_name: str) -> tuple[ModelShape, tuple[Assumption, ...]]:
    """The same for the root of a file that is already open."""
    model_type = fields.text("model_type")
    if model_type is None and not fields.given("model_type"):
        fields.problem("model_type", "required key is missing", hint="is this a Hugging Face config.json?")
    elif model_type is not None and model_type not in MODEL_TYPES:
        return _shape_of_unknown(fields, model_type, default_name)
    if model_type is None:
        fields.sink.raise_all()
        raise AssertionError  # unreachable: one of the two was noted
    kind = MODEL_TYPES[model_type]
    keys = kind.keys
    values: dict[str, Any] = {"transformers_model_type": model_type}
    for key, (field, of) in keys.items():
        if fields.given(key):
            values[field] = read_value(fields, key, of)
    if fields.present("num_key_value_heads") and not fields.given("num_key_value_heads"):
        # null, unlike an absent key, stands for as many as there are heads
        values["key_value_heads"] = values.get("attention_heads") or kind.defaults["attention_heads"]
    _refuse_sizes(fields, values, keys)  # before anything is listed block by block
    if kind.adjust is not None:
        kind.adjust(fields, values)
    scaling = rope_scaling_in(fields, model_type)
    if "rope_scaling" in kind.defaults:
        values["rope_scaling"] = scaling or values.get("rope_scaling")  # of a configuration inside
    elif scaling is not None and kind.fixed.get("positions") == "rope":
        fields.refuse("rope_scaling", f"{scaling} is not modelled for {model_type}")
    values["task"], assumptions = _task(fields, model_type)
    if values["task"] in CLASSIFIERS:
        values["classes"] = _classes(fields)
    values["dtype"] = _dtype(fields)
    _refuse_switches(fields, kind.refused)
    assumptions = (*assumptions, *_written(fields, values))
    name = _origin(fields)
    fields.sink.raise_problems()
    try:
        shape = shape_from_fields(values, name=one_line(name or default_name))
    except InputError as error:
        written = {field: key for key, (field, _) in keys.items() if fields.given(key)} | {"task": "architectures"}
        for problem in error.problems:
            fields.refuse(written.get(problem.key or "", problem.key), problem.message, hint=problem.hint)
        fields.sink.raise_all()
        raise
    fields.sink.raise_all()
    sizes = (
        Assumption(f"model.{key}", value, f"the default of {kind.config}")
        for key, value in defaulted_sizes(values, shape).items()
    )
    return shape, (*assumptions, *sizes)


def _shape_of_unknown(fields: Fields, model_type: str, default_name: str) -> tuple[ModelShape, tuple[Assumption, ...]]:
    """The shape of a model type that is not modelled, by the usual keys of a decoder, which is told first."""
    values, told = imported("vramplan.catalog.generic:Generic")(fields, model_type).read()
    _refuse_switches(fields, ())
    values["dtype"] = _dtype(fields)
    told = (*told, *_written(fields, values))
    fields.sink.raise_all()
    values["unknown_type"] = model_type
    try:
        shape = shape_from_fields(values, name=one_line(_origin(fields) or default_name))
    except InputError as error:
        for problem in error.problems:
            fields.refuse(problem.key, problem.message, hint=problem.hint)
        fields.sink.raise_all()
        raise
    basis = f"{shown(model_type)} is not modelled: its usual keys are answered with the blocks of"
    stands_in = shape.transformers_model_type
    return shape, (Assumption("model.transformers_model_type", stands_in, f"{basis} {stands_in}"), *told)


def _origin(fields: Fields) -> str:
    """The name that the file gives the model; empty where it gives none."""
    origin = fields.node_of("_name_or_path")
    return origin.text.strip().rstrip("/").rpartition("/")[2].strip() if isinstance(origin, document.Scalar) else ""


def read_value(fields: Fields, key: str, kind: str) -> Any:
    """One value of the kinds of `shapes.FIELDS`; None with a note where it is wrong."""
    if kind == COUNT:
        return fields.integer(key, minimum=0 if key in _FROM_ZERO else 1)
    if kind == COUNTS:
        return fields.integers(key)
    if kind == RATIO:
        return fields.number(key, minimum=0, below=1)
    if kind == SHARE:
        return fields.number(key, minimum=0, maximum=1)
    if kind == FLAG:
        return fields.boolean(key)
    if kind == BLOCKS:
        return _blocks(fields, key)
    return fields.text(key)


def _blocks(fields: Fields, key: str) -> tuple[int, ...] | None:
    """A list of block numbers, each once and in order."""
    value = fields.value(key)
    if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
        fields.problem(key, "expected a list of block numbers, from 0", hint="[0, 1, 2]")
        return None
    return tuple(sorted(set(value)))


def rope_scaling_in(fields: Fields, model_type: str) -> str | None:
    """The kind of scaled rotary positions, where it is one that keeps tensors of its own."""
    for key in ("rope_parameters", "rope_scaling"):
        inside = fields.fields(key) if fields.given(key) else None
        if inside is None:
            continue
        named = "rope_type" if inside.given("rope_type") else "type"
        kind = inside.text(named) if inside.given(named) else None
        kind = MODEL_TYPES[model_type].scalings.get(kind or "", kind)
        if kind in ROPE_SCALINGS:
            return kind
    return None


def _refuse_sizes(fields: Fields, values: dict[str, Any], keys: Keys) -> None:
    """Refuse numbers that no network has. Raises InputError with all that was found so far."""
    for key, (field, of) in keys.items():
        value, most = values.get(field), MOST.get(field, MAX_DIMENSION)
        if of == COUNT and value is not None and value > most:
            fields.refuse(key, f"{value} is out of range, 1 to {most}")
    if fields.sink.refusals:
        fields.sink.raise_all()


def _refuse_switches(fields: Fields, switches: tuple[str, ...]) -> None:
    for key in switches:
        if fields.boolean(key):
            fields.refuse(key, "true is not modelled")


def _written(fields: Fields, values: dict[str, Any]) -> tuple[Assumption, ...]:
    """What the file says of quantized weights; those that are dequantized have 16 bits where it names no other type."""
    if not fields.given("quantization_config"):
        return ()
    found = imported("vramplan.catalog.written:by_config")(fields)
    if found is None:
        return ()
    values["dtype"] = values["dtype"] or "bf16"
    if found.quantization is None:
        return (Assumption("model.dtype", values["dtype"], found.why),)
    return tuple(found.told())


def _task(fields: Fields, model_type: str) -> tuple[str, tuple[Assumption, ...]]:
    default = MODEL_TYPES[model_type].tasks[0]
    names = fields.texts("architectures") if fields.given("architectures") else None
    if not names:
        return default, ()
    for ending, task in _HEADS.items():
        if names[0].endswith(ending) and (ending != "Model" or not names[0].endswith("HeadsModel")):
            if task not in MODEL_TYPES[model_type].tasks and ending == "ForPreTraining":
                return default, ()
            if ending == "ForPreTraining":
                why = f"{names[0]} has a next-sentence head too, which is left out"
                return "mlm", (Assumption("model.task", "mlm", why),)
            return task or default, ()
    fields.refuse(
        "architectures", f"the head of {shown(names[0])} is not modelled", hint=f"modelled: {', '.join(_HEADS)}"
    )
    return default, ()


def _dtype(fields: Fields) -> str | None:
    """The element type of the checkpoint: `dtype`, which releases before Transformers 5 called `torch_dtype`."""
    key = next((key for key in ("dtype", "torch_dtype") if fields.given(key)), None)
    name = None if key is None else fields.text(key)
    return None if name is None else _DTYPES.get(name.removeprefix("torch."))


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
