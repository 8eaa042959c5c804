"""The model of a job as Transformers builds it, at random weights."""

from __future__ import annotations

import json
from typing import Any

from vramplan.catalog import document
from vramplan.catalog.config_classes import MODEL_TYPES, field_of
from vramplan.catalog.fields import Fields, Sink
from vramplan.catalog.hf_config import shape_of_config
from vramplan.errors import UsageError
from vramplan.measure.configurations import more_keys
from vramplan.replay.models.capable import scores_text
from vramplan.values.job import ResolvedJob
from vramplan.values.model import ModelShape

HEADS = {
    "lm": "CausalLM",
    "mlm": "MaskedLM",
    "cls": "SequenceClassification",
    "image": "ImageClassification",
    "seq2seq": "Seq2SeqLM",
    "ctc": "CTC",
}
"""The tasks that are run, and how the class of Transformers with that head is called."""

_NULL_SAYS = ("sliding_window",)  # null is a value of its own, not the default
_UNCOMPARED = (
    *("name", "declared_parameters", "published_family", "engine", "unknown_type"),
    *("recipe_global_batch_size", "dtype"),  # of the published training and of its checkpoint
)
_DROPOUTS = (
    *("embedding_dropout", "attention_dropout", "hidden_dropout", "activation_dropout"),
    "vision_attention_dropout",
)


def configuration(job: ResolvedJob) -> Any:
    """The configuration object of the model. Raises UsageError if it cannot say what the shape says."""
    import transformers

    shape = job.model
    _check_release(job, transformers.__version__)
    dropped = with_dropout(job)
    kind = MODEL_TYPES[shape.transformers_model_type]
    given: dict[str, Any] = {}
    for key, (field, _) in kind.keys.items():
        value = field_of(dropped, field)
        if value is not None or key in _NULL_SAYS:
            given[key] = list(value) if isinstance(value, tuple) else value
    if shape.transformers_model_type.startswith("qwen"):
        given["use_sliding_window"] = shape.sliding_window is not None
    given |= more_keys(dropped)  # those of a configuration inside too
    if shape.task in ("cls", "image"):
        given["num_labels"] = shape.classes
    config = transformers.AutoConfig.for_model(shape.transformers_model_type, **given)
    for one in (config, getattr(config, "text_config", None)):
        if one is not None:
            one.use_cache = job.use_cache
    found = _auto(shape)._model_mapping[type(config)]
    model = found[0] if isinstance(found, tuple) else found  # of several the first is built
    config.architectures = [model.__name__]
    if shape.waveform is not None:
        config.layerdrop = 0.0  # of a step that leaves out no block
    _check(config, shape if job.dropout is None else shape.with_dropout(job.dropout), job.dropout is not None)
    said = getattr(config, "text_config", config)
    padding = getattr(said, "pad_token_id", None)
    if shape.vocabulary_size and (padding is None or padding >= shape.vocabulary_size):
        said.pad_token_id = 0  # the default of the class is a token of its own vocabulary
    return config


def _check_release(job: ResolvedJob, installed: str) -> None:
    """Raises UsageError if another release of Transformers is installed than the job names, or has other experts."""
    experts, asked = job.model.experts, job.transformers_version
    if asked is not None and installed.split(".")[:2] != asked.split("."):
        said = f"{asked} is another release than that of Transformers {installed}, which is installed"
        raise UsageError(said, key="transformers_version", hint=f"pip install 'transformers=={asked}.*'")
    if experts is None or job.model.engine is not None:
        return
    release = tuple(int(part) for part in installed.split(".")[:2])
    if experts.separate != (release < job.runtime.stacked_experts_since):
        said = f"Transformers {installed} is installed, whose experts are other code than those of the job"
        raise UsageError(said, key="transformers_version", hint=f'"{release[0]}.{release[1]}"')


def with_dropout(job: ResolvedJob) -> ModelShape:
    """The model with the dropout that the job asks for, wherever its code has some."""
    asked: dict[str, Any] = {} if job.dropout is None else dict.fromkeys(_DROPOUTS, job.dropout)
    shape = job.model._replace(**asked)
    return shape if job.dropout is None else shape.with_dropout(job.dropout)


