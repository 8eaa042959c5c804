"""The experts, the latent and the linear attention, the state spaces and convolutions of a model, from its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vramplan.errors import Problem
from vramplan.values.model import (
    Alternating,
    Experts,
    LatentAttention,
    LinearAttention,
    ModelShape,
    ShortConvolution,
    StateSpace,
    Waveform,
)

COUNTS = (
    "experts.count",
    "experts.active",
    "experts.intermediate_size",
    "experts.shared_intermediate_size",
    "experts.groups",
    "experts.active_groups",
    "experts.latent_size",
    "latent_attention.query_rank",
    "latent_attention.key_value_rank",
    "latent_attention.plain_size",
    "latent_attention.rotary_size",
    "latent_attention.value_size",
    "linear_attention.key_heads",
    "linear_attention.value_heads",
    "linear_attention.key_size",
    "linear_attention.value_size",
    "linear_attention.kernel",
    "state_space.heads",
    "state_space.head_size",
    "state_space.state_size",
    "state_space.groups",
    "state_space.kernel",
    "state_space.chunk",
    "state_space.step_rank",
    "short_convolution.kernel",
    "waveform.masked_length",
    "waveform.place_kernel",
    "waveform.place_groups",
    "alternating.states",
    "alternating.laurel_rank",
)
"""The fields that are counts of at least one, where a model type has them."""

OTHERWISE = ("routed", "separate")
"""Of experts, what has another name here, or is of a release and no field of a model."""

NULLABLE = ("latent_attention.query_rank",)
"""Fields of these for which null means that the model has no such thing. Their default is a number."""

SOUND_NORMS = ("group", "layer")
"""What is normalised of the convolutions over a sound: the channels of the first one, or what each gives."""

SPACE_NORMS = ("gate-first", "norm-first", "none")
"""Whether the result of a state space is normalised, and when its gate comes."""

ALIGNMENT = 8
"""Elements: rows of grouped products begin at multiples of 16 bytes, or PyTorch refuses them
(aten/src/ATen/native/GroupedMMUtils.h, check_valid_strides_and_return_transposed)."""


def experts_of(values: Mapping[str, Any]) -> Experts | None:
    """The experts that the fields describe; None for a model without."""
    if values["experts.count"] is None:
        return None
    given = {key: values[f"experts.{key}"] for key in Experts._fields if key not in OTHERWISE}
    return Experts(routed=values["experts.count"], **{**given, "dense_layers": given["dense_layers"] or ()})


def defaulted_experts(fields: Mapping[str, Any], shape: ModelShape, defaults: Mapping[str, Any]) -> dict[str, int]:
    """The counts that `fields` left to the configuration class, with the values that `shape` has for them."""
    found: dict[str, int] = {}
    for name in (*COUNTS, "experts.shared"):
        group, _, key = name.partition(".")
        given = name in fields if name in NULLABLE else fields.get(name) is not None
        if name in defaults and not given:
            value = getattr(getattr(shape, group), {"count": "routed"}.get(key, key), None)
            if value is not None:
                found[name] = value
    return found


def wrong_experts(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What of them makes no network, or none that PyTorch can run."""
    experts = experts_of(values)
    if experts is None:
        return
    if experts.active is None:
        yield Problem("required key is missing: the configuration class has no default", "experts.active")
        return
    if experts.active > experts.routed:
        message = f"{experts.active} experts for each token, but there are {experts.routed}"
        yield Problem(message, "experts.active")
    layers = values["layers"]
    if any(block >= layers for block in experts.dense_layers):
        message = f"there is no block {experts.dense_layers[-1]}; the {layers} blocks are numbered from 0"
        yield Problem(message, "experts.dense_layers")
    for key in ("hidden_size" if experts.latent_size is None else "experts.latent_size", "experts.intermediate_size"):
        if values[key] % ALIGNMENT:
            message = f"{values[key]} is no multiple of {ALIGNMENT}, which PyTorch's grouped products of experts need"
            yield Problem(message, key)
    if experts.groups is not None and (experts.routed % experts.groups or experts.routed < 2 * experts.groups):
        message = f"{experts.routed} experts do not make {experts.groups} groups of two or more"
        yield Problem(message, "experts.groups")
    elif experts.groups is not None and not 1 <= (experts.active_groups or 0) <= experts.groups:
        message = f"{experts.active_groups} of {experts.groups} groups"
        yield Problem(message, "experts.active_groups", f"1 to {experts.groups}")


def latent_of(values: Mapping[str, Any]) -> LatentAttention | None:
    """The latent attention that the fields describe; None for a model without."""
    if values["latent_attention.key_value_rank"] is None:
        return None
    return LatentAttention(**{key: values[f"latent_attention.{key}"] for key in LatentAttention._fields})


