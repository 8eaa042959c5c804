"""Distillation: the teacher beside the model that trains, and how their predictions are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import engine_of
from vramplan.errors import InputError
from vramplan.job.behaviour import under
from vramplan.job.codes import as_written
from vramplan.job.devices.fsdp import version_of
from vramplan.options import words
from vramplan.replay.models import stands_for
from vramplan.replay.models.capable import head_losses, smooths
from vramplan.values.parallel import DDP, FSDP_GRAD_OP, ZERO3, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import Adapter
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape

KEY, OTHER_KEY, FROM_FILE = "teacher", "distillation", "teacher_logprobs"


def teacher_of(
    resolver: Resolver, model: ModelShape, runtime: Runtime, loss: str, adapter: Adapter | None
) -> tuple[ModelShape | None, str | None]:
    """The teacher in the code of the runtime's program, and the word of the divergence."""
    raw, fields = resolver.raw, resolver.fields
    if raw.teacher_logprobs is not None:
        return None, _from_file(resolver, model, runtime, loss)
    if raw.teacher is None:
        if raw.distillation is not None:
            fields.refuse(OTHER_KEY, f"{raw.distillation} needs a teacher", hint="teacher: a profile or a config.json")
        return None, None
    known = under(runtime).distils
    if not known:
        message = f"the training loop of {runtime.name} has no teacher"
        fields.refuse(KEY, message, hint="runtime: torchtune, whose recipes have one; or leave it out")
        return None, None
    teacher = _found(resolver)
    if teacher is None:
        return None, None
    word = raw.distillation
    if word is None and loss == words.TILED:
        word = words.REVERSE_KL
        resolver.assume(OTHER_KEY, word, "the default of TRL's DistillationTrainer")
    elif word is None:
        word = known[0]
        resolver.assume(OTHER_KEY, word, f"the default under {runtime.name}")
    if word not in known:
        fields.refuse(OTHER_KEY, f"{runtime.name} has no {word}", hint=f"one of {', '.join(known)}")
    if _refused(resolver, model, teacher, loss, adapter):
        return None, None
    resolver.assume("teacher.dtype", "the model's", "the program's own scripts load the teacher as they load the model")
    if raw.compile:
        resolver.warnings.append(f"{KEY} is not modelled in a compiled model: the divergence is counted uncompiled")
    engine = engine_of(runtime.engine)
    own = engine.families.get(teacher.family)
    if own is not None and model.engine is not None and stands_for(own, teacher):
        teacher = as_written(own, teacher, engine.name)
    return teacher, word


def _from_file(resolver: Resolver, model: ModelShape, runtime: Runtime, loss: str) -> str | None:
    """The word of the divergence from predictions that a teacher has made before."""
    raw, fields = resolver.raw, resolver.fields
    known = under(runtime).distils_from_file
    if not known:
        message = f"the training loop of {runtime.name} takes no predictions of a teacher from a file"
        fields.refuse(FROM_FILE, message, hint="runtime: transformers, around which Axolotl does")
        return None
    word = raw.distillation or known[0]
    if raw.distillation is None:
        resolver.assume(OTHER_KEY, word, "Axolotl's kd_beta of 0")
    if word not in known:
        fields.refuse(OTHER_KEY, f"Axolotl has no {word}", hint=f"one of {', '.join(known)}")
    if raw.teacher is not None:
        message = "is on the device, and its log-probabilities are saved"
        fields.refuse(KEY, message, hint=f"leave one of {KEY} and {FROM_FILE} out")
    elif loss != "standard" or raw.label_smoothing:
        fields.refuse("loss", f"{loss} is not what Axolotl's KDTrainer computes", hint="standard")
    elif model.task != "lm" or not smooths(model.family) or model.takes_images:
        fields.refuse(FROM_FILE, f"is not modelled for {model.code}", hint="leave it out")
    elif raw.split is not None:
        fields.refuse(FROM_FILE, "is not modelled over devices that share a layer", hint="leave parallel out")
    elif _is_head_missing(resolver):
        fields.refuse(FROM_FILE, _is_head_missing(resolver), hint="parallel.sharding: zero1, zero2 or fsdp-grad-op")
    else:
        _refuses_beside(resolver)
    return word


def _is_head_missing(resolver: Resolver) -> str:
    """Why Axolotl's loss does not come to the head's weight, which it reads when the model has returned; else empty.

    Source: axolotl 0.19.0, integrations/kd/trainer.py, compute_loss and _resolve_lm_head.
    """
    raw = resolver.raw
    if raw.sharding == ZERO3:
        return "Axolotl's loss reads the weight of the head when the model has returned, and zero3 has let go of it"
    if raw.sharding == DDP or (raw.sharding is None and raw.data_parallel_size > 1):
        return "Axolotl looks for the head (lm_head) in the model that it is given, which is DDP's, and finds none"
    # the root of version 1 stays whole between forward and backward, and that of version 2 where all units do
    if is_fsdp(raw.sharding) and raw.sharding != FSDP_GRAD_OP and version_of(resolver)[0] == 2:
        return "Axolotl's loss multiplies by the weight of the head, which is a DTensor when the model has returned"
    return ""


