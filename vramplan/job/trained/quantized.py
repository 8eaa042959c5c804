"""Which quantized weights a job can have: what only some of them allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.document import Mapping
from vramplan.catalog.fields import Fields
from vramplan.job.given.read import RawJob
from vramplan.job.losses.classifiers import CAUSAL
from vramplan.replay.models.capable import keeps_fp32, left_unquantized, no_int8, no_quantization
from vramplan.replay.techniques.adapters import GPTQ
from vramplan.replay.techniques.evidence import quantizable
from vramplan.replay.techniques.gptq import GROUP_SIZE, WIDTH_MULTIPLE
from vramplan.replay.techniques.trained import Names, has_no_biases
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape
from vramplan.values.parallel import DDP, ZERO_STAGES, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver


def as_written(resolver: Resolver, written: Sequence[Assumption]) -> None:
    """Take the quantization of the checkpoint where the job says nothing of it, and LoRA beside it.

    Transformers trains no quantized weights without an adapter beside them, so who names such a checkpoint means one.
    """
    raw, fields = resolver.raw, resolver.fields
    if fields.present("quantization"):
        return
    for one in written:
        if not fields.present(one.key):
            setattr(raw, one.key, one.value)
            resolver.assume(*one)
    if not fields.present("adapter") and not raw.frozen:
        node = Mapping(fields.node.line, fields.node.column)
        raw.adapter = Fields(node, fields.sink, "adapter")
        resolver.assume("adapter.kind", "lora", "quantized weights are trained with an adapter beside them")


def check_quantized_experts(raw: RawJob, model: ModelShape | None) -> None:
    """Refuse what has no experts in few bits."""
    key, fields = "quantized_experts", raw.fields
    if raw.quantization is None:
        message = "true quantizes nothing where the linear layers are not quantized"
        fields.refuse(key, message, hint="quantization: nf4, as an option --quantization nf4; or leave it out")
    elif raw.quantization == GPTQ:
        message = f"true is bitsandbytes', and says nothing of {GPTQ}"
        fields.refuse(key, message, hint="leave it out")
    elif model is not None and model.experts is None:
        fields.refuse(key, f"{model.name} has no experts", hint="leave it out")


def check_quantization(raw: RawJob, model: ModelShape | None, precision: str, told: list[Assumption]) -> None:
    """Refuse what quantized weights do not go with; what the figures take for granted is added to `told`."""
    fields, given = raw.fields, raw.quantization
    if raw.adapter is None:
        message = f"{given} weights cannot be trained: they need an adapter beside them"
        fields.refuse("quantization", message, hint="adapter: {kind: lora}, as an option --adapter lora")
    under_zero = raw.sharding in ZERO_STAGES
    if precision.startswith("mixed-") and (under_zero or given != GPTQ):
        whose = f"DeepSpeed's {precision.rpartition('-')[2]}: " if under_zero else ""
        basis = f"{whose}what is trained has a master copy, and the {given} weights none"
        told.append(Assumption("quantization", given, basis))
    elif given == GPTQ:
        check_gptq_precision(raw, precision)
    obstacle = None if model is None else no_quantization(model)
    if model is not None and obstacle is None and given == "int8":
        obstacle = no_int8(model if raw.dropout is None else model.with_dropout(raw.dropout))
    if model is not None and obstacle is not None:
        fields.refuse("quantization", f"{given} cannot run for {model.code}: {obstacle}", hint="leave it out")
    apart = () if model is None else left_unquantized(model.family)
    if apart:
        basis = "Transformers bounds their weights itself, and a step ends in an error where they are quantized too"
        told.append(Assumption("quantization", f"not of {', '.join(apart)} (llm_int8_skip_modules)", basis))
    if model is not None and model.task == "cls" and MODEL_TYPES[model.transformers_model_type].tasks[0] != CAUSAL:
        message = f"{given} would quantize the classifier, which then cannot be trained"
        fields.refuse("quantization", message, hint="leave it out")
    if raw.ema:
        check_average(raw, model, precision)
    told += told_of(given, model, with_experts=bool(raw.quantized_experts))
    if model is not None:
        check_fp16(raw, model, precision)


def told_of(quantization: str | None, model: ModelShape | None, *, with_experts: bool = False) -> list[Assumption]:
    """What the figures take for granted."""
    found: list[str] = []
    if quantization == "int8":
        found.append(
            "columns with outliers depend on the data and are left out: about 0.1 % of them (arXiv:2208.07339)"
        )
    if quantization == GPTQ:
        found.append(f"groups of {GROUP_SIZE}, and gptqmodel's kernel for training (backend auto_trainable)")
    elif model is not None and model.transformers_model_type not in quantizable() and model.engine is None:
        found.append(f"composed, and never traced with {model.transformers_model_type}")
    if with_experts:
        found.append("the stacked weights of experts are given back whole where a module looks at them")
    elif quantization != GPTQ and model is not None and model.experts is not None and not model.experts.separate:
        found.append("bitsandbytes leaves the experts, which are no linear layers, as they are")
    return [Assumption("quantization", quantization, "; ".join(found))] if found else []


def loads_fp16(precision: str, *, half_weights: bool) -> bool:
    """Whether a model that is loaded to be quantized has fp16 in what is left of it."""
    return precision == "pure-fp16" or (precision == "amp-fp16" and half_weights)


def check_fp16(raw: RawJob, model: ModelShape, precision: str) -> None:
    """Some model types have layers that are fp32 where the rest is fp16."""
    half_weights = raw.cells.get("weight_dtype") == "fp16"
    if keeps_fp32(model.family) and loads_fp16(precision, half_weights=half_weights):
        message = f"{raw.quantization} is not modelled with {model.name} in fp16, of which some layers stay in fp32"
        raw.fields.refuse("quantization", message, hint="use bf16, or amp-fp16 alone")


def check_average(raw: RawJob, model: ModelShape | None, precision: str) -> None:
    """A moving average of quantized weights: of the layers of bitsandbytes, whole on each device or sharded by FSDP2.

    The copy is made before the first forward pass, which casts biases where they are; PyTorch averages no two tensors
    of different types. Source: torch/utils/_foreach_utils.py, _group_tensors_by_device_and_dtype; bitsandbytes 0.50.2,
    nn/modules.py, Linear4bit.forward and Linear8bitLt.forward.
    """
    what, hint = f"a moving average of {raw.quantization} weights", "leave one of the two out"
    whole, of_shards = raw.sharding in (None, "none", DDP), is_fsdp(raw.sharding)
    of_others = raw.quantization == GPTQ or (model is not None and model.engine)
    if of_others or not (whole or of_shards) or (raw.quantized_experts and whole):
        raw.fields.refuse("ema", f"{what} is not modelled here", hint=hint)
        return
    half = precision.rpartition("-")[2]
    is_cast = precision.startswith("amp-") and raw.cells.get("weight_dtype") != half
    if is_cast and model is not None and not has_no_biases(model):
        doing = f"its biases stay in fp32, and the first forward pass casts those of the model to {half}"
        if raw.quantization == "int8":  # to the type of what each layer is given
            doing += ", as far as layers are given that; which ones are not modelled"
        hint = f"weight_dtype: {half}; or {hint}"
        raw.fields.refuse("ema", f"{what} cannot be updated with {precision}: {doing}", hint=hint)


def check_gptq_precision(raw: RawJob, precision: str) -> None:
    """A GPTQ checkpoint is a model in 16 bits, with autocast over it or without."""
    half = precision.rpartition("-")[2]
    if precision.startswith("pure-") or (precision.startswith("amp-") and raw.cells.get("weight_dtype") == half):
        return
    message = f"{GPTQ} is not modelled with {precision}: such a checkpoint has 16 bits where it is not quantized"
    hint = "use pure-bf16, or amp-bf16 with weight_dtype"
    if precision.startswith("amp-"):
        hint = f"weight_dtype: {half}, as an option --weight-dtype {half}"
    raw.fields.refuse("quantization", message, hint=hint)


def check_gptq_layers(raw: RawJob, model: ModelShape, names: Names) -> None:
    """Layers have widths that the kernel takes."""
    odd = sorted(width for width in names.widths if width % WIDTH_MULTIPLE)
    if odd:
        message = f"{GPTQ} needs widths that are multiples of {WIDTH_MULTIPLE}, and {model.name} has layers of {odd[0]}"
        raw.fields.refuse("quantization", message, hint="use nf4 or int8")
