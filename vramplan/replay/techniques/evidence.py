"""Which techniques were traced, with which model code and with which others: looked up in the generated rows.

What a technique touches and what another relies on are declared here; whether the two were traced together is not: it
is read in `traced_rows.py`, which `python -m tests.oracle.evidence` writes out of the traced rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

from vramplan.options import words
from vramplan.replay.models import shares_by_itself
from vramplan.replay.models.capable import offloads
from vramplan.replay.models.parts import compiles_blocks
from vramplan.replay.techniques.vocabulary import (
    EVALUATION,
    FROM_FILE,
    GENERATION,
    TILED_MLP,
    given,
    key_of,
    techniques_of,
    traced_code,
)
from vramplan.tuples import NamedTuple
from vramplan.values.adapter_kinds import KINDS
from vramplan.values.job import ResolvedJob
from vramplan.values.model import ModelShape
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP

COMPILE, FP8, SELECTIVE_OP = "compile: true", "precision: fp8", "activation_checkpointing: selective-op"
REENTRANT, FLAT = "checkpoint_reentrant: true", "parallel.fsdp_version: 1"
PACKING, OFFLOAD = "packing: true", "offload: activations"
PREFERENCES = tuple(f"loss: {word}" for word in ("dpo", "orpo", "cpo", "simpo", "reward", "grpo"))

DISTILLATIONS = tuple(f"distillation: {word}" for word in ("forward-kl", "reverse-kl", "symmetric-kl", "jsd"))
ROUNDED = tuple(f"qat: {word}" for word in words.QAT_WEIGHTS)

INPUTS, TRAINED, WEIGHTS, SAVED, LOSS = "inputs", "trained", "weights", "saved", "loss"
BESIDE, STEP = "beside", "step"

UNITS = (f"parallel.sharding: {FSDP}", f"parallel.sharding: {FSDP_GRAD_OP}")
"""FSDP, which gathers the same units whether it keeps them after forward or not: rows of either count for both."""

TOUCHES = {
    "padding: right": INPUTS,
    PACKING: INPUTS,
    **dict.fromkeys(PREFERENCES, INPUTS),
    "transformers_version: older code": INPUTS,  # masks, and what attention is given
    "transformers_version: experts as modules": WEIGHTS,
    "zero_grad: before-backward": STEP,
    "frozen: parts": TRAINED,
    **{f"adapter: {word}": INPUTS if kind.of_tokens else TRAINED for word, kind in KINDS.items()},
    "adapter: modules_to_save": TRAINED,
    "weight_dtype: 16 bits": WEIGHTS,
    "quantization: nf4": WEIGHTS,
    "quantization: nf4-double": WEIGHTS,
    "quantization: int8": WEIGHTS,
    "quantization: gptq-int4": WEIGHTS,
    **dict.fromkeys(ROUNDED, WEIGHTS),
    OFFLOAD: SAVED,
    "checkpoint_reentrant: true": SAVED,
    TILED_MLP: SAVED,
    **dict.fromkeys(DISTILLATIONS, BESIDE),
    FROM_FILE: LOSS,
    "label_smoothing": LOSS,
    EVALUATION: BESIDE,
    GENERATION: BESIDE,
    "ema: true": STEP,
    "grad_scaler: true": STEP,
    "optimizer_in_backward: true": STEP,
}
"""What a technique changes: what the model is given, which weights are trained, of which element type they are, where
what forward saves lives, the loss, what runs beside
training, or what happens to gradients and weights around the step."""

RELIES_ON = {
    COMPILE: (INPUTS, TRAINED, WEIGHTS, SAVED, LOSS, BESIDE),  # the compiler sees the whole step
    FP8: (INPUTS, TRAINED, WEIGHTS, SAVED, LOSS, BESIDE),  # scales follow what each linear layer gets and gives
    **dict.fromkeys(PREFERENCES, (INPUTS, SAVED)),  # over pairs, some with two forward passes
    PACKING: (INPUTS, TRAINED, WEIGHTS, SAVED, LOSS, BESIDE),  # a mask of its own in every block
    "optimizer: galore-adamw": (TRAINED,),  # which matrices it projects
    SELECTIVE_OP: (TRAINED, WEIGHTS),  # which products there are to keep
    "quantization: gptq-int4": (INPUTS, SAVED),  # gptqmodel's own kernel
    "adapter: over experts": (INPUTS, SAVED, LOSS, BESIDE),  # PEFT wraps parameters in place of layers
    **dict.fromkeys(UNITS, (INPUTS, SAVED, BESIDE, STEP)),  # weights are whole in a unit's own forward and backward
    "parallel.fsdp_units: ends": (TRAINED, LOSS),  # how often the head runs, and whether it gets gradients
    FLAT: (SAVED,),  # its views of a flat parameter are made again where a checkpoint runs again
}
"""What a technique's mechanism reads: beside a technique that changes that, it needs a traced row of the two."""

FAMILY_BY_FAMILY = ((COMPILE, TRAINED),)
"""Pairs that need rows of the very family: what a compiler fuses around an adapter depends on the code of a block."""


