"""The norms of which LN tuning trains copies: PEFT's own of a model type, or those that a job names."""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.catalog.fields import Fields, nearest, shown
from vramplan.job.read import RawJob
from vramplan.replay.models.part_names import NORMS
from vramplan.replay.techniques.adapters import is_end
from vramplan.replay.techniques.trained import Names
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

PRE_NORM = ("input_layernorm", "post_attention_layernorm")
BOTH_ENDS = (*PRE_NORM, "pre_feedforward_layernorm", "post_feedforward_layernorm", "norm")
OF_T5 = ("layer_norm", "final_layer_norm")
OWN: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "mistral", "gemma"), (*PRE_NORM, "norm")),
    **dict.fromkeys(("bloom", "falcon"), (*PRE_NORM, "ln_f")),
    **dict.fromkeys(("gemma2", "gemma3_text"), BOTH_ENDS),
    **dict.fromkeys(("qwen2", "qwen3"), ("post_attention_layernorm",)),
    "t5": OF_T5,
    "mt5": OF_T5,
    "bart": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    "gpt2": ("ln_1", "ln_2", "ln_f"),
    "gptj": ("ln_1", "ln_f"),
    "phi": ("input_layernorm", "final_layernorm"),
}
"""Source: peft 0.21.2, utils/constants.py, TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING."""


def targets_of(raw: RawJob, fields: Fields, model: ModelShape, names: Names, told: list[Assumption]) -> tuple[str, ...]:
    """The targets, each of which names a norm; PEFT passes over those of its own that name none."""
    norms = [".".join(path) for path in names.paths if NORMS in path]
    known = tuple(dict.fromkeys(name.rpartition(".")[2] for name in norms))
    model_type, given = model.transformers_model_type, raw.adapter_targets
    hint = "known: " + ", ".join(known)
    if model.published_family is not None or model.engine is not None:
        fields.refuse("kind", "ln-tuning is PEFT's, over models of Transformers", hint="runtime: transformers")
        return ()
    if given is None:
        own = tuple(word for word in OWN.get(model_type, ()) if any(is_end(name, (word,)) for name in norms))
        if not own:
            fields.refuse("targets", f"is missing: PEFT has no norms of its own for {model_type}", hint=hint)
        else:
            told.append(Assumption("adapter.targets", list(own), f"PEFT's own for {model_type}"))
        return own
    for word in given:
        if not any(is_end(name, (word,)) for name in norms):
            near = nearest(word, known)
            fields.refuse(
                "targets", f"{shown(word)} names no norm of {model.name}", hint=f"{near} {hint}" if near else hint
            )
    return tuple(given)
