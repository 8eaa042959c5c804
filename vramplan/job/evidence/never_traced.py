"""Techniques beside model code, losses and training programs that no traced row has: what an answer says of them."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.job.evidence.cells import FSDP_FP8
from vramplan.options import words
from vramplan.replay.models import is_untraced, shares_by_itself
from vramplan.replay.models.capable import (
    is_untraced_adapter,
    is_untraced_loss,
    looks_up_4bit,
    masks_padding,
    of_package,
    takes_packing,
    untraced_parts,
)
from vramplan.replay.models.parts import compiled_graphs, compiles_blocks
from vramplan.replay.techniques.adapters import GPTQ
from vramplan.replay.techniques.evidence import (
    COMPILE,
    FP8,
    REENTRANT,
    adaptable,
    freezable,
    given_without_rows,
    is_traced_with,
    projectable,
    quantizable,
    rows_of,
)
from vramplan.replay.techniques.expert_adapters import is_over_experts
from vramplan.replay.techniques.vocabulary import PLAIN_OPTIMIZER, traced_code
from vramplan.values.adapter_kinds import KINDS
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import Split, is_fsdp

TRACED_OVER_GPTQ = ("lora", "oft")
FLOAT8 = ("fp8", FSDP_FP8)
LAYERS_ALONE = ("lm", "image")  # tasks of models of which bitsandbytes replaces linear layers and nothing else
PROJECTING = ("galore", "apollo")  # the words of optimizers that project gradients


def never_traced(job: ResolvedJob) -> Iterator[str]:
    """Sentences that name the key first, as those of pairs do."""
    if job.compile and not compiles_blocks(job.model.family):
        yield from _compiled(job)
    if job.padding == "right" and job.attention != "flash" and not masks_padding(job.model, job.sequence_length):
        why = ": the mask is counted beside what is traced without padding"
        yield f"padding right was never traced with {traced_code(job.model)} at {job.sequence_length} tokens{why}"
    if job.packing and job.attention != "flash" and not takes_packing(job.model.family):
        yield f"packing true was never traced with {traced_code(job.model)}: the mask is counted beside"
    if job.attention == "flash" and job.model.engine is None and of_package(job.model) is not None:
        yield f"attention flash was never traced with {traced_code(job.model)}: it is that of the flash-attn package"
    if job.checkpoint_reentrant and not is_traced_with(job.model, REENTRANT):
        yield f"checkpoint_reentrant true was never traced with {traced_code(job.model)}"
    if job.adapter is not None and job.quantization is not None and _is_over_experts(job):
        yield f"quantization {job.quantization} was never traced together with an adapter over experts"
    if job.model.engine is None:
        yield from _of_trained(job)
    yield from _of_adapter(job)
    word = job.optimizer.partition(":")[0]
    if word != PLAIN_OPTIMIZER and not rows_of(f"optimizer: {word}").number:
        yield f"optimizer {word} was never traced in a whole run: states and step are those of its library's code"
    elif word.startswith(PROJECTING) and job.model.transformers_model_type not in projectable():
        yield f"optimizer {word} was never traced with {traced_code(job.model)}"
    if job.loss == words.OVER_LOGITS:
        yield f"loss {job.loss} was never traced: the code of TRL 0.24 was read"
    if job.loss == "kto":
        yield "loss kto was never traced: it is composed of what loss dpo was traced with, over single sequences"
    if job.model.engine is not None:
        yield from _own_code(job)
    if job.sharding is not None and is_fsdp(job.sharding.kind) and job.sharding.shards == 1:
        yield f"parallel.sharding {job.sharding.kind} was never traced on one device, which has all shards"
    if job.precision in FLOAT8 and job.model.engine is None:
        yield from _float8(job)
    if job.planned is not None:
        yield from _planned(job.planned)


def _of_trained(job: ResolvedJob) -> Iterator[str]:
    """Frozen parts, adapters and quantized weights of model types whose code has no row of any."""
    model_type, code = job.model.transformers_model_type, traced_code(job.model)
    if job.frozen and job.adapter is None and model_type not in freezable():
        yield f"frozen {', '.join(job.frozen)} was never traced with {code}"
    if job.adapter is not None and model_type not in adaptable():
        yield f"adapter {job.adapter.kind} was never traced with {code}"
    replaced = adaptable() if job.model.task in LAYERS_ALONE else quantizable()
    if job.quantization not in (None, GPTQ) and model_type not in replaced:
        yield f"quantization {job.quantization} was never traced with {code}"


def _compiled(job: ResolvedJob) -> Iterator[str]:
    """The compiler's rules were learned on some families, their own losses and their fused attention."""
    key = "compile true was never traced"
    if traced_code(job.model) not in rows_of(COMPILE).codes and compiled_graphs(job.model.family) is None:
        yield f"{key} with {traced_code(job.model)}"
    elif job.model.engine is not None:
        yield f"{key} with {job.model.code}"
    if loss := given_without_rows(job, "loss", COMPILE):
        yield f"{key} together with loss {loss}"
    if job.model.task == "cls":
        yield f"{key} with a classifier"
    if job.attention == "eager":
        yield f"{key} with attention eager, which a compiler may rewrite into fused attention"
    if job.adapter is not None and job.activation_checkpointing not in (None, "none", "full"):
        beside = f"an adapter together with activation_checkpointing {job.activation_checkpointing}"
        why = "in which order several blocks of a checkpoint are computed again is Inductor's own search"
        yield f"compile true was traced up to 8 % too low with {beside}: {why}"
    if job.quantization == "int8":
        yield f"{key} with quantization int8 in one graph: bitsandbytes cuts it at every layer"


