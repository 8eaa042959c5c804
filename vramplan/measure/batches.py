"""A micro-batch of a job: random tokens and images with their labels, padded or packed where the job says so."""

from __future__ import annotations

import random
from math import isqrt, prod
from typing import Any

import torch

from vramplan.measure.known import known, with_ones
from vramplan.measure.objectives import smooths_outside
from vramplan.measure.preferences import is_preference, pairs_of
from vramplan.measure.taught_from_file import SAVED
from vramplan.replay.models.capable import fills_images, marks_images
from vramplan.values.job import ResolvedJob

SEQUENCES_IN_A_ROW = 2  # of packed ones


def batch_of(job: ResolvedJob, model: Any, device: str) -> dict[str, Any]:
    """Random images in the dtype of the weights and their classes, or random tokens."""
    size, shape = job.micro_batch_size, job.model
    assert size is not None
    if is_preference(job):
        return pairs_of(job, device)
    given: dict[str, Any] = {}
    if shape.takes_images:
        given |= images(job, model, device)
    if shape.waveform is not None:
        given["input_values"] = torch.randn(size, job.sequence_length, device=device, dtype=dtype_in(model))
    elif shape.takes_audio:
        given["input_features"] = sounds(job, model, device)
    elif shape.takes_text:
        if shape.any_image_size:  # the code asks which of them stand for images
            tokens = known([_of_images(job, model) for _ in range(size)], device)
        else:
            tokens = torch.randint(1, shape.vocabulary_size, (size, job.sequence_length), device=device)
            if shape.image_tokens:
                tokens[:, : shape.image_tokens] = model.config.image_token_id
        given["input_ids"] = tokens
        if marks_images(shape.family):
            kinds = torch.zeros_like(tokens)
            kinds[:, : shape.image_tokens] = 1
            given["token_type_ids"] = kinds
    _label(job, given, device)
    if job.teacher_logprobs is not None:
        shape_of_saved = (size, job.sequence_length, job.teacher_logprobs)
        given |= {name: torch.ones(shape_of_saved, dtype=dtype, device=device) for name, dtype in SAVED.items()}
    if job.padding != "none":
        row = [1] * (job.sequence_length - 1) + [0]  # one token that is padding is enough for a mask
        mask = known([row] * size, device) if shape.any_image_size else torch.tensor([row] * size, device=device)
        given["attention_mask"] = mask
    if job.packing:
        given["position_ids"] = positions(size, job.sequence_length, device)
    return given


def images(job: ResolvedJob, model: Any, device: str) -> dict[str, Any]:
    """One image for each sample, as the processor of the model gives it."""
    size, shape = job.micro_batch_size, job.model
    if shape.vision_frames is not None:
        return images_in_patches(job, model, device)
    if shape.cross_attention_layers:
        return images_in_tiles(job, model, device)
    if fills_images(shape.family):
        return filled_images(job, model, device)
    assert size is not None
    assert shape.channels is not None
    assert job.image_size is not None
    edge = isqrt(shape.image_patches) * (shape.patch_size or 0) if shape.any_image_size else job.image_size
    each = shape.vision_tiles or 1
    tiles = (size, each) if shape.vision_newline else (size * each,)
    pixels = torch.randn(*tiles, shape.channels, edge, edge, device=device, dtype=dtype_in(model))
    whole = edge * isqrt(each - 1) if shape.vision_newline else edge
    asked = shape.any_image_size or shape.vision_newline
    sizes = {"image_sizes": known([[whole, whole]] * size, device)} if asked else {}
    return {"pixel_values": pixels, **sizes}


def filled_images(job: ResolvedJob, model: Any, device: str) -> dict[str, Any]:
    """One image for each text, in as many tiles as it can have, and a mask of the pixels that are its own.

    Source: transformers 5.23, models/idefics3/image_processing_idefics3.py.
    """
    size, shape, edge = job.micro_batch_size, job.model, job.image_size
    assert size is not None
    tiles = (size, shape.vision_tiles)
    pixels = torch.rand(*tiles, shape.channels, edge, edge, device=device, dtype=dtype_in(model)) + 1
    mask = torch.ones(*tiles, edge, edge, device=device, dtype=torch.long)
    return {"pixel_values": with_ones(pixels), "pixel_attention_mask": with_ones(mask)}