def wrong_latent(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What of it makes no network."""
    latent = latent_of(values)
    if latent is not None and latent.rotary_size % 2:
        message = f"rotary positions turn pairs, so an even size, not {latent.rotary_size}"
        yield Problem(message, "latent_attention.rotary_size")


def linear_of(values: Mapping[str, Any]) -> LinearAttention | None:
    """The linear attention that the fields describe; None for a model without."""
    if values["linear_attention.key_heads"] is None:
        return None
    return LinearAttention(**{key: values[f"linear_attention.{key}"] for key in LinearAttention._fields})


def wrong_linear(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What of it makes no network."""
    linear = linear_of(values)
    if linear is None:
        return
    if linear.value_heads % linear.key_heads:
        message = f"{linear.value_heads} heads of values cannot share {linear.key_heads} heads of keys evenly"
        yield Problem(message, "linear_attention.value_heads")
    if any(block >= values["layers"] for block in linear.layers):
        message = f"there is no block {linear.layers[-1]}; the {values['layers']} blocks are numbered from 0"
        yield Problem(message, "linear_attention.layers")


def space_of(values: Mapping[str, Any]) -> StateSpace | None:
    """The state spaces that the fields describe; None for a model without."""
    if values["state_space.heads"] is None:
        return None
    return StateSpace(**{key: values[f"state_space.{key}"] for key in StateSpace._fields})


def short_convolution_of(values: Mapping[str, Any]) -> ShortConvolution | None:
    """The short convolutions that the fields describe; None for a model without."""
    if values["short_convolution.kernel"] is None:
        return None
    return ShortConvolution(**{key: values[f"short_convolution.{key}"] for key in ShortConvolution._fields})


def waveform_of(values: Mapping[str, Any]) -> Waveform | None:
    """The convolutions over a sound that the fields describe; None for a model without."""
    if values["waveform.widths"] is None:
        return None
    return Waveform(**{key: values[f"waveform.{key}"] for key in Waveform._fields})


def alternating_of(values: Mapping[str, Any]) -> Alternating | None:
    """The hidden states side by side that the fields describe; None for a model with one."""
    if values["alternating.states"] is None:
        return None
    return Alternating(**{key: values[f"alternating.{key}"] for key in Alternating._fields})


def wrong_short_convolution(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What of them makes no network."""
    convolution = short_convolution_of(values)
    if convolution is not None and any(block >= values["layers"] for block in convolution.layers):
        message = f"there is no block {convolution.layers[-1]}; the {values['layers']} blocks are numbered from 0"
        yield Problem(message, "short_convolution.layers")


def wrong_waveform(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What of them makes no network."""
    sound = waveform_of(values)
    if sound is None:
        return
    for key in ("kernels", "strides"):
        count = len(getattr(sound, key))
        if count != len(sound.widths):
            yield Problem(f"{count} {key} for {len(sound.widths)} widths: each has one of each", f"waveform.{key}")
    if sound.norm not in SOUND_NORMS:
        yield Problem(f"{sound.norm} is not modelled (modelled: {', '.join(SOUND_NORMS)})", "waveform.norm")
    if values["hidden_size"] % sound.place_groups:
        message = f"{values['hidden_size']} elements do not make {sound.place_groups} groups evenly"
        yield Problem(message, "waveform.place_groups")


def wrong_space(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What of them makes no network."""
    space = space_of(values)
    if space is None:
        return
    if space.heads % space.groups:
        yield Problem(f"{space.heads} heads do not make {space.groups} groups evenly", "state_space.groups")
    if space.norm not in SPACE_NORMS:
        message = f"{space.norm} is not modelled (modelled: {', '.join(SPACE_NORMS)})"
        yield Problem(message, "state_space.norm")
    for key in ("layers", "feedforward_layers"):
        blocks = getattr(space, key)
        if any(block >= values["layers"] for block in blocks):
            message = f"there is no block {blocks[-1]}; the {values['layers']} blocks are numbered from 0"
            yield Problem(message, f"state_space.{key}")
    both = sorted({*space.layers} & {*space.feedforward_layers})
    if both:
        yield Problem(f"block {both[0]} has a state space", "state_space.feedforward_layers")


def three_of_four(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """The blocks with linear attention where nothing says which: all but every fourth."""
    return tuple(i for i in range(fields["layers"]) if (i + 1) % 4)


def query_size(fields: Mapping[str, Any]) -> Any:
    """Elements of a query and of a key: those without positions and those with."""
    return fields["latent_attention.plain_size"] + fields["latent_attention.rotary_size"]


def all_shared(fields: Mapping[str, Any]) -> Any:
    """The width of all shared experts together."""
    return fields["experts.shared"] * fields["experts.intermediate_size"]