def _of_adapter(job: ResolvedJob) -> Iterator[str]:
    """A term that a kind adds to the loss, as AdaLoRA does, has gradients that are there before all others."""
    if job.adapter is None:
        return
    if job.quantization == GPTQ and job.adapter.kind not in TRACED_OVER_GPTQ:
        yield f"adapter {job.adapter.kind} was never traced over {GPTQ} weights"
    if job.sharding is not None and not KINDS[job.adapter.kind].shared_rows:
        yield f"adapter {job.adapter.kind} was never traced with parallel.sharding {job.sharding.kind}"
    if (job.adapter.bias != "none" or job.adapter.trainable_tokens) and job.compile:
        what = "trainable_tokens" if job.adapter.trainable_tokens else f"bias {job.adapter.bias}"
        yield f"adapter.{what} was never traced together with compile true"
    if KINDS[job.adapter.kind].adds_to_loss and job.model.task != "mlm":
        given = f"adapter {job.adapter.kind} was never traced with task_type, by which PEFT adds a term to the loss"
        yield f"{given}: gradients of all its matrices are then there while backward runs, and they are not counted so"


def _own_code(job: ResolvedJob) -> Iterator[str]:
    """A training program's own code, with what only that of Transformers was traced with."""
    if is_untraced(job.model.family):
        yield f"model {job.model.name} was never traced as {job.model.code}: its blocks are composed of parts that were"
    for part in untraced_parts(job.model):
        yield f"model.{part} was never traced with {job.model.code}"
    if is_untraced_loss(job.model.family, words.pattern_word(job.loss)):
        yield f"loss {job.loss} was never traced with {job.model.code}"
    if job.sharding is not None and is_fsdp(job.sharding.kind) and shares_by_itself(job.model.family):
        yield f"parallel.sharding {job.sharding.kind} was never traced with {job.model.code}"
    if job.precision == "fp8":
        yield f"precision fp8 was never traced with {job.model.code}"
    if job.adapter is not None and is_untraced_adapter(job.model.family):
        yield f"adapter {job.adapter.kind} was never traced with {job.model.code}"
    elif job.adapter is not None and job.adapter.kind == "dora":
        yield f"adapter dora was never traced with {job.model.code}"
    if job.split is not None and job.split.tensor > job.model.key_value_heads:
        beyond = f"parallel.tensor {job.split.tensor} was never traced with fewer key and value heads"
        yield f"{beyond}: they are gathered on each device"
    if job.quantization is not None and looks_up_4bit(job.model.family) and not job.compile:
        yield f"quantization {job.quantization} was never traced with {job.model.code} that is not compiled"
    if job.loss == "dpo":
        yield f"loss dpo was never traced with {job.model.code}"


def _is_over_experts(job: ResolvedJob) -> bool:
    model, adapter = job.model, job.adapter
    assert adapter is not None
    return model.experts is not None and is_over_experts(adapter.kind, model, adapter.targets)


def _float8(job: ResolvedJob) -> Iterator[str]:
    """Conversions were traced on one device, with the loss and the code of some families, and not compiled."""
    key = f"precision {job.precision} was never traced"
    if not is_traced_with(job.model, FP8):
        yield f"{key} with {traced_code(job.model)}"
    if job.precision == FSDP_FP8 and job.sharding is not None:
        yield f"{key} together with parallel.sharding {job.sharding.kind}, whose units are gathered in bf16 here"
    if job.compile:
        yield f"{key} together with compile true, whose casts to fp8 count as parts of other kernels"
    if loss := given_without_rows(job, "loss", FP8):
        yield f"{key} together with loss {loss}"
    if job.model.task == "cls":
        yield f"{key} with a classifier"


def _planned(split: Split) -> Iterator[str]:
    for key in ("tensor", "context"):
        if getattr(split, key) > 1:
            whole = "; embedding, head and logits count as whole" if key == "tensor" else ""
            yield f"parallel.{key} {getattr(split, key)} was never traced under this program{whole}"
