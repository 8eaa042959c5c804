"""Element types that differ from a precision's own: each combination is a program that has it, or is refused."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.options import words
from vramplan.tuples import NamedTuple
from vramplan.values.machine import Gpu, Runtime

FSDP_PRECISION = "fsdp-bf16"  # fp32 shards, gathered in bf16 instead of cast
FSDP_HALVES = (FSDP_PRECISION, "fsdp-fp16")  # the same in fp16, for GPUs without bf16
SCALED = ("amp-fp16", "fsdp-fp16")  # whose gradients are fp32, and made in fp16
FSDP_FP8 = "fsdp-fp8"  # the same with products in fp8
FAR = "docs/precision.md has a table of the combinations that programs have"
MEANT = {
    ("weight_dtype", "int8"): "weights in 8 bits, which an adapter trains over, are --quantization int8",
    ("weight_dtype", "fp8"): "products in fp8 are --precision fp8",
    ("compute_dtype", "int8"): "weights in 8 bits, which an adapter trains over, are --quantization int8",
    ("optimizer_state_dtype", "int8"): "states in 8 bits are --optimizer adamw-8bit",
    ("optimizer_state_dtype", "fp8"): "states in 8 bits are --optimizer adamw-8bit",
}
"""What people mean by an element type of 8 bits, which no program has in that place."""


class Cells(NamedTuple):
    """A precision, and what is not as its name says."""

    precision: str
    half_weights: bool = False  # autocast over weights that have its element type already
    fp32_gradients: bool = False  # half-precision gradients are summed in fp32 buffers
    fp32_states: bool = False  # 32-bit states of half weights, without a master copy


def own_cells(precision: str) -> dict[str, str]:
    """The element types of a precision, as the table in docs/job-format.md has them."""
    if precision == "fp8":
        return {**own_cells("mixed-bf16"), "compute_dtype": "fp8"}
    if precision in FSDP_HALVES:
        return own_cells(precision.replace("fsdp", "amp"))
    if precision == FSDP_FP8:
        return {**own_cells("amp-bf16"), "compute_dtype": "fp8"}
    half = precision.rpartition("-")[2]
    if precision == "fp32" or precision.startswith("amp-"):
        own = {
            "weight_dtype": "fp32",
            "gradient_dtype": "fp32",
            "master_dtype": "none",
            "optimizer_state_dtype": "fp32",
        }
    elif precision.startswith("mixed-"):
        own = {"weight_dtype": half, "gradient_dtype": half, "master_dtype": "fp32", "optimizer_state_dtype": "fp32"}
    elif precision.startswith("pure-"):
        own = {"weight_dtype": half, "gradient_dtype": half, "master_dtype": "none", "optimizer_state_dtype": half}
    else:
        return {}
    return {**own, "compute_dtype": half}


def compose(fields: Fields, given: dict[str, str], precision: str, optimizer: str | None, gpu: Gpu | None) -> Cells:
    """The precision and its deviations that the given element types mean; others are refused, with what is near.

    Gradients and states that are not given follow the weights, as they do in torch.optim.
    """
    own = own_cells(precision)
    if not own or not given:
        return Cells(precision)
    _check_states(fields, given, optimizer)
    if precision == FSDP_FP8:
        for key, word in given.items():
            if word != own[key]:
                fields.refuse(key, f"{word} is not modelled with {precision} ({own[key]})", hint="leave it out")
        return Cells(precision)
    if precision in FSDP_HALVES:
        half = given.get("weight_dtype") == own["compute_dtype"]  # of what is frozen, see job/sharding.py
        for key, word in given.items():
            if word != own[key] and not (half and key == "weight_dtype"):
                fields.refuse(key, f"{word} is not modelled with {precision} ({own[key]})", hint="leave it out")
        return Cells(precision, half_weights=half)
    if precision == "fp8":  # the states are those of mixed-bf16
        if given.get("compute_dtype", "fp8") != "fp8":
            fields.refuse("compute_dtype", f"{given['compute_dtype']} is not modelled (fp8 has fp8)", hint=FAR)
            return Cells(precision)
        states = {key: word for key, word in given.items() if (key, word) != ("compute_dtype", "fp8")}
        composed = compose(fields, states, "mixed-bf16", optimizer, gpu)
        if composed.precision != "mixed-bf16":
            key = next(iter(states))
            message = f"{states[key]} is not modelled with fp8, whose states are those of mixed-bf16"
            fields.refuse(key, message, hint=FAR)
        return composed._replace(precision=precision)
    cells = {**own, **given}
    weights, compute = cells["weight_dtype"], cells["compute_dtype"]
    if "weight_dtype" in given and weights != own["weight_dtype"] and cells["master_dtype"] == "none":
        cells |= {key: weights for key in ("gradient_dtype", "optimizer_state_dtype") if key not in given}
    if cells["gradient_dtype"] == "none":
        fields.refuse("gradient_dtype", "none belongs to the runtime textbook", hint="runtime: textbook")
        return Cells(precision)
    if compute == "bf16" and own["compute_dtype"] != "bf16" and gpu is not None and gpu.bf16 is False:
        fields.refuse("compute_dtype", f"{gpu.name} has no bf16")
        return Cells(precision)
    found = _program(cells, precision, optimizer or "adamw")
    if isinstance(found, Cells):
        return found
    key, why = found
    fields.refuse(key if key in given else next(iter(given)), why, hint=FAR)
    return Cells(precision)


def _check_states(fields: Fields, given: dict[str, str], optimizer: str | None) -> None:
    """Refuse a type of states that the optimizer's own code contradicts, whatever the weights are.

    Source: bitsandbytes/optim/optimizer.py, Optimizer2State.init_state: 8 bits for large parameters, else fp32.
    """
    key = "optimizer_state_dtype"
    states = given.get(key)
    own = (*words.BITSANDBYTES_OPTIMIZERS, *words.TORCHAO_OPTIMIZERS, *words.STATES_IN_FP32)
    if states is None or optimizer not in own:
        return
    if optimizer in words.TORCHAO_OPTIMIZERS:
        fields.refuse(key, f"{states} contradicts {optimizer}, whose states are torchao's", hint="leave it out")
        return
    if "8bit" in optimizer:
        message = f"{states} contradicts {optimizer}, whose states have 8 bits; the states of small parameters are fp32"
        fields.refuse(key, message, hint=f"leave it out, or use {optimizer.replace('-8bit', '')} for fp32 states")
    elif states != "fp32":
        fields.refuse(key, f"{states} contradicts {optimizer}, whose states are fp32", hint="leave it out")


def _program(cells: dict[str, str], precision: str, optimizer: str) -> Cells | tuple[str, str]:
    """The program that has these element types; or a key and why there is none."""
    weights, gradients, master, states, compute = (cells[key] for key in words.CELLS)
    for key in words.CELLS:
        if cells[key] in ("fp8", "int8"):
            meant = MEANT.get((key, cells[key]))
            return key, f"{cells[key]} is not modelled" + (f"; {meant}" if meant else "")
    if weights == "none" or compute == "none" or states == "none":
        key = next(key for key in words.CELLS if cells[key] == "none" and key not in ("gradient_dtype", "master_dtype"))
        return key, "none belongs to the runtime textbook"
    if weights != "fp32" and compute != weights:
        return "compute_dtype", f"{compute} products of {weights} weights are not modelled: no program has them"
    if master != "none":
        return _over_master(cells, precision)
    if gradients != weights:
        what = f"{gradients} gradients of {weights} weights are not modelled without a master copy"
        return "gradient_dtype", f"{what} ({precision} has {own_cells(precision)['gradient_dtype']})"
    if weights == "fp32":
        if states != "fp32":
            return "optimizer_state_dtype", f"{states} states of fp32 weights are not modelled"
        return Cells("fp32" if compute == "fp32" else f"amp-{compute}")
    half_weights = precision in (f"amp-{weights}", "fp32")
    name = f"amp-{weights}" if half_weights else f"pure-{weights}"
    if states == weights or (states == "fp32" and optimizer in words.OWN_STATES):
        return Cells(name, half_weights)
    if states != "fp32":
        return "optimizer_state_dtype", f"{states} states of {weights} weights are not modelled"
    if optimizer not in words.FP32_STATES:
        able = ", ".join(words.FP32_STATES)
        return (
            "optimizer_state_dtype",
            f"fp32 states of {weights} weights are modelled for {able}, as bitsandbytes has them",
        )
    return Cells(name, half_weights, fp32_states=True)


def _over_master(cells: dict[str, str], precision: str) -> Cells | tuple[str, str]:
    weights, gradients, master, states, _ = (cells[key] for key in words.CELLS)
    if master != "fp32":
        return "master_dtype", f"a master copy in {master} is not modelled"
    if weights == "fp32":
        return "master_dtype", "a master copy of fp32 weights is not modelled: no program has one"
    if precision.startswith("amp-"):
        return "master_dtype", f"a master copy under autocast is not modelled (mixed-{weights} has one)"
    if gradients not in ("fp32", weights):
        return "gradient_dtype", f"{gradients} gradients of {weights} weights are not modelled: no program has them"
    if states != "fp32":
        return "optimizer_state_dtype", f"{states} states beside an fp32 master copy are not modelled"
    return Cells(f"mixed-{weights}", fp32_gradients=gradients == "fp32")


def check_scaled_halves(fields: Fields, cells: Cells, runtime: Runtime | None, *, copied: bool) -> None:
    """Refuse to train fp16 weights under a program that scales every loss of autocast in fp16.

    Its first step ends in "Attempting to unscale FP16 gradients", with every optimizer, and whether it clips or not.
    `copied`: what is trained in fp16 are PEFT's copies of modules, as a classifier, or biases; its adapters have fp32.
    Source: torch/amp/grad_scaler.py, GradScaler.unscale_ and _check_inf_per_device (allow_fp16 is False);
    peft/tuners/tuners_utils.py, cast_adapter_dtype, which leaves modules_to_save as they are.
    """
    if runtime is not None and cells.precision == "amp-fp16" and cells.half_weights:
        what = "copies of modules, biases and adapters in fp16" if copied else "fp16 weights"
        message = f"{what} are not trained by {runtime.name} under amp-fp16: GradScaler unscales no fp16 gradients"
        other = "" if copied else "an adapter, "
        fields.refuse(
            "weight_dtype",
            message,
            hint=f"use fp32, {other}or precision pure-fp16; grad_scaler: false, where your loop has none",
        )


def check_scaler(fields: Fields, cells: Cells, optimizer: str, *, in_backward: bool, trains_half: bool) -> None:
    """Refuse a scaled loss where torch.amp.GradScaler does not go with the rest.

    `trains_half`: what is trained has 16 bits, as the weights; adapters of fp32 beside them do not.
    """
    key = "grad_scaler"
    if cells.precision not in SCALED:
        message = f"true belongs to {' and '.join(SCALED)}: it is not modelled with {cells.precision}"
        fields.refuse(key, message, hint="leave it out; bf16 has the range of fp32")
    elif trains_half:
        fields.refuse(key, "true contradicts weight_dtype fp16: torch.amp.GradScaler unscales no fp16 gradients")
    elif in_backward:
        fields.refuse(key, "true contradicts optimizer_in_backward: gradients are unscaled after backward")
    elif optimizer == "muon":
        fields.refuse(key, "true is not modelled with muon, which is two optimizers")
