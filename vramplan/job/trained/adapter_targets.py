"""What an adapter may sit on, by the model type: checks of targets beyond the names of linear layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vramplan.catalog.config_classes import MODEL_TYPES, Peft
from vramplan.catalog.fields import Fields, shown
from vramplan.replay.models import published
from vramplan.replay.models.capable import has_conv1d, no_all_linear, not_adapted, read_weights, takes_only_lora
from vramplan.replay.techniques.adapters import ALL_LINEAR, CLASSIFIERS, GPTQ, is_named, is_saved_as, leaf
from vramplan.replay.techniques.expert_adapters import former_names
from vramplan.replay.techniques.trained import Names, names_of
from vramplan.values.adapter_kinds import KINDS
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

FUSED = "qkv_proj"
LATENT = "kv_b_proj"
"""The layer that makes keys and values of what a token is compressed to."""

FUSED_NAMES = (FUSED, "Wqkv", "wqkv", "W_pack", "query_key_value", "c_attn")
THREE = ("q_proj", "k_proj", "v_proj")

ELSEWHERE = {
    "out_proj": ("o_proj", "dense"),
    "wo": ("o_proj",),
    "w1": ("gate_proj",),
    "w3": ("up_proj",),
    "w2": ("down_proj",),
    "fc_in": ("fc1", "c_fc"),
    "fc_out": ("fc2", "c_proj"),
    "up_proj": ("c_fc",),
    "down_proj": ("c_proj",),
}
"""What code of its own calls a layer, and what the blocks that stand in for it may call it: of DBRX, InternLM2, GPT-J
and of classes without a gate."""

BASIS = (
    "queries, keys and values are one projection, as in the code of the first Qwen; the rest is that of Transformers"
)


def fused_targets(
    fields: Fields, model: ModelShape, kind: str, targets: Sequence[str], told: list[Assumption]
) -> tuple[str, ...]:
    """The targets with `qkv_proj` as the model has it: its own fused projection, or its three as one."""
    name = peft_of(model).fused
    if model.unknown_type is not None:
        targets = own_names(model, targets, told)
    if model.unknown_type is not None and name is None and any(word in FUSED_NAMES for word in targets):
        # what stands in for the model keeps apart what its own code has as one matrix
        given = next(word for word in targets if word in FUSED_NAMES)
        why = f"{given} of {model.unknown_type}: queries, keys and values, each with an adapter of its own"
        told.append(Assumption("adapter.targets", list(THREE), why))
        return tuple(dict.fromkeys(part for word in targets for part in (THREE if word in FUSED_NAMES else (word,))))
    if model.published_family is not None:  # LitGPT and torchtune know the three by their own names
        layers = layers_of(model, names_of(model))
        one = next((word for word in targets if word in FUSED_NAMES and word not in layers), None)
        if one is None or any(part not in layers for part in THREE):
            return tuple(targets)
        told.append(Assumption("adapter.targets", list(THREE), f"{one}: queries, keys and values"))
        return tuple(dict.fromkeys(part for word in targets for part in (THREE if word == one else (word,))))
    if FUSED not in targets:
        return tuple(targets)
    if name is not None:
        told.append(Assumption("adapter.targets", name, f"{FUSED}: the fused projection of {model.name}"))
        return tuple(dict.fromkeys(name if word == FUSED else word for word in targets))
    if not is_made_fused(model):
        return tuple(targets)
    beside = [word for word in targets if leaf(word) in THREE]
    if beside:
        message = f"{', '.join(beside)} beside {FUSED}, which is one projection in their place"
        fields.refuse("targets", message, hint=f"name {FUSED} alone, or {', '.join(THREE)}")
    elif kind != "lora":
        fields.refuse("targets", f"{kind} is not modelled over {FUSED} of a {model.code} model", hint="use lora")
    told.append(Assumption("model.code", FUSED, BASIS))
    return tuple(targets)


def own_names(model: ModelShape, targets: Sequence[str], told: list[Assumption]) -> tuple[str, ...]:
    """The targets of a model that is answered with the blocks of another, as those blocks call the same layers."""
    layers = layers_of(model, names_of(model))
    named = _called_elsewhere(layers, targets)
    if named:
        whose = f"the layers of {model.transformers_model_type} in the place of those of {model.unknown_type}"
        told.append(Assumption("adapter.targets", sorted(set(named.values())), f"{', '.join(named)}: {whose}"))
    return tuple(dict.fromkeys(named.get(word, word) for word in targets))


def _called_elsewhere(layers: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    """The targets that code of another model calls what these layers are, each with its layer here."""
    return {
        word: other for word in targets if word not in layers for other in ELSEWHERE.get(word, ()) if other in layers
    }


def passed_over(model: ModelShape, targets: Sequence[str]) -> tuple[str, ...]:
    """The targets that name no layer of a model while others do: PEFT adapts what matches, and passes over the rest.

    Source: peft 0.21.2, tuners/tuners_utils.py, inject_adapter, which raises where nothing matches.
    """
    names = names_of(model)
    elsewhere = () if model.unknown_type is None else _called_elsewhere(layers_of(model, names), targets)
    known = (*FUSED_NAMES, *elsewhere)
    words = {word: by_leaf(model, names, "lora", word) for word in targets}
    strange = [word for word, name in words.items() if word not in known and not is_known(model, names, "lora", name)]
    return tuple(strange) if len(strange) < len(set(targets)) else ()


def is_of_all_experts(model: ModelShape, word: str) -> bool:
    """Whether a word names layers of the experts that every token passes, and PEFT takes it for those of all others.

    It looks at the end of the word alone, and then adapts the tensors of the experts in place of the layers that are
    named. Source: peft 0.21.2, utils/transformers_weight_conversion.py, _convert_peft_config_moe.
    """
    module, _, name = word.rpartition(".")
    return leaf(module) in SHARED_MODULES and name in former_names("lora", model)


def joined_targets(
    layers: Sequence[str], targets: Sequence[str], joins: Mapping[str, tuple[str, ...]], told: list[Assumption]
) -> tuple[str, ...]:
    """The targets as layers of the code that is replayed, some of which lie in one matrix there: `joins`."""
    found = {word: next((one for one in joins.get(word, ()) if one in layers), None) for word in targets}
    joined = {word: one for word, one in found.items() if word not in layers and one is not None}
    replaced = tuple(dict.fromkeys(joined.get(word, word) for word in targets))
    if joined:
        why = f"{', '.join(joined)}: an adapter of each fused matrix is counted, not one of each of its parts"
        told.append(Assumption("adapter.targets", list(replaced), why))
    return replaced


def peft_of(model: ModelShape) -> Peft:
    """What adapters are put on in models of this type."""
    name = model.transformers_model_type
    return MODEL_TYPES[name].peft if name in MODEL_TYPES else Peft()


def is_made_fused(model: ModelShape) -> bool:
    """Whether the three projections of a model can be one."""
    return peft_of(model).made_fused and model.published_family is None and not model.qk_norm


def known_targets(model: ModelShape, names: Names, kind: str) -> tuple[str, ...]:
    """The words that may be targets: those of a model with experts count their tensors among the layers."""
    former = former_names(kind, model) if names.stacked else {}
    whole = () if no_all_linear(model, kind) else (ALL_LINEAR,)
    return tuple(dict.fromkeys((*whole, *layers_of(model, names), *former)))


def layers_of(model: ModelShape, names: Names) -> tuple[str, ...]:
    """The layers that may be targets: the head of ResNet is none, as it is a layer inside a `Sequential`."""
    left_out = CLASSIFIERS if takes_only_lora(published(model)) else ()
    left_out = (*left_out, *not_adapted(model.family))
    return tuple(name for name in names.linears if name not in left_out)


def all_of(model: ModelShape, names: Names, known: Sequence[str]) -> str:
    """What to give as targets where PEFT has none: each layer that an adapter can sit on and that runs as a module."""
    found = [name for name in layers_of(model, names) if name not in read_weights(published(model))]
    if not found:
        return "known: " + ", ".join(known)
    given = f"every layer that can have one: --targets {','.join(found)}"
    others = [name for name in known if name not in found]
    return given + (f"; known too: {', '.join(others)}" if others else "")


def ends_of(model: ModelShape, names: Names) -> tuple[str, ...]:
    """The table of the tokens and the head, which may be targets where they are named."""
    own = model.published_family is None and model.engine is None
    reads_tokens = not model.takes_audio and (not model.takes_images or model.vision_layers is not None)
    whole = model.task not in ("seq2seq", "contrastive") and reads_tokens
    return tuple(filter(None, (names.token_table, names.head))) if own and whole else ()


ATTENTION_MODULES = ("self_attn", "attn", "attention")
SHARED_MODULES = ("shared_expert", "shared_experts")
FEEDFORWARD_MODULES = ("mlp", "feed_forward", *SHARED_MODULES)
"""What the parents of linear layers are called in the code of Transformers."""

FEEDFORWARD = ("gate_proj", "up_proj", "down_proj", "gate_up_proj")


def by_leaf(model: ModelShape, names: Names, kind: str, word: str) -> str:
    """`self_attn.q_proj` as `q_proj`, where the model has layers of that name."""
    module, _, name = word.rpartition(".")
    parents = FEEDFORWARD_MODULES if name in FEEDFORWARD else ATTENTION_MODULES
    apart = leaf(module) not in parents or is_known(model, names, kind, word) or name not in names.linears
    return word if apart else name


def is_known(model: ModelShape, names: Names, kind: str, word: str) -> bool:
    """Whether a word names linear layers of the model, or what PEFT takes for its experts."""
    former = former_names(kind, model)
    if word == FUSED and is_made_fused(model):
        return True
    if word in ends_of(model, names):
        return True
    return word == ALL_LINEAR or leaf(word) in former or any(is_named(name, word) for name in layers_of(model, names))


def check_targets(
    fields: Fields, model: ModelShape, names: Names, kind: str, targets: Sequence[str], quantization: str | None
) -> None:
    """Refuse targets that PEFT refuses, and those that were not traced."""
    model_type = model.transformers_model_type
    if ALL_LINEAR in targets and quantization == GPTQ:
        message = f"PEFT's {ALL_LINEAR} does not see {GPTQ} layers, which are none of PyTorch's linear ones"
        fields.refuse("targets", message, hint="name layers: " + ", ".join(layers_of(model, names)))
        return
    why = no_all_linear(model, kind)
    if ALL_LINEAR in targets and why is not None:
        message = f"{ALL_LINEAR} is not modelled for {model_type}, {why}"
        fields.refuse("targets", message, hint="name layers: " + ", ".join(layers_of(model, names)))
    if kind != "lora" and takes_only_lora(published(model)):
        fields.refuse("kind", f"{kind} is not modelled for {model_type}", hint="use lora")
    elif not KINDS[kind].conv1d and has_conv1d(model.family):
        message = f"PEFT has no {kind} over the layers of {model_type}, which are Conv1D"
        fields.refuse("kind", message, hint="use lora")
    elif kind == "oft" and LATENT in names.linears and any(one in (ALL_LINEAR, LATENT) for one in map(leaf, targets)):
        message = f"PEFT takes what {LATENT} reads, of four dimensions, for an image, and oft over it cannot run"
        fields.refuse("targets", message, hint="name layers: " + _others(layers_of(model, names), LATENT))
    former = former_names(kind, model)
    if former:
        _experts(fields, names, kind, targets, former)


def _others(layers: Sequence[str], but: str) -> str:
    return ", ".join(name for name in layers if name != but)


def _experts(fields: Fields, names: Names, kind: str, targets: Sequence[str], former: dict[str, str]) -> None:
    """Names that PEFT takes for the tensors of experts and routers (peft 0.21.2, _convert_peft_config_moe)."""
    given = set(former) if ALL_LINEAR in targets else {leaf(word) for word in targets} & former.keys()
    if not given:
        return
    layers = ", ".join(name for name in names.linears if leaf(name) not in former)
    what = ALL_LINEAR if ALL_LINEAR in targets else ", ".join(sorted(given))
    if not names.stacked and ALL_LINEAR in targets:
        return
    if not names.stacked:
        message = f"{what}: PEFT takes this for experts, of which the model has none"
        fields.refuse("targets", message, hint=f"known: {layers}")
        return
    for tensor in {former[name] for name in given}:
        missing = [name for name, other in former.items() if other == tensor and name not in given]
        if missing:
            one, other = ", ".join(sorted(name for name in given if former[name] == tensor)), ", ".join(missing)
            message = f"{one} without {other}: PEFT refuses it, as the experts have both in one tensor"
            fields.refuse("targets", message, hint=f"name {other} too")
    hint = f"leave experts and routers out: {layers}"
    if kind == "dora":
        fields.refuse(
            "kind", f"PEFT has no dora over the experts, which {what} stands for", hint=f"use lora, or {hint}"
        )
    if fields.number("dropout", minimum=0, below=1):
        message = f"PEFT has no dropout over the experts, which {what} stands for"
        fields.refuse("dropout", message, hint=f"leave it out, or {hint}")


def check_saved(fields: Fields, names: Names, word: str) -> None:
    """Refuse to train a copy of experts or of a router."""
    if any(is_saved_as(name.removesuffix(".weight"), word) for name in names.stacked):
        message = f"{shown(word)}: a trained copy of experts or of their router is not modelled"
        fields.refuse("modules_to_save", message, hint="name embeddings, heads or norms")
