"""Random jobs of training programs with models of their own, whose techniques meet as in tests/traces/drawn.py.

What a program can be asked is in its rig: kinds of sharding, precisions, types of models, and what its `check` says. A
technique that no rig of the program runs is left out of the job, and the rest is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.traces.drawn import GPU, PROBABILITY, Keys, model_of
from tests.traces.programs import MODULES, Program
from vramplan.options.words import DISTILLATIONS

INSIDE, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
LENGTHS = (8, 17, 32, 64, 100, 128)
TRACED = "2.13"  # the PyTorch of the rigs, where a job without one may be of an older program
IMPLEMENTATIONS = ("fused", "foreach", "for-loop")


class Choices(NamedTuple):
    """What is drawn of a program; what stands several times is likelier."""

    checkpoints: tuple[str, ...] = ("none",)
    losses: tuple[str, ...] = ("standard",)
    optimizers: tuple[str, ...] = ("adamw", "adamw", "sgd-momentum")
    attentions: tuple[str, ...] = ("flash", "efficient")
    adapters: bool = False
    quantized: tuple[str, ...] = ()
    rounded: tuple[tuple[str, str | None], ...] = ()
    distils: tuple[str, ...] = ()
    dropouts: tuple[float, ...] = ()
    clips: bool = False
    defers: bool = True  # gradients are reduced in the last micro-step alone
    is_flat: bool = False  # its FSDP is the first version, whatever a job says
    halves_sums: bool = False  # FSDP1's mixed precision sums gradients in 16 bits
    outlives: bool = False  # its loop may keep outputs until the next forward pass has made new ones
    sharded: float = 0.4  # of the jobs
    parallel: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # its own keys, each drawn by itself


CHOICES = {
    "torchtune": Choices(
        checkpoints=("none", "full"),
        losses=("standard", "chunked:2", "chunked:3", "chunked:8"),
        adapters=True,
        rounded=(("int4", "int8"), ("int4-tinygemm", None)),
        distils=DISTILLATIONS,
        parallel=(("fsdp_units", ("blocks", "embedding", "head", "embedding-and-head")),),
    ),
    "litgpt": Choices(
        checkpoints=("none", "full", "every:2"),
        losses=("standard", "chunked:1", "chunked:2", "chunked:3"),
        adapters=True,
        quantized=("nf4", "nf4-double"),
        outlives=True,
        parallel=(("fsdp_version", (1,)),),
        halves_sums=True,
    ),
    "torchtitan": Choices(
        checkpoints=("none", "full", "selective-op", "selective-layer:2"),
        losses=("standard", "standard", "fp32-logits", "vocab-parallel"),
        optimizers=("adamw",),
        clips=True,
        defers=False,
        sharded=1.0,
        parallel=(
            ("tensor", (2,)),
            ("sequence_parallel", (True,)),
            ("shards", (2,)),
            ("fsdp_units", ("blocks", "embedding-and-norm-head")),
            ("reduce_dtype", ("bf16", "fp32")),
        ),
    ),
    "llm-foundry": Choices(
        checkpoints=("none", "full"),
        attentions=("flash",),
        parallel=(("reduce_dtype", ("bf16", "fp32")),),
        is_flat=True,
    ),
    "nanogpt": Choices(dropouts=(0.0, 0.1), outlives=True),
}
"""By engine."""


def program_class(engine: str) -> type[Program]:
    """What runs an engine."""
    found: type[Program] = import_module(f"tests.traces.{MODULES[engine]}").PROGRAM
    return found


def job_of(random: Random, engine: str, folder: Path) -> Keys:
    """A job of a program in the words of the job format; its model is read from a `config.json` in the folder."""
    program, choices = program_class(engine), CHOICES[engine]
    model_type = random.choice(program.TYPES)
    keys: Keys = {
        "model": model_of(random, model_type, folder),
        "gpu": GPU,
        "runtime": engine,
        "sequence_length": random.choice(LENGTHS),
        "micro_batch_size": random.choice([1, 2, 3, 5]),
        "gradient_accumulation_steps": random.choice([1, 1, 2, 3]),
        "precision": random.choice(program.PRECISIONS),
        "attention": random.choice(choices.attentions),
        "optimizer": random.choice(choices.optimizers),
        "optimizer_implementation": random.choice(IMPLEMENTATIONS),
        "activation_checkpointing": random.choice(choices.checkpoints),
        "loss": random.choice(choices.losses),
        "max_gradient_norm": 1.0 if choices.clips and random.random() < 0.5 else None,
    }
    if keys["precision"] == "fp32" and keys["attention"] == "flash":  # which is of 16 bits
        keys["attention"] = "efficient"
    keys["hold_outputs"] = random.random() < 0.6
    if keys["hold_outputs"]:
        late = random.random() < 0.5
        keys["hold_outputs_until"] = "next-forward" if late and choices.outlives else "backward"
    if choices.dropouts:
        keys["dropout"] = random.choice(choices.dropouts)
    if choices.adapters and random.random() < 0.5:
        keys["adapter"] = _lora(random)
        if choices.quantized and random.random() < 0.4:
            keys["quantization"] = random.choice(choices.quantized)
        if choices.distils and random.random() < 0.4:
            keys |= {"teacher": model_of(random, model_type, folder, vocabulary_of=keys["model"])}
            keys["distillation"] = random.choice(choices.distils)
    if choices.rounded and random.random() < PROBABILITY:
        weights, activations = random.choice(choices.rounded)
        keys["qat"] = {"weights": weights, "group_size": random.choice([8, 16, 32])}
        if activations is not None:
            keys["qat"]["activations"] = activations
    if program.COMPILES and random.random() < PROBABILITY:
        keys["compile"] = True
        keys["pytorch_version"] = TRACED
    if program.KINDS and random.random() < choices.sharded:
        keys["parallel"] = _parallel(random, program.KINDS, choices, keys)
    parallel = keys.get("parallel")
    flat = parallel is not None and (choices.is_flat or parallel.get("fsdp_version") == 1)
    word, _, half = keys["precision"].partition("-")
    if word in ("fsdp", "amp") and program.PRECISIONS != ("fsdp-bf16",):  # FSDP1 has mixed precision of its own
        mixed = f"{'fsdp' if flat else 'amp'}-{half}"
        keys["precision"] = mixed if mixed in program.PRECISIONS else "fsdp-bf16"
        if parallel is not None and flat and choices.halves_sums:
            parallel["reduce_dtype"] = half
    return keys


def _lora(random: Random) -> Keys:
    """Matrices of attention, of the MLP all or none, or all of both."""
    inside = [one for one in INSIDE if random.random() < 0.5] or ["q_proj"]
    targets = [*inside, *(MLP if random.random() < 0.5 else ())]
    return {
        "kind": "lora",
        "rank": random.choice([1, 4, 8]),
        "targets": targets,
        "dropout": random.choice([0.0, 0.05]),
    }


def _parallel(random: Random, kinds: Sequence[str], choices: Choices, keys: Keys) -> Keys:
    parallel: Keys = {"data": random.choice([2, 3, 4, 8]), "sharding": random.choice(kinds)}
    if keys["gradient_accumulation_steps"] > 1:
        parallel["no_sync"] = choices.defers and random.random() < 0.5
    for key, values in choices.parallel:
        if random.random() < 0.5:
            parallel[key] = random.choice(values)
    return parallel
