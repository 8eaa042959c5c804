"""Changes that train something else: other optimizers, element types and adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.planner.candidate import NUMBERS, Candidate
from vramplan.replay.models.capable import own_linear, separates_experts
from vramplan.results import OPTIMIZER, TIME, TRAINING
from vramplan.values.job import ResolvedJob, trains_all

RANK = 16
QUANTIZATION = "nf4"
BEFORE_STACKED = "4.57"  # the last release of Transformers whose experts are linear layers
NARROWER = {"adam": "adamw-8bit"} | {word: f"{word}-8bit" for word in ("adamw", "lion", "ademamix")}
PAGED = {word: f"{word}-paged" for word in ("adamw", "lion", "ademamix")}
OF_THE_STEP = ("optimizer_implementation", "optimizer_state_dtype")


def other_optimizer(base: ResolvedJob) -> Iterator[Candidate]:
    """Optimizers with fewer states, or with smaller ones."""
    if base.optimizer in PAGED:
        words = "states are paged to the host when memory runs out"
        yield Candidate({"optimizer": PAGED[base.optimizer]}, TIME, words, resets=OF_THE_STEP)
    if base.optimizer in NARROWER:
        words = "moments in 8 bits (bitsandbytes)"
        yield Candidate({"optimizer": NARROWER[base.optimizer]}, OPTIMIZER, words, "optimizer", OF_THE_STEP)
    if base.optimizer in ("adamw", "adam"):
        words = "factored second moments, no momentum: other hyper-parameters"
        yield Candidate({"optimizer": "adafactor"}, OPTIMIZER, words, "optimizer", OF_THE_STEP)
    if base.optimizer in ("adamw", "adam", "rmsprop", "sgd-momentum"):
        words = "no moments: trains transformers badly"
        yield Candidate({"optimizer": "sgd"}, OPTIMIZER, words, "optimizer", OF_THE_STEP)


def other_numbers(base: ResolvedJob) -> Iterator[Candidate]:
    """16 bits in place of 32."""
    if base.precision.startswith("pure-") or base.half_weights:
        return
    able = base.gpu.bf16 is not False
    half = "bf16" if base.precision.endswith("bf16") or base.precision == "fp8" else "fp16"
    if base.precision == "fp32":
        half = "bf16" if able else "fp16"
        words = "16-bit matrix products; fp16 wants loss scaling"
        yield Candidate({"precision": f"amp-{half}"}, TRAINING, words, "products", NUMBERS)
    words = "weights and states in 16 bits: less accurate updates"
    if base.precision.startswith(("amp-", "fsdp-")):
        own = words if trains_all(base) else "the frozen weights in 16 bits"
        yield Candidate({"weight_dtype": half}, TRAINING, own, "half", NUMBERS)
    resets = (*NUMBERS, *OF_THE_STEP, "grad_scaler")
    yield Candidate({"precision": f"pure-{half}"}, TRAINING, words, "half", resets)


def lighter(base: ResolvedJob) -> Iterator[Candidate]:
    """An adapter beside a frozen model, and its weights in few bits."""
    few = "the frozen weights in 4 bits, unpacked at each use: other results"
    resets = (*NUMBERS, "precision", "grad_scaler", "optimizer_in_backward")
    if not trains_all(base):
        if base.adapter is not None and base.quantization is None:
            change: dict[str, Any] = {"quantization": QUANTIZATION, **_own_reference(base)}
            yield Candidate(change, TRAINING, few, "qlora", resets)
        yield from _quantized_layers(base)
        yield from _quantized_experts(base)
        return
    lora = {"adapter": {"kind": "lora", "rank": RANK, "targets": ["all-linear"]}, **_own_reference(base)}
    words = "another training: small matrices beside a frozen model"
    half = "fp16" if base.precision.endswith("fp16") or base.gpu.bf16 is False else "bf16"
    for change, more in (({}, ""), ({"weight_dtype": half}, " in 16 bits")):
        yield Candidate({**lora, **change}, TRAINING, words + more, "lora", resets)
    change = {**lora, "quantization": QUANTIZATION}
    yield Candidate(change, TRAINING, f"{words} in 4 bits, unpacked at each use: other results", "qlora", resets)


def _quantized_layers(base: ResolvedJob) -> Iterator[Candidate]:
    """Linear layers of a class of their own in few bits too: by another release of Transformers."""
    own_layers, bits = own_linear(base.model.family), base.quantization
    if own_layers is None or base.model.engine is not None or base.transformers_version is not None:
        return
    if bits is not None and bits.startswith(("nf4", "int8")):
        words = f"{own_layers} in {bits} too: other results"
        yield Candidate({"transformers_version": base.runtime.last_with_own_layers}, TRAINING, words)


def _quantized_experts(base: ResolvedJob) -> Iterator[Candidate]:
    """Experts in few bits beside linear layers that have them: by another release of Transformers, or by Axolotl."""
    experts, bits = base.model.experts, base.quantization
    if experts is None or experts.separate or base.quantized_experts or base.model.engine is not None:
        return
    if bits is None or not bits.startswith(("nf4", "int8")):
        return
    few = f"the experts in {bits} too: other results"
    if base.transformers_version is None and separates_experts(base.model.family):
        words = f"{few}, and each expert runs by itself"
        yield Candidate({"transformers_version": BEFORE_STACKED}, TRAINING, words, "experts")
    yield Candidate({"quantized_experts": True}, TRAINING, f"{few}, by Axolotl", "experts")


def _own_reference(base: ResolvedJob) -> dict[str, Any]:
    """The reference of preference training: in place of a second model the one that trains, without its adapter."""
    return {"dpo_reference": "adapter-off"} if base.dpo_reference == "model" else {}
