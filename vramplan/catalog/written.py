"""How the weights of a checkpoint are written: quantized by which library, as its config.json or its name says.

A library that quantizes reads `quantization_config` of the checkpoint, whatever the program is told. A name is what
there is to go by where the config.json is not at hand; of the hub's repositories it says what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramplan.catalog.fields import Fields, one_line
from vramplan.options.spellings import QUANTIZATIONS
from vramplan.replay.techniques.gptq import GROUP_SIZE
from vramplan.tuples import NamedTuple
from vramplan.values.job import Assumption

KEY, EXPERTS_KEY = "quantization", "quantized_experts"
ONE_GROUP = -1  # `group_size` of layers whose columns have one scale each

UNTRAINED = {
    "fp8": "fp8",  # transformers 5.23.0, quantizers/quantizer_finegrained_fp8.py, is_trainable: False
    "fbgemm_fp8": "fp8",  # the same, quantizer_fbgemm_fp8.py
    "compressed-tensors": "compressed tensors",  # the same, quantizer_compressed_tensors.py: trained decompressed
    "mxfp4": "mxfp4",  # the same, quantizer_mxfp4.py: dequantized to be trained
}
"""What Transformers does not train as it is written, by the `quant_method`, in words."""


class CheckpointWeights(NamedTuple):
    """What a checkpoint says of its weights."""

    quantization: str | None  # a word of the key `quantization`; None: they are trained in 16 bits or more
    why: str
    spelled: str | None = None  # how people write it, where that is another word
    experts: str = ""  # why the stacked experts are quantized too; empty where they are not

    @property
    def word(self) -> str | None:
        """The quantization as people write it, which a job takes too."""
        return self.spelled or self.quantization

    def told(self) -> Iterator[Assumption]:
        """As an assumption of the key, where the weights stay quantized."""
        if self.quantization is not None:
            yield Assumption(KEY, self.quantization, self.why)
        if self.experts:
            yield Assumption(EXPERTS_KEY, True, self.experts)


_NAMES = (
    (r"gptq[-_](8bit|int8).*", "gptq-8bit"),
    (r"gptq|-4bit-\d+g", "gptq"),
    (r"awq", "awq"),
    (r"aqlm", "aqlm"),
    (r"8-?bit", "bnb-8bit"),
    (r"bnb|4-?bit|nf4", "bnb-4bit"),
    (r"fp8|float8", "fp8"),
    (r"w[48]a(8|16)|quantized", "compressed-tensors"),
    (r"gguf", "gguf"),
)
"""What stands in the names of repositories for what wrote their weights."""

_SPELLED = {"awq": "awq-int4", "aqlm": "aqlm-int2"}
_MLX = "mlx-community"
_DOUBLE = "unsloth"  # unsloth/llama-3-8b-bnb-4bit, config.json: bnb_4bit_use_double_quant true
_DYNAMIC = "-unsloth-bnb-4bit"  # llm_int8_skip_modules has the layers that Unsloth's dynamic quantization passes over
_SKIPPED = "llm_int8_skip_modules"
_IN_16_BITS = "stay in 16 bits, and are counted in 4"

_LINEAR_EXPERTS = "Unsloth's copies have the experts of gpt-oss as linear layers, in 4 bits too"
"""Source: unslothai/unsloth-zoo, temporary_patches/gpt_oss.py, GptOssExpertsBnb4bit; accessed 2026-11-30."""


def by_name(name: str) -> CheckpointWeights | None:
    """What the name of a repository says of its weights; None where it says nothing."""
    owner, _, last = name.lower().partition("@")[0].rpartition("/")
    if owner.endswith(_MLX):
        return CheckpointWeights(
            None, "PyTorch does not load files of MLX: the weights of the model that was converted count"
        )
    method = next((method for mark, method in _NAMES if re.search(rf"(^|[-_.])({mark})([-_.]|$)", last)), None)
    if method is None:
        return None
    said = "the name of the checkpoint says so"
    if method == "gguf":
        return CheckpointWeights(None, "Transformers dequantizes GGUF when it loads it")
    if method in UNTRAINED:
        return _dequantized(method)
    if method == "gptq-8bit":
        return CheckpointWeights("int8", f"{said}; GPTQ's 8 bits are counted as those of bitsandbytes")
    if method == "bnb-4bit" and owner == _DOUBLE:
        dynamic = f"; some layers of such a checkpoint {_IN_16_BITS}" if last.endswith(_DYNAMIC) else ""
        experts = _LINEAR_EXPERTS if last.startswith("gpt-oss-") else ""
        told = f"{said}; {_DOUBLE} writes double quantization{dynamic}"
        return CheckpointWeights("nf4-double", told, experts=experts)
    return _as_spelled(method, said)


def by_config(fields: Fields) -> CheckpointWeights | None:
    """What `quantization_config` of a config.json says; None where it is not there. What is not modelled is refused."""
    inside = fields.fields("quantization_config") if fields.given("quantization_config") else None
    if inside is None:
        return None
    method = _text(inside, "quant_method") or ""
    said = "quantization_config of the checkpoint"
    if method in ("bitsandbytes", ""):
        if _is_set(inside, "load_in_8bit"):
            return CheckpointWeights("int8", said)
        if _is_set(inside, "load_in_4bit"):
            skipped = sum(".layers." in f".{name}" for name in _texts(inside, _SKIPPED))
            told = f"{said}; {skipped} modules of its blocks {_IN_16_BITS} ({_SKIPPED})" if skipped else said
            return CheckpointWeights("nf4-double" if _is_set(inside, "bnb_4bit_use_double_quant") else "nf4", told)
    if method in UNTRAINED:
        return _dequantized(method)
    if method == "aqlm":
        return _as_spelled(method, said)
    if method in ("gptq", "awq"):
        bits = inside.integer("bits") if inside.given("bits") else 4
        group = inside.integer("group_size", minimum=-1) if inside.given("group_size") else GROUP_SIZE
        if bits == 4 and group in (GROUP_SIZE, None):
            return _as_spelled(method, said)
        if bits == 4 and group is not None and (group > GROUP_SIZE or group == ONE_GROUP):
            return _as_spelled(method, f"{said}; its groups are larger than the {GROUP_SIZE} that are counted")
        method += f" with groups of {group}" if bits == 4 else f" with {bits} bits"
    hint = "give the config.json of the model that was quantized; modelled: bitsandbytes, gptq, awq and aqlm"
    fields.refuse(
        "quantization_config",
        f"weights of {one_line(method) if method else 'an unnamed method'} are not modelled",
        hint=hint,
    )
    return None


def _as_spelled(method: str, said: str) -> CheckpointWeights:
    meaning = QUANTIZATIONS[method]
    why = f"{said}; {meaning.note}" if meaning.note and method != "bnb-4bit" else said
    return CheckpointWeights(meaning.word, why, _SPELLED.get(method))


def _dequantized(method: str) -> CheckpointWeights:
    return CheckpointWeights(None, f"the {UNTRAINED[method]} of the checkpoint is dequantized, to be trained")


def _text(fields: Fields, key: str) -> str | None:
    return fields.text(key) if fields.given(key) else None


def _texts(fields: Fields, key: str) -> list[str]:
    return (fields.texts(key) or []) if fields.given(key) else []


def _is_set(fields: Fields, key: str) -> bool:
    return bool(fields.given(key) and fields.boolean(key))
