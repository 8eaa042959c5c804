"""What the loop of `vramplan measure` can run, and whether this machine has the libraries for it.

It is asked before PyTorch is imported.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from vramplan.errors import UsageError
from vramplan.options import words
from vramplan.values.job import ResolvedJob

TRACED_MICRO_STEPS = 3  # of an accumulation that a trace runs: from the second on they are alike

# Checkpoints of less than a block.
CORE, PRODUCTS, SOME_LAYERS = "selective", "selective-op", "selective-layer"
SELECTIVE = (CORE, PRODUCTS, SOME_LAYERS)

LOSSES = ("standard", "fp32-logits", "half-logits", "chunked", "fused", "tiled")
PREFERENCES = ("dpo", "dpo-logits", "orpo", "cpo", "simpo", "reward", "grpo")  # which trainers of TRL make
LIGER, AXOLOTL = "liger_kernel", "axolotl"
LOSS_PACKAGES = {"fused": LIGER, "tiled": "trl"} | dict.fromkeys(PREFERENCES, "trl")

QUANTIZED = ("nf4", "nf4-double", "int8")

GALORE, MUON = "galore-adamw", "muon"
GALORE_8BIT, GALORE_ADAFACTOR, APOLLO, ADAM_MINI = "galore-adamw-8bit", "galore-adafactor", "apollo-adamw", "adam-mini"
LOMO = {"lomo": "Lomo", "adalomo": "AdaLomo"}
"""Optimizers of lomo-optim, which step in backward, and their classes."""
BITSANDBYTES: dict[str, tuple[str, dict[str, float]]] = {
    "adamw-8bit": ("AdamW8bit", {}),
    "adamw-paged": ("PagedAdamW32bit", {}),
    "adamw-8bit-paged": ("PagedAdamW8bit", {}),
    "adamw-32bit": ("AdamW32bit", {}),
    "lion": ("Lion", {}),
    "lion-8bit": ("Lion8bit", {}),
    "lion-paged": ("PagedLion32bit", {}),
    "lion-8bit-paged": ("PagedLion8bit", {}),
    "ademamix": ("AdEMAMix", {}),
    "ademamix-8bit": ("AdEMAMix8bit", {}),
    "ademamix-paged": ("PagedAdEMAMix", {}),  # PagedAdEMAMix32bit of 0.50.2 makes one moment too few
    "ademamix-8bit-paged": ("PagedAdEMAMix8bit", {}),
    "sgd-momentum-32bit": ("SGD32bit", {"momentum": 0.9}),
    "sgd-momentum-8bit": ("SGD8bit", {"momentum": 0.9}),
    "rmsprop-32bit": ("RMSprop32bit", {}),
    "rmsprop-8bit": ("RMSprop8bit", {}),
    "adagrad-32bit": ("Adagrad32bit", {}),
    "adagrad-8bit": ("Adagrad8bit", {}),
    "lamb": ("LAMB", {}),
    "lars": ("LARS", {"momentum": 0.9}),
}
FP32_STATES = BITSANDBYTES | {"adam-32bit": ("Adam32bit", {})}
"""The same with the one that no word of a job has alone: of states in fp32 beside weights in 16 bits."""

LOW_RANK: dict[str, tuple[str, str, dict[str, Any]]] = {
    GALORE: ("galore_torch", "GaLoreAdamW", {"no_deprecation_warning": True}),
    GALORE_8BIT: ("galore_torch", "GaLoreAdamW8bit", {}),
    GALORE_ADAFACTOR: ("galore_torch", "GaLoreAdafactor", {"scale_parameter": False, "relative_step": False}),
    APOLLO: ("apollo_torch", "APOLLOAdamW", {"no_deprecation_warning": True}),
}
"""Optimizers that project gradients of linear layers: package, class and arguments."""

OF_SMALL_LIBRARIES: dict[str, tuple[str, str]] = {
    "schedule-free-adamw": ("schedulefree", "AdamWScheduleFree"),
    "schedule-free-sgd": ("schedulefree", "SGDScheduleFree"),
    "schedule-free-radam": ("schedulefree", "RAdamScheduleFree"),
    "stable-adamw": ("optimi", "StableAdamW"),
    "adamw-optimi": ("optimi", "AdamW"),
    "grokadamw": ("grokadamw", "GrokAdamW"),
    "came": ("came_pytorch", "CAME"),
    "prodigy": ("prodigyopt", "Prodigy"),
    "adopt": ("axolotl.utils.optimizers.adopt", "ADOPT"),
    "adamc": ("axolotl.utils.optimizers.adamc", "AdamC"),
}
"""Where their classes are."""

DISTRIBUTIONS = {"optimi": "torch-optimi"}  # packages that are installed by another name than they are imported by

OPTIMIZER_PACKAGES = {word: package for word, (package, _, _) in LOW_RANK.items()}
OPTIMIZER_PACKAGES |= {word: module.partition(".")[0] for word, (module, _) in OF_SMALL_LIBRARIES.items()}
OPTIMIZER_PACKAGES |= {ADAM_MINI: "adam_mini"} | dict.fromkeys(LOMO, "lomo_optim")
OPTIMIZER_PACKAGES |= dict.fromkeys(BITSANDBYTES, "bitsandbytes")
OPTIMIZERS = (*words.TORCH_OPTIMIZERS, *BITSANDBYTES, *LOW_RANK, ADAM_MINI, *LOMO, *OF_SMALL_LIBRARIES)


def check_installed(job: ResolvedJob) -> None:
    """Raise UsageError if a library that the job needs is not there."""
    adapter = job.adapter
    word = job.optimizer.partition(":")[0]
    stepped_by = None if words.over_master_copy(job.precision) else OPTIMIZER_PACKAGES.get(word)
    needed = (
        ("adapter", "" if adapter is None else adapter.kind, "peft"),
        ("trained_blocks", job.trained_blocks == "badam" and "badam", "badam"),
        ("optimizer", job.optimizer, stepped_by),
        ("loss", job.loss, LOSS_PACKAGES.get(job.loss)),
        ("liger_kernels", ", ".join(job.liger_kernels), LIGER),
        ("teacher", job.teacher is not None and "teacher", "trl"),
        ("teacher_logprobs", job.teacher_logprobs is not None and "teacher_logprobs", AXOLOTL),
        ("tiled_mlp", job.tiled_mlp is not None and "tiled_mlp", AXOLOTL),
        ("adapter.kernels", adapter is not None and ", ".join(adapter.kernels), AXOLOTL),
        ("qat", job.qat is not None and job.qat.weights, "torchao"),
        ("quantization", job.quantization in QUANTIZED and job.quantization, "bitsandbytes"),
    )
    for key, what, package in needed:
        if what and package is not None and find_spec(package) is None:
            name = DISTRIBUTIONS.get(package) or package.replace("_", "-")
            raise UsageError(f"{what} needs {name}", key=key, hint=f"pip install {name}")
