"""What a job says of a model that takes the samples of a sound: how many they are, and how many letters are said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.values.model import ModelShape

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

SAMPLES_PER_SECOND = 16000  # of every published checkpoint: preprocessor_config.json, sampling_rate
SECONDS = 15
SAMPLES_OF_A_LETTER = 1000  # 16 letters in a second


def samples_of(resolver: Resolver, model: ModelShape) -> int:
    """The samples of a sound, which are its sequence length; too few for the convolutions are refused."""
    assert model.waveform is not None
    given = resolver.raw.sequence_length
    if given is None:
        length = SECONDS * SAMPLES_PER_SECOND
        resolver.assume("sequence_length", length, f"samples: {SECONDS} s of {SAMPLES_PER_SECOND} samples each")
        return length
    least = model.waveform.samples(model.waveform.masked_length if model.waveform.masked_share else 1)
    if given < least:
        message = f"{given} samples are too few for {model.name}, whose convolutions make no row of frames of them"
        hint = f"sequence_length counts samples, {SAMPLES_PER_SECOND} in a second; use at least {least}"
        resolver.fields.refuse("sequence_length", message, hint=hint)
    return given


def letters_of(resolver: Resolver, model: ModelShape, samples: int) -> int | None:
    """The letters of the text that is said, which are the target length."""
    assert model.waveform is not None
    given = resolver.raw.target_length
    frames = model.waveform.frames(samples)
    resolver.assume("model.layerdrop", 0, "steps that leave out no block come soon, and need most")
    if given is None:
        length = max(1, min(samples // SAMPLES_OF_A_LETTER, frames))
        why = f"letters, of which {SAMPLES_PER_SECOND // SAMPLES_OF_A_LETTER} are said in a second"
        resolver.assume("target_length", length, why)
        return length
    if given > frames:
        message = f"{given} letters cannot be told apart in the {frames} frames of {samples} samples"
        resolver.fields.refuse("target_length", message, hint=f"use at most {frames}")
    return given
