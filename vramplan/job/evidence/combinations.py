"""Techniques of a job that were never traced together: composed of what each does, and said."""

from __future__ import annotations

from vramplan.job.evidence.never_traced import never_traced
from vramplan.job.machine.releases import untraced_release
from vramplan.replay.models.capable import takes_packing
from vramplan.replay.techniques.evidence import OFFLOAD, EvidenceGap, is_traced_with, missing, rows_of, untraced
from vramplan.replay.techniques.vocabulary import key_of
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import ZERO3, ZERO_STAGES

PADDING = "padding: right"
OF_THE_HEAD = (
    *("loss", "label_smoothing", "padding", "eval_batch_size", "generation_batch_size"),
    *("distillation", "teacher_logprobs", "tiled_mlp"),
)


def composed_of(job: ResolvedJob) -> tuple[str, ...]:
    """Of each pair of which no row says that the two compose, a sentence: what the band of the answer is wider for."""
    sentences = [f"{key_of(gap.technique)} {gap.sentence(job)}" for gap in untraced(job) if not _is_dropped(job, gap)]
    if job.attention == "flash" and job.padding == "right":
        sentences.append("padding right was never traced together with attention flash, which removes it")
    if job.attention == "flash" and job.adapter is not None and job.adapter.is_prefix:
        sentences.append(
            f"adapter {job.adapter.kind} was never traced together with attention flash, which has no mask"
        )
    if job.attention == "flash" and job.packing and not takes_packing(job.model.family):
        sentences.append("packing true was never traced together with attention flash, which tells lengths")
    sentences += [f"{key_of(gap.technique)} {gap.sentence(job)}" for gap in _untraced_code(job)]
    if job.sharding is not None and job.sharding.kind in ZERO_STAGES:
        sentences += _under_zero(job)
    if job.sharding is not None and job.teacher_logprobs is not None:
        sentences.append(f"teacher_logprobs was never traced together with parallel.sharding {job.sharding.kind}")
    if job.split is not None and job.split.group not in (None, job.split.pipeline):
        sentences.append(f"parallel.microbatch_group_size {job.split.group} was never traced: the schedule was read")
    return (*sentences, *untraced_release(job), *never_traced(job))


def _under_zero(job: ResolvedJob) -> list[str]:
    """What the walks of ZeRO were not compared with."""
    assert job.sharding is not None
    kind = job.sharding.kind
    said = []
    if job.teacher is not None:
        said.append(f"teacher {job.teacher.name} was never traced together with parallel.sharding {kind}")
    if job.tiled_mlp is not None and kind == ZERO3:
        said.append(f"tiled_mlp {job.tiled_mlp} was never traced together with weights that {kind} gathers for tiles")
    return said


def _untraced_code(job: ResolvedJob) -> list[EvidenceGap]:
    """Losses, inputs and activations on the host that were traced, and never with the code of the model's family."""
    if job.model.engine is not None:
        return []
    alone = [gap.technique for gap in missing(job) if gap.beside is None]
    return [
        EvidenceGap(one, None)
        for one in alone
        if (key_of(one) in OF_THE_HEAD or one == OFFLOAD) and rows_of(one).number and not is_traced_with(job.model, one)
    ]


def _is_dropped(job: ResolvedJob, gap: EvidenceGap) -> bool:
    """Whether a gap is about the mask of padded sequences, which flash has none of."""
    return job.attention == "flash" and PADDING in (gap.technique, gap.beside)
