"""What a job says of images: their size, and that a model of images alone has no tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.replay.models.capable import crops_to, no_image
from vramplan.values.job import Assumption
from vramplan.values.model import DEFAULT_IMAGE_SIZE, ModelShape

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver


def image_size_of(resolver: Resolver, model: ModelShape | None) -> int | None:
    """Pixels of an edge of the images; None where the model takes none. What cannot be is refused.

    A vision transformer has a learned position for each patch: Transformers refuses images of another size unless it
    is told to interpolate them (models/vit/modeling_vit.py, ViTEmbeddings.forward). Some types always do that.
    """
    given = resolver.raw.image_size
    if model is None:
        return given
    if model.channels is not None and not model.attention_heads:
        why = "cuDNN picks kernels, and scratch for them, as it runs; a simulated allocator has the copies of layouts"
        resolver.assumptions.append(Assumption("cudnn_workspace", "left out", why))
    if not model.takes_images:
        if given is not None:
            message = f"{given} pixels mean nothing to {model.name}, a model that takes no images"
            resolver.fields.refuse("image_size", message, hint="sequence_length for text")
        if resolver.raw.channels_last:
            message = f"{model.name} takes no images, whose channels could come last"
            resolver.fields.refuse("channels_last", message, hint="leave it out")
        return None
    cropped = crops_to(model.family)
    if given is None:
        size = cropped or model.image_size or DEFAULT_IMAGE_SIZE
        why = "the default" if model.image_size is None or model.any_image_size else "the model's own"
        if cropped and cropped != model.image_size:
            why = f"what the processor of the model crops images to; positions for {model.image_size} are interpolated"
        resolver.assumptions.append(Assumption("image_size", size, why))
        return size
    said = no_image(model, given)
    if said is not None:
        resolver.fields.refuse("image_size", said)
    if model.patch_size is None or model.any_image_size or model.depths is not None:
        return given
    if cropped:
        if given < model.patch_size:
            message = f"{given} is less than the patch_size {model.patch_size}"
            resolver.fields.refuse("image_size", message)
    elif given != model.image_size:
        message = f"{model.name} has learned positions for images of {model.image_size} pixels, not {given}"
        hint = f"interpolated positions are not modelled: give the config.json of a model made for {given} pixels"
        resolver.fields.refuse("image_size", message, hint=hint)
    return given


def with_images(model: ModelShape, image_size: int) -> ModelShape:
    """A model that takes images of any size, for images of the job's."""
    return model._replace(image_size=image_size) if model.any_image_size else model


def room_for_images(resolver: Resolver, model: ModelShape, length: int) -> None:
    """Refuse a text that is shorter than the tokens of its image."""
    if length < model.image_tokens:
        message = f"{length} tokens have no room for the {model.image_tokens} of an image, which are counted in"
        resolver.fields.refuse("sequence_length", message, hint=f"use at least {model.image_tokens}")


def no_tokens(resolver: Resolver, model: ModelShape) -> int:
    """The sequence length of a model that takes images alone: 0, and it is refused where one is given."""
    given = resolver.raw.sequence_length
    if given is not None:
        message = f"{given} tokens mean nothing to {model.name}, a model of images alone"
        resolver.fields.refuse("sequence_length", message, hint="leave it out; image_size for images")
    return 0
