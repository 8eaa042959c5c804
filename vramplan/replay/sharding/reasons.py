"""Why FSDP cannot run what is refused under it: what PyTorch, PEFT or bitsandbytes raise. Else it is not modelled."""

from __future__ import annotations

from vramplan.options.words import LOW_RANK_OPTIMIZERS, pattern_word
from vramplan.replay.techniques.trained import adapted_end, names_of
from vramplan.values.adapter_kinds import KINDS, AdapterKind
from vramplan.values.job import ResolvedJob

UNIFORM = "PyTorch makes one tensor of the weights of a unit, and raises an error unless they are all alike in"
FLAT = {
    "frozen": f"{UNIFORM} whether they are trained",
    "precision": "PEFT casts an input to the fp32 of a weight that is not gathered yet, or a prefix, and autocast is "
    "not there to cast it back",
    "quantization": f"{UNIFORM} their element type",
    "adapter": f"{UNIFORM} whether they are trained, and such weights are in the unit of a frozen layer",
}
"""Of FSDP1, by key. Source: torch 2.13, torch/distributed/fsdp/_flat_param.py, _validate_tensors_to_flatten."""

OVER_EXPERTS = "PEFT writes into the weights of experts, which PyTorch forbids in a view of one tensor of several"
READS_HEAD = "the loss reads the weight of the head outside of its module, whose own unit alone gathers it"
TRAINED_TYPES = "PyTorch raises an error unless all that is trained in a unit has one element type"
NO_SCALES = "a DTensor in the place of the weight has none of the scales that bitsandbytes reads there (CB)"

MATRICES = ("muon", *LOW_RANK_OPTIMIZERS)
VECTORS = "it steps matrices, and FSDP1 gives it vectors"
CAME = "came"
OF_DTENSORS = {
    CAME: "it adds a DTensor to a plain tensor, which PyTorch refuses",
    "adafactor": "PyTorch's adafactor changes a DTensor in place in a way that PyTorch refuses",
    "galore-adamw-8bit:RANK": "it gives a DTensor a gradient of another size, which PyTorch refuses",
    **dict.fromkeys(("galore-adafactor:RANK", "adalomo"), "it adds DTensors to plain tensors, which PyTorch refuses"),
    "apollo-adamw:RANK": "it multiplies a DTensor by a plain tensor, which PyTorch refuses",
}
"""What optimizers do with the shards of FSDP2."""

NO_STRATEGY = "PyTorch has no {} of DTensors"
NO_KERNELS = "the kernels of Triton take no DTensors"
OF_STEPS = {
    ("adagrad", "fused"): NO_STRATEGY.format("_fused_adagrad_"),
    ("adopt", "foreach"): NO_STRATEGY.format("_foreach_maximum_ with a number"),
    ("stable-adamw", "foreach"): NO_STRATEGY.format("_foreach_copy_"),
    ("adamw-optimi", "foreach"): NO_STRATEGY.format("_foreach_copy_"),
    ("stable-adamw", "fused"): NO_KERNELS,
    ("adamw-optimi", "fused"): NO_KERNELS,
}
"""The same of a way to step, where another one of the same optimizer runs.

Source: torch 2.13, torch/distributed/tensor/_ops/_pointwise_ops.py; optimi/stableadamw.py, _triton_stableadamw, which
counts the elements of the whole weight.
"""


def reason_of(job: ResolvedJob, key: str) -> str:
    """Why the job's value of a key cannot run; empty where the program runs it."""
    assert job.sharding is not None
    word = pattern_word(job.optimizer)
    if key == "optimizer":
        return OF_DTENSORS.get(word, "") if job.sharding.version == 2 else VECTORS if word in MATRICES else ""
    if key == "optimizer_implementation":
        return OF_STEPS.get((word, job.optimizer_implementation or ""), "")
    if job.sharding.version == 2:
        return {"quantization": NO_SCALES if job.quantization == "int8" else "", "adapter": TRAINED_TYPES}.get(key, "")
    if key == "adapter" and job.adapter is not None:
        modelled_elsewhere = job.model.published_family is not None or _is_elsewhere(KINDS[job.adapter.kind])
        names = names_of(job.model)
        if (job.adapter.bias != "none" and names.has_biases) or adapted_end(names, job.adapter):
            return FLAT[key]
        return "" if modelled_elsewhere else OVER_EXPERTS if job.adapter.kind == "lora" else FLAT[key]
    return READS_HEAD if key == "loss" else FLAT.get(key, "")


def _is_elsewhere(kind: AdapterKind) -> bool:
    """Whether what is trained is in modules of their own, which could be units."""
    return kind.of_tokens or kind.of_norms
