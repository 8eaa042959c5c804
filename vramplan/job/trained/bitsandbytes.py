"""The release of bitsandbytes that multiplies quantized weights: which a job can name."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.job.behaviour import under
from vramplan.job.given.read import RawJob
from vramplan.job.runtime import FOUR_BITS
from vramplan.replay.techniques.bitsandbytes import (
    EIGHT_BITS_SINCE,
    FP16_UNTIL,
    NEWEST,
    OLDEST,
    is_known,
    is_release,
    release,
    written,
)
from vramplan.values.machine import Runtime
from vramplan.values.model import ModelShape

KEY = "bitsandbytes"


def check_bitsandbytes(raw: RawJob, model: ModelShape | None, runtime: Runtime | None) -> None:
    """Refuse a release that is not known, or that multiplies nothing of the job."""
    text, fields, quantization = raw.bitsandbytes, raw.fields, raw.quantization
    if text is None:
        return
    whose = None if model is None else under(runtime).no_bitsandbytes(model)
    if not is_release(text):
        fields.problem(KEY, f"{text!r} is no release", hint=f'three numbers, as in "{NEWEST}"')
    elif not is_known(text):
        fields.refuse(KEY, f"{text} is not modelled: its code was read from {OLDEST} to {NEWEST}")
    elif quantization is None:
        fields.refuse(KEY, f"{text} multiplies no weights of this job", hint="quantization: nf4; or leave it out")
    elif quantization not in (*FOUR_BITS, "int8"):
        fields.refuse(KEY, f"{text} says nothing of {quantization}, which is not its own", hint="leave it out")
    elif whose is not None:
        fields.refuse(KEY, f"{text} says nothing of {whose}", hint="leave it out")
    else:
        _older(fields, raw, text)


def _older(fields: Fields, raw: RawJob, text: str) -> None:
    """What is modelled with newer releases alone."""
    kind = raw.adapter_kind
    if raw.quantization == "int8" and release(text) < EIGHT_BITS_SINCE:
        hint = f"{written(EIGHT_BITS_SINCE)} or newer"
        fields.refuse(KEY, f"int8 is not modelled as {text} multiplies it, which keeps more", hint=hint)
    elif kind == "dora" and release(text) < FP16_UNTIL:
        message = f"dora is not modelled over weights of {text}, which come back in fp16"
        fields.refuse(KEY, message, hint=f"{written(FP16_UNTIL)} or newer")
