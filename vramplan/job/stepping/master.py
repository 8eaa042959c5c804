"""Why an optimizer is not stepped over an fp32 master copy: what the programs that have one do instead."""

from __future__ import annotations

from vramplan.options import words

FLAT = "programs that step a master copy with any optimizer (DeepSpeed) make one flat tensor of the whole model"


def no_master_copy(optimizer: str, precision: str) -> tuple[str, str]:
    """The reason and a way out, of an optimizer that is modelled without a master copy.

    Source: deepspeed/runtime/bf16_optimizer.py, _setup_for_real_optimizer, and fp16/fused_optimizer.py, FP16_Optimizer;
    megatron/core/optimizer/muon.py.
    """
    half = precision.rpartition("-")[2] if precision.startswith("mixed-") else "bf16"
    hint = f"pure-{half} or amp-{half}; or adamw"
    what = f"{optimizer} over a master copy ({precision})"
    if optimizer in words.STEPPED_IN_BACKWARD:
        return f"{what} exists nowhere: it steps the weights themselves as their gradients come", hint
    if optimizer == "muon":
        return f"{what} is not modelled: {FLAT}, where it finds no matrices, and Megatron has a Muon of its own", hint
    if words.pattern_word(optimizer) in words.LOW_RANK_OPTIMIZERS:
        return f"{what} exists nowhere: {FLAT}, where it finds no matrices", hint
    if optimizer == "adafactor":
        return f"{what} is not modelled: {FLAT}, which has no rows and columns to factor", hint
    return f"{what} is not modelled: {FLAT}, another layout of weights, gradients and states", hint