def build(job: ResolvedJob, config: Any, dtype: Any = None) -> Any:
    """The model of the configuration, on the device that is the default: its weights in `dtype`, or in fp32."""
    how: dict[str, Any] = {"attn_implementation": "eager" if job.attention == "eager" else "sdpa"}
    if job.attention != "eager" and scores_text(job.model):
        how = {"attn_implementation": {"": "sdpa", "text_config": "eager", "vision_config": "sdpa"}}
    if not job.model.attention_heads:
        how = {}  # convolutions alone
    return _auto(job.model).from_config(config, **how, **({} if dtype is None else {"dtype": dtype}))


def tie(job: ResolvedJob, model: Any) -> None:
    """Tie the weights that are one. A head of T5 that is none of them Transformers 5 ties too; before it did not."""
    import torch

    ends = [] if job.adapter is None or not job.model.tied_embeddings else _ends_of(model)
    bare = [_without_adapter(end) for end in ends]
    if any(one is not end for one, end in zip(bare, ends, strict=True)):  # PEFT's copies have come apart, these not
        table, head = bare
        head.weight = table.weight
        for name, other in (getattr(model.get_base_model(), "_tied_weights_keys", None) or {}).items():
            if name.endswith(".bias"):
                head.bias = model.get_base_model().get_parameter(other)
        return
    model.tie_weights()
    if MODEL_TYPES[job.model.transformers_model_type].ties_head and not job.model.tied_embeddings:
        tied = model.lm_head.weight
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(tied), requires_grad=tied.requires_grad)


def _without_adapter(module: Any) -> Any:
    """The module that PEFT has put another around."""
    module = getattr(module, "original_module", module)
    return getattr(module, "base_layer", module)


def _ends_of(model: Any) -> list[Any]:
    """The table of the embeddings, and the head where there is one."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    return [] if None in ends else ends


def _auto(shape: ModelShape) -> Any:
    import transformers

    if shape.task == "contrastive":
        return transformers.AutoModel
    if shape.mel_bins is not None:
        return transformers.AutoModelForSpeechSeq2Seq
    both = shape.takes_images and shape.takes_text
    if both or (shape.task == "lm" and is_kept_with_images(shape.transformers_model_type)):
        return transformers.AutoModelForImageTextToText
    return getattr(transformers, f"AutoModelFor{HEADS[shape.task]}")


def is_kept_with_images(model_type: str) -> bool:
    """Whether Transformers finds a language model under the name of those with images alone, as Mistral Small 4."""
    from transformers.models.auto import modeling_auto as auto

    both = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return model_type in both and model_type not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _check(config: Any, shape: ModelShape, dropout_given: bool) -> None:
    """Read the configuration as if it were a `config.json`: it must be the shape that was asked for."""
    root = document.from_value(json.loads(config.to_json_string(use_diff=False)))
    assert isinstance(root, document.Mapping)
    back, _ = shape_of_config(Fields(root, Sink(None)), default_name=shape.name)
    if MODEL_TYPES[shape.transformers_model_type].ties_head:
        back = back._replace(tied_embeddings=shape.tied_embeddings)
    if shape.experts is not None:
        shape = shape._replace(experts=shape.experts._replace(separate=False))  # which no configuration says
    free = {*_UNCOMPARED, *(_DROPOUTS if dropout_given else ())}
    if shape.any_image_size:
        free.add("image_size")  # it is the job's, not the configuration's
    if not shape.cross_attention_layers:
        free.add("vision_tiles")  # the processor says it, not the configuration
    if shape.sliding_window is None:
        free.add("sliding_window_start")  # no block has a window
    if shape.sliding_window_pattern is not None and shape.sliding_window_pattern > shape.layers:
        free.add("sliding_window_pattern")  # every block has one
    for field, value in shape._asdict().items():
        if field not in free and getattr(back, field) != value:
            said = f"{config.__class__.__name__} cannot say {field} {value} (it makes {getattr(back, field)} of it)"
            raise UsageError(said, key="model", hint="measure a model of Transformers")