def _refuses_beside(resolver: Resolver) -> None:
    """What else of a job the trainer that reads saved predictions was not followed into."""
    raw, fields = resolver.raw, resolver.fields
    beside = {"compile": raw.compile, "eval_batch_size": raw.eval_batch_size, "hold_outputs": raw.hold_outputs}
    for key, value in beside.items():
        if value:
            fields.refuse(key, f"{value} is not modelled with {FROM_FILE}", hint="leave it out")
    if raw.activation_checkpointing == words.OPTIMAL:
        fields.refuse("activation_checkpointing", f"{words.OPTIMAL} is not modelled with {FROM_FILE}", hint="use sqrt")


def _found(resolver: Resolver) -> ModelShape | None:
    given = resolver.raw.teacher
    try:
        if isinstance(given, str):
            return resolver.catalog.model(given)[0]
        assert given is not None
        return resolver.described_shape(dict(given))
    except InputError as error:
        resolver.pass_on(error, KEY, resolver.fields.fields(KEY) if isinstance(given, dict) else None)
        return None


def _refused(resolver: Resolver, model: ModelShape, teacher: ModelShape, loss: str, adapter: Adapter | None) -> bool:
    raw, fields = resolver.raw, resolver.fields
    if "lm" not in (model.task, teacher.task) or model.task != teacher.task:
        fields.refuse(KEY, f"{teacher.name} and {model.name} do not both predict the next token", hint="leave it out")
    elif model.vocabulary_size != teacher.vocabulary_size:
        message = f"{teacher.name} has a vocabulary of {teacher.vocabulary_size}, and {model.name} one of "
        fields.refuse(
            KEY,
            f"{message}{model.vocabulary_size}: their logits cannot be compared",
            hint="a teacher with the same vocabulary",
        )
    elif raw.split is not None:
        fields.refuse(KEY, "a teacher is not modelled over devices that share a layer", hint="leave parallel out")
    elif under(resolver.runtime).distils_over_logits:
        return _refused_over_logits(resolver, model, loss)
    elif adapter is None:
        fields.refuse(KEY, "the recipes of distillation train adapters alone", hint="adapter: lora")
    elif raw.fsdp_version == 1 or (raw.data_parallel_size > 1 and version_of(resolver)[0] == 1):
        asked = "parallel.fsdp_version: 2" if raw.fsdp_version == 1 else "an optimizer of PyTorch"
        fields.refuse(KEY, "the recipes of distillation share the states by FSDP2", hint=asked)
    elif words.pattern_word(loss) != "chunked:N" and model.engine is None:
        message = f"{KEY} is modelled with the loss of its recipes, which takes logits in chunks"
        fields.refuse("loss", message, hint="chunked:8")
    elif words.pattern_word(loss) not in ("standard", "chunked:N"):
        fields.refuse("loss", f"{loss} compares with no teacher", hint="chunked:8")
    elif model.engine is None and "chunked:N" not in head_losses(model.family):
        fields.refuse("loss", f"{loss} is not modelled for {model.code}", hint="another model")
    else:
        return False
    return True


def _refused_over_logits(resolver: Resolver, model: ModelShape, loss: str) -> bool:
    """TRL's trainer makes one loss, of what both models return."""
    raw, fields = resolver.raw, resolver.fields
    tiled = loss == words.TILED
    if raw.label_smoothing or not (tiled or loss == "standard"):
        message = f"{loss} is not what TRL's GKDTrainer or DistillationTrainer computes"
        fields.refuse("loss", message, hint="standard or tiled, without label_smoothing")
    elif not smooths(model.family) or model.takes_images:
        fields.refuse(KEY, f"a teacher of {model.code} is not modelled", hint="leave it out")
    elif raw.compile:
        fields.refuse(KEY, "a teacher is not modelled in a compiled model", hint="leave compile out")
    elif raw.activation_checkpointing == words.OPTIMAL:
        fields.refuse("activation_checkpointing", f"{words.OPTIMAL} is not modelled with a teacher", hint="use sqrt")
    elif raw.hold_outputs:
        fields.refuse(
            "hold_outputs", "true contradicts TRL's trainer, which returns the loss alone", hint="leave it out"
        )
    else:
        if not fields.present("dropout") and not tiled:
            raw.dropout = 0.0
            resolver.assume("dropout", 0.0, "GKDTrainer turns dropout off")
        return False
    return True