def sounds(job: ResolvedJob, model: Any, device: str) -> Any:
    """The frames of one sound for each sample, as the processor of the model gives them: all are as long."""
    size, shape = job.micro_batch_size, job.model
    assert size is not None
    assert shape.mel_bins is not None
    assert shape.audio_positions is not None
    return torch.randn(size, shape.mel_bins, 2 * shape.audio_positions, device=device, dtype=dtype_in(model))


def images_in_tiles(job: ResolvedJob, model: Any, device: str) -> dict[str, Any]:
    """One image for each text, in as many tiles as it can have, with its shape and what each token sees.

    Source: transformers 5.23, models/mllama/image_processing_mllama.py and processing_mllama.py.
    """
    size, shape, edge = job.micro_batch_size, job.model, job.image_size
    tiles = shape.vision_tiles
    assert size is not None
    pixels = torch.randn(size, 1, tiles, shape.channels, edge, edge, device=device, dtype=dtype_in(model))
    return {
        "pixel_values": pixels,
        "aspect_ratio_ids": torch.ones(size, 1, device=device, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(size, 1, tiles, device=device, dtype=torch.long),
        "cross_attention_mask": torch.ones(size, job.sequence_length, 1, tiles, device=device, dtype=torch.long),
    }


def images_in_patches(job: ResolvedJob, model: Any, device: str) -> dict[str, Any]:
    """One image for each text, cut as the processor of Qwen2-VL does it, with its grid and the kinds of the tokens.

    Source: transformers 5.23, models/qwen2_vl/image_processing_qwen2_vl.py and processing_qwen2_vl.py.
    """
    size, shape = job.micro_batch_size, job.model
    assert size is not None
    rows = (size * shape.image_patches, prod(shape.patch))
    edge = isqrt(shape.image_patches)
    kinds = [1] * shape.image_tokens + [0] * (job.sequence_length - shape.image_tokens)
    return {
        "pixel_values": torch.randn(*rows, device=device, dtype=dtype_in(model)),
        "image_grid_thw": known([[1, edge, edge]] * size, device),
        "mm_token_type_ids": known([kinds] * size, device),
    }


def _of_images(job: ResolvedJob, model: Any) -> list[int]:
    """The tokens of a text that begins with those of its image."""
    images = job.model.image_tokens
    words = random.choices(range(1, job.model.vocabulary_size - 2), k=job.sequence_length - images)
    return [model.config.image_token_id] * images + words


def _label(job: ResolvedJob, given: dict[str, Any], device: str) -> None:
    size, shape = job.micro_batch_size, job.model
    if shape.task == "contrastive":
        given["return_loss"] = True
    elif shape.task in ("cls", "image"):
        given["labels"] = torch.randint(0, shape.classes, (size,), device=device)
    elif shape.task == "ctc":  # the code asks how many letters there are, and which is the last of them
        letters = [1 + i % (shape.vocabulary_size - 1) for i in range(job.target_length or 0)]
        given["labels"] = known([letters] * (size or 1), device)
    elif shape.task == "seq2seq":
        length = (size, job.target_length or job.sequence_length)
        given["labels"] = torch.randint(1, shape.vocabulary_size, length, device=device)
        if smooths_outside(job):  # the collator makes them of the labels, as the model is given none
            given["decoder_input_ids"] = given["labels"].clone()
    else:
        given["labels"] = given["input_ids"].clone()


def positions(size: int, length: int, device: str) -> Any:
    """Positions of several sequences in each row, which begin anew with each."""
    first = -(-length // SEQUENCES_IN_A_ROW)
    row = [*range(first), *range(length - first)]
    return torch.tensor([row] * size, device=device)


def dtype_in(model: Any) -> Any:
    """The dtype of the first weight, which is one of the model's own."""
    return next(model.parameters()).dtype