class EvidenceGap(NamedTuple):
    """A technique that no row has beside another, or with the model's code."""

    technique: str
    beside: str | None  # another technique; None: the model's code

    def sentence(self, job: ResolvedJob) -> str:
        """What is refused, or told, at the technique's key."""
        shown = given(job, self.technique)
        if self.beside is None:
            return f"{shown} was never traced with {traced_code(job.model)}"
        known = rows_of(self.technique, self.beside).number > 0
        whose = f" in the code of {job.model.code}" if known else ""
        return f"{shown} was never traced together with {key_of(self.beside)} {given(job, self.beside)}{whose}"


class Rows(NamedTuple):
    """The traced rows of a technique, or of a pair."""

    number: int
    files: tuple[str, ...]
    codes: tuple[str, ...]  # of one technique: as `traced_code` has them; of a pair: families
    families: tuple[str, ...]  # as `ModelShape.code` has them: with the training program whose code it is


NO_ROWS = Rows(0, (), (), ())
UNDER = " under "  # in what `ModelShape.code` calls a family of a training program's own code


def missing(job: ResolvedJob) -> tuple[EvidenceGap, ...]:
    """All gaps: techniques never traced with the model's code, and pairs never with each other, in any family."""
    has, code = techniques_of(job), traced_code(job.model)
    alone = [EvidenceGap(one, None) for one in has if code not in rows_of(one).codes]
    return (*alone, *(EvidenceGap(other, one) for one, other in combinations(has, 2) if not rows_of(one, other).number))


def untraced(job: ResolvedJob) -> tuple[EvidenceGap, ...]:
    """The gaps that are refused: one mechanism reads what the other changes, and no row says that they compose."""
    has = techniques_of(job)
    found: dict[frozenset[str], EvidenceGap] = {}
    for one, other in _reliant(has):
        if not _has_basis(job, one, other) and not _is_traced(job, one, other):
            found.setdefault(frozenset((one, other)), EvidenceGap(other, one))
    return tuple(found.values())


def _reliant(has: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Pairs of which the first reads what the second changes, in the order of `RELIES_ON`."""
    for one, reads in RELIES_ON.items():
        if one in has:
            yield from ((one, other) for other in has if other != one and TOUCHES.get(other) in reads)


def _has_basis(job: ResolvedJob, one: str, other: str) -> bool:
    """Whether the family's code has a path of its own for the pair, whose basis is told with the answer."""
    if one in UNITS:
        return shares_by_itself(job.model.family)
    if one != COMPILE:
        return False
    if other == OFFLOAD:
        return offloads(job.model.family)
    return key_of(other) in ("adapter", "quantization") and compiles_blocks(job.model.family)


def _is_traced(job: ResolvedJob, one: str, other: str) -> bool:
    rows = rows_of(one, other)
    if (one, TOUCHES.get(other)) in FAMILY_BY_FAMILY:
        return job.model.code in rows.codes
    return any(rows_of(kind, other).number for kind in (UNITS if one in UNITS else (one,)))


def rows_of(*techniques: str) -> Rows:
    """The rows of one technique, or of a pair."""
    return _read().get(" + ".join(sorted(techniques)), NO_ROWS)


def is_traced_with(model: ModelShape, *techniques: str) -> bool:
    """Whether the code of the model's family was traced with any of some techniques."""
    return any(model.code in rows_of(one).families for one in techniques)


def given_without_rows(job: ResolvedJob, key: str, *beside: str) -> str:
    """What a job has at a key that no row has beside any of some techniques, as a message shows it; "" for none."""
    found = (one for one in techniques_of(job) if key_of(one) == key)
    return ", ".join(given(job, one) for one in found if not any(rows_of(one, other).number for other in beside))


def model_types_with(*techniques: str) -> tuple[str, ...]:
    """Model types of Transformers whose code was traced with any of some techniques, sorted."""
    codes = {code for one in techniques for code in rows_of(one).codes}
    return tuple(sorted(code for code in codes if UNDER not in code))


def adaptable() -> tuple[str, ...]:
    """Model types whose adapters were traced."""
    return model_types_with("adapter: lora", "adapter: dora", "adapter: ia3")


def freezable() -> tuple[str, ...]:
    """Model types that were traced with frozen parts."""
    return model_types_with("frozen: parts")


def quantizable() -> tuple[str, ...]:
    """Model types that were traced with weights of bitsandbytes: whatever the number of bits, it replaces one layer."""
    return model_types_with("quantization: nf4", "quantization: nf4-double", "quantization: int8")


def gptq_quantizable() -> tuple[str, ...]:
    """Model types that were traced with layers of gptqmodel."""
    return model_types_with("quantization: gptq-int4")


def projectable() -> tuple[str, ...]:
    """Model types whose gradients GaLore was traced projecting."""
    return model_types_with("optimizer: galore-adamw")


@cache
def _read() -> dict[str, Rows]:
    from vramplan.replay.techniques.traced_rows import ROWS  # a large text, for jobs with such techniques alone

    found = {}
    for line in ROWS.replace("\n ", "").splitlines():
        what, count, files, *codes = line.split(" | ")
        whose = [tuple(one.split(", ")) for one in codes]
        found[what] = Rows(int(count), tuple(files.split(", ")), whose[0], whose[-1])
    return found
