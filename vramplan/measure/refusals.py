"""Which jobs can be run: a plain loop of Transformers on one device. The others are refused by their key."""

from __future__ import annotations

from vramplan.catalog.config_classes import FAMILY_OF, MODEL_TYPES
from vramplan.engines import engine_of, names
from vramplan.errors import InputError, Problem
from vramplan.measure.runnable import LOSSES, OPTIMIZERS, PREFERENCES, QUANTIZED, SELECTIVE
from vramplan.planner.checkpoints import blocks_per_segment
from vramplan.replay.models.capable import no_flash_attention
from vramplan.results.measure import GPU
from vramplan.values.job import ResolvedJob

PRECISIONS = ("fp32", "amp-fp16", "amp-bf16", "pure-fp16", "pure-bf16")
MASTERS = ("mixed-fp16", "mixed-bf16")  # a step over an fp32 copy, for which a trace has a stand-in
ATTENTIONS = ("eager", "flash", "efficient")
OWN_LOOP = "record() of vramplan.measure round a step of your own loop measures it"


def check(job: ResolvedJob, how: str) -> None:
    """Raise InputError with every key that this loop does not have."""
    problems = [Problem(f"{said} is not run by this command", key, hint) for key, said, hint in _refused(job, how)]
    if problems:
        raise InputError(problems)


def _refused(job: ResolvedJob, how: str) -> list[tuple[str, str, str]]:
    model, own = job.model, OWN_LOOP
    strategy = job.activation_checkpointing or "none"
    word = strategy.partition(":")[0]
    known = strategy == "none" or word in (*SELECTIVE, "layers") or blocks_per_segment(strategy, model.layers)
    switches = {
        "compile": job.compile and how != GPU,
        "mamba_kernels": job.mamba_kernels and how != GPU,
        "packing": job.packing and job.attention == "flash",
        "padding": job.padding != "none" and job.attention == "flash",
        "adapter": job.adapter is not None and job.adapter.is_prefix and job.attention == "flash",  # of flash-attn
        "eval_batch_size": job.eval_batch_size is not None and how == GPU,
        "generation_batch_size": job.generation_batch_size is not None and how == GPU,
        "quantization": job.quantization not in (None, *QUANTIZED),
        "gradient_dtype": job.fp32_gradients and (how == GPU or job.compile or job.sharding is not None),
        "teacher": job.teacher is not None and how == GPU,
        "offload": bool(job.offload),
        "parallel": job.data_parallel_size > 1 or job.split is not None or job.sharding is not None,
    }
    found = [(key, f"a job with {key}", own) for key, given in switches.items() if given]
    if not engine_of(job.runtime.engine).plain_loop:
        able = ", ".join(name for name in names() if engine_of(name).plain_loop)
        found.append(("runtime", job.runtime.name, f"{able}; {own}"))
    precisions = PRECISIONS if how == GPU else (*PRECISIONS, *MASTERS)
    if job.precision not in precisions:
        found.append(("precision", job.precision, f"{', '.join(precisions)}; {own}"))
    if job.optimizer.partition(":")[0] not in OPTIMIZERS:
        found.append(("optimizer", job.optimizer, f"{', '.join(OPTIMIZERS)}; {own}"))
    attentions = (*ATTENTIONS, "math", "sdpa")
    if job.attention == "flash" and no_flash_attention(model.family) is not None:
        # scaled_dot_product_attention would take another kernel
        found.append(("attention", f"flash of {model.name}, which is that of the flash-attn package,", "efficient"))
    if job.attention not in attentions:
        found.append(("attention", job.attention, ", ".join(attentions)))
    losses = LOSSES if how == GPU else (*LOSSES, *PREFERENCES)
    if job.loss.partition(":")[0] not in losses:
        found.append(("loss", job.loss, f"{', '.join(losses)}; {own}"))
    if not known:
        found.append(("activation_checkpointing", strategy, f"none, full, sqrt, every:K; {own}"))
    if model.transformers_model_type not in FAMILY_OF or MODEL_TYPES[model.transformers_model_type].remote:
        found.append(("model", f"{model.name}, which no class of Transformers is,", own))
    return found
