"""Checkpoints that are quantized, by the name that a file gives them: what a program loads goes before its own keys.

Source: transformers 5.23.0, quantizers/auto.py, AutoHfQuantizer.merge_quantization_configs: of a checkpoint that is
quantized its own configuration is used, and what a program passes beside it is not.
"""

from __future__ import annotations

import re

from vramplan.catalog.written import by_name
from vramplan.configs.sheet import Meaning

KNOWN = ("nf4-double", "gptq-int4")  # of a name that says all; `4bit` alone leaves double quantization open

AWQ = re.compile(r"(?i)(?<![a-z])awq(?![a-z])")
"""Source: transformers 5.23.0, quantizers/quantizer_awq.py, update_dtype; GPTQ has no such cast."""


def quantized_by_name(meaning: Meaning, name: str | None, key: str) -> bool:
    """Say how the weights of a checkpoint are quantized, as its name has it; whether it does."""
    weights = None if name is None else by_name(name)
    if weights is None or weights.quantization is None:
        return False
    told = meaning.job.get("quantization")
    if told is not None and (told.value == weights.quantization or weights.quantization not in KNOWN):
        return True
    meaning.say("quantization", weights.word, key)
    meaning.note(f"quantization: read from the name of the checkpoint; {weights.why}")
    if AWQ.search(str(name)):
        meaning.lack(key, "of an AWQ checkpoint what is not quantized is fp16 on a GPU, whatever the file says")
    return True
