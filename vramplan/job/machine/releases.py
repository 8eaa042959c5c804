"""The release of Transformers whose code a model runs: what of older releases is modelled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.fields import shown
from vramplan.replay.models.capable import knows_old_code, own_linear, repeats_keys_itself, separates_experts
from vramplan.replay.techniques.adapters import GPTQ
from vramplan.values.model import OldCode

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import ResolvedJob
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape

KEY = "transformers_version"
OLDEST = (4, 36)  # whose modeling_mixtral.py is the first
TRACED = (4, 48)  # the oldest that rows were traced with
RELEASE = re.compile(r"v?(\d{1,2})(?:\.(\d{1,3}))?(?:\.\w+)*", re.ASCII)  # also of 4.58.0.dev0


def as_released(resolver: Resolver, model: ModelShape, runtime: Runtime) -> ModelShape:
    """The model as the release that the job names computes it, which is settled in the raw job.

    What differs in attention and loss is noted in the resolver, as `old_code`.
    """
    raw, fields = resolver.raw, resolver.fields
    assert raw.transformers_version is not None
    match = RELEASE.fullmatch(raw.transformers_version.strip())
    if match is None:
        message = f"{shown(raw.transformers_version)} is no release of Transformers"
        fields.problem(KEY, message, hint='two numbers, as in "4.57"')
        return model
    release = int(match[1]), int(match[2] or 0)
    raw.transformers_version = f"{release[0]}.{release[1]}"
    if model.engine is not None:
        message = f"{raw.transformers_version} says nothing of {model.name} in the code of {model.engine}"
        fields.refuse(KEY, message, hint="leave it out")
        return model
    if release < OLDEST:
        fields.refuse(KEY, f"{raw.transformers_version} is not modelled", hint="4.36 or later; or leave it out")
        return model
    told: list[str] = []
    if knows_old_code(model.family) and model.task == "lm":
        resolver.old_code = _old_code(model, runtime, release)
        told += [words for name, words in TOLD.items() if getattr(resolver.old_code, name)]
    elif release < runtime.stacked_experts_since:
        told.append(f"what older releases of {model.code} do otherwise is not modelled: it is today's code")
    own_layers = own_linear(model.family)
    if own_layers is not None and release < runtime.exact_layers_since:
        one_table = release < runtime.stacked_experts_since
        resolver.old_code = resolver.old_code._replace(quantizes_own_layers=True, one_table=one_table)
        told += [f"bitsandbytes quantizes {own_layers}"] if raw.quantization not in (None, GPTQ) else []
    if model.experts is not None and release < runtime.stacked_experts_since:
        model = _with_modules(resolver, model)
        told.append("each expert is a module, and gets the mean of the tokens")
        if raw.quantized_experts:
            raw.quantized_experts = None
            told.append("quantized_experts changes nothing, as experts are linear layers like others")
    told = told or ["today's code, as far as it is modelled"]
    resolver.assume(KEY, raw.transformers_version, "; ".join(told))
    return model


TOLD = {
    "casts_logits": "forward returns its logits in fp32",
    "shifts_logits": "the loss copies the logits of all tokens but the last",
    "repeats_keys": "sdpa is given repeated keys and values",
    "copies_heads": "sdpa is given copies of queries, keys and values",
}


def _old_code(model: ModelShape, runtime: Runtime, release: tuple[int, int]) -> OldCode:
    """What an older release computes otherwise.

    Attention that made cosines and sines by itself made them in the type of its values, which under autocast is another
    than that of the hidden states where weights are in fp32.
    Source: transformers 4.42.4 to 4.47.1, models/*/modeling_*.py, `self.rotary_emb(value_states, position_ids)` and
    `position_embeddings = self.rotary_emb(hidden_states, position_ids)`.
    """
    own = repeats_keys_itself(model) and release < runtime.stacked_experts_since
    return OldCode(
        repeats_keys=own or release < runtime.grouped_attention_since,
        copies_heads=not own and runtime.one_attention_since <= release < runtime.strided_attention_since,
        shifts_logits=release < runtime.shifted_labels_since,
        casts_logits=release < runtime.logits_returned_since,
        one_table=release < runtime.stacked_experts_since,
        one_mask=own or release < runtime.batched_masks_since,
        own_rotary=release < MODEL_TYPES[model.transformers_model_type].rotary_given_since,
    )


def _with_modules(resolver: Resolver, model: ModelShape) -> ModelShape:
    """A mixture whose experts are modules of linear layers."""
    raw, fields = resolver.raw, resolver.fields
    assert model.experts is not None
    hint = "5.0 or later; or leave it out"
    obstacles = {"compile": bool(raw.compile), "a model that devices split": raw.split is not None}
    found = [name for name, given in obstacles.items() if given]
    if not separates_experts(model.family):
        message = f"{raw.transformers_version} has other code of the experts of {model.name}, which is not modelled"
        fields.refuse(KEY, message, hint=hint)
        return model
    if found:
        fields.refuse(KEY, f"{raw.transformers_version} is not modelled with {' and '.join(found)}", hint=hint)
    return model._replace(experts=model.experts._replace(separate=True))


def tell_whole(resolver: Resolver, model: ModelShape) -> None:
    """Say what stays as it is where the linear layers are quantized by bitsandbytes, and what else there is."""
    if model.engine is None and resolver.raw.quantization != GPTQ:
        _tell_own_layers(resolver, model)
        _tell_stacked(resolver, model)


def _tell_own_layers(resolver: Resolver, model: ModelShape) -> None:
    raw, own_layers = resolver.raw, own_linear(model.family)
    if own_layers is None or resolver.old_code.quantizes_own_layers:
        return
    said = f"Transformers quantizes nn.Linear alone, and this model has {own_layers} in its place: it stays in 16 bits"
    if raw.transformers_version is None and resolver.runtime is not None:
        last = resolver.runtime.last_with_own_layers
        said += f"; releases up to {last} quantize it too (--transformers-version {last})"
    resolver.warnings.append(said)
    resolver.reasons.append(("weights", said))


def _tell_stacked(resolver: Resolver, model: ModelShape) -> None:
    raw = resolver.raw
    if model.experts is None or model.experts.separate or raw.quantized_experts:
        return
    said = f"{raw.quantization} is of linear layers, which experts are not in Transformers 5: they stay in 16 bits"
    if raw.transformers_version is None and separates_experts(model.family):
        said += "; in Transformers 4 they are linear layers (--transformers-version 4.57)"
    said += "; Axolotl quantizes them on request (--quantized-experts)"
    resolver.warnings.append(said)
    resolver.reasons.append(("weights", said))


def untraced_release(job: ResolvedJob) -> list[str]:
    """What of the releases that a job names was read or left out, and never compared with a trace."""
    said = []
    if job.first_flash:
        said.append(f"attention flash of pytorch_version {job.pytorch_version} was never traced: its code was read")
    if job.transformers_version is None:
        return said
    release = tuple(int(part) for part in job.transformers_version.split("."))
    knows = knows_old_code(job.model.family) and job.model.task == "lm"
    if not knows and release < job.runtime.stacked_experts_since:
        said.append(f"{KEY} {job.transformers_version} was never traced with {job.model.code}, which is today's code")
    elif release < TRACED:
        said.append(f"{KEY} {job.transformers_version} was never traced: its code was read")
    return said
