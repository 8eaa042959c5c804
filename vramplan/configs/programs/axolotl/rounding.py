"""What an Axolotl file says of quantization-aware training.

Source: axolotl-ai-cloud/axolotl 0.18.0 (067b021c), src/axolotl/utils/{quantization,schemas/quantization}.py,
utils/callbacks/qat.py; torchao 0.17.0.
"""

from __future__ import annotations

from vramplan.configs.sheet import Meaning, Sheet

FORMATS = {
    ("int4", None): ("int4-mslk-fp8", None),  # Int4WeightFakeQuantizeConfig counts with inputs in fp8 unless told
    ("int4", "int8"): ("int4-mslk", "int8"),
    ("int4", "fp8"): ("int4-mslk-fp8", "fp8"),
    ("fp8", "fp8"): ("fp8", "fp8"),
}
"""Weights and inputs by `weight_dtype` and `activation_dtype`; of the others Axolotl or torchao raises an error."""

BLOCKS = {"mxfp4": 32, "nvfp4": 16}
"""Formats in which inputs are rounded as weights are, whatever `activation_dtype` says; numbers that share a scale."""

OLDER = "torchao 0.17 raises an error for it; counted is the layer of NVFP4 weights and inputs that older files meant"
UNCOUNTED = ("ternary",)  # a format that Axolotl has and a job has not

FP8 = ("float8_e4m3fn", "float8")  # other words for fp8
DEFAULT, GROUP = "int8", 32
AFTER = "qat.fake_quant_after_n_steps"


def rounding(sheet: Sheet, meaning: Meaning) -> None:
    """`qat`: formats, groups, the table of the embeddings, and from which step on."""
    if not sheet.under("qat"):
        return
    weights, inputs = (_format(sheet, key) for key in ("qat.weight_dtype", "qat.activation_dtype"))
    group = sheet.count("qat.group_size", GROUP)
    embedding, steps = sheet.flag("qat.quantize_embedding"), sheet.count(AFTER)
    if weights in UNCOUNTED:
        meaning.lack("qat.weight_dtype", f"weights rounded to {weights}; no rounding is counted")
        return
    if weights in BLOCKS:
        _in_blocks(sheet, meaning, weights, group, embedding)
        _from_step_on(meaning, steps)
        return
    found = FORMATS.get((weights or DEFAULT, inputs))
    if found is None:
        what = f"{weights or DEFAULT} weights with {inputs or 'no'} activations"
        sheet.problem("qat.weight_dtype", f"Axolotl raises an error for {what}", "int4 with int8, or fp8 with fp8")
        return
    meaning.say("qat.weights", found[0], "qat.weight_dtype", "qat.activation_dtype")
    if found[1] is not None:
        meaning.say("qat.activations", found[1], "qat.activation_dtype")
    if found[0] != "fp8":
        meaning.say("qat.group_size", group, "qat.group_size")
    if embedding:
        meaning.say("qat.embedding", True, "qat.quantize_embedding")
    _from_step_on(meaning, steps)


def _in_blocks(sheet: Sheet, meaning: Meaning, weights: str, group: int | None, embedding: bool | None) -> None:
    """Axolotl makes `MXFakeQuantizeConfig` of it, whose layers multiply in 4 bits."""
    own = BLOCKS[weights]
    if weights == "nvfp4":
        meaning.note(f"qat.weight_dtype: {OLDER}")
    elif group != own:
        what = f"Axolotl raises an error for {weights} with groups of {group}"
        sheet.problem("qat.group_size", what, f"{own}")
        return
    if embedding:
        sheet.problem("qat.quantize_embedding", f"Axolotl raises an error for a table in {weights}", "false")
        return
    meaning.say("qat.weights", weights, "qat.weight_dtype")
    meaning.say("qat.activations", weights, "qat.weight_dtype")


def _from_step_on(meaning: Meaning, steps: int | None) -> None:
    if steps:
        meaning.note(f"{AFTER}: nothing is rounded before step {steps}, and the answer is of the steps after it")


def _format(sheet: Sheet, key: str) -> str | None:
    word = sheet.text(key)
    return "fp8" if word in FP8 else word
