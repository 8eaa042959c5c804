"""Which jobs can be run: a plain loop of Transformers on one device. The others are refused by their key."""

from __future__ import annotations

from vramplan.catalog.config_classes import FAMILY_OF
from vramplan.errors import InputError, Problem
from vramplan.planner.checkpoints import blocks_per_segment
from vramplan.results.measure import TRACE
from vramplan.values.job import Job

RUNTIME = "transformers"
PRECISIONS = ("fp32", "amp-fp16", "amp-bf16", "pure-fp16", "pure-bf16")
OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop")
ATTENTIONS = ("eager", "flash", "efficient")
TASKS = ("lm", "mlm", "cls", "image")
WITHOUT_A_CLASS = ("chatglm",)  # its code is remote, not in Transformers
OWN_LOOP = "record() of vramplan.measure round a step of your own loop measures it"


def check(job: Job, how: str) -> None:
    """Raise InputError with every key that this loop does not have."""
    problems = [Problem(f"{said} is not run by this command", key, hint) for key, said, hint in _refused(job, how)]
    if problems:
        raise InputError(problems)


def _refused(job: Job, how: str) -> list[tuple[str, str, str]]:
    model, own = job.model, OWN_LOOP
    strategy = job.activation_checkpointing or "none"
    known = strategy == "none" or strategy.startswith("layers:") or blocks_per_segment(strategy, model.layers)
    switches = {
        "optimizer_in_backward": job.optimizer_in_backward,
        "grad_scaler": job.grad_scaler,
        "ema": job.ema,
        "checkpoint_reentrant": job.checkpoint_reentrant,
        "label_smoothing": job.label_smoothing > 0,
        "padding": job.padding != "none",
        "packing": job.packing,
        "compile": job.compile,
        "eval_batch_size": job.eval_batch_size is not None,
        "generation_batch_size": job.generation_batch_size is not None,
        "quantization": job.quantization is not None,
        "frozen": bool(job.frozen),
        "gradient_dtype": job.fp32_gradients,
        "optimizer_state_dtype": job.fp32_states,
        "offload": job.offload_activations or bool(job.offload),
        "parallel": job.data_parallel_size > 1 or job.split is not None or job.sharding is not None,
    }
    found = [(key, f"a job with {key}", own) for key, given in switches.items() if given]
    if job.runtime.name != RUNTIME:
        found.append(("runtime", job.runtime.name, f"{RUNTIME}; {own}"))
    if job.precision not in PRECISIONS:
        found.append(("precision", job.precision, f"{', '.join(PRECISIONS)}; {own}"))
    if job.optimizer not in OPTIMIZERS:
        found.append(("optimizer", job.optimizer, f"{', '.join(OPTIMIZERS)}; {own}"))
    if job.attention not in ATTENTIONS:
        found.append(("attention", job.attention, ", ".join(ATTENTIONS)))
    if job.loss != "standard":
        found.append(("loss", job.loss, f"standard; {own}"))
    if not known:
        found.append(("activation_checkpointing", strategy, f"none, full, sqrt, every:K; {own}"))
    plain = model.experts is None and model.decoder_layers is None and model.vision_layers is None
    if model.task not in TASKS or not plain:
        found.append(("model", f"{model.name} (more than one stack of blocks)", own))
    elif model.transformers_model_type not in FAMILY_OF or model.family in WITHOUT_A_CLASS:
        found.append(("model", f"{model.name}, which no class of Transformers is,", own))
    if how == TRACE and job.optimizer in ("sgd", "sgd-momentum") and job.optimizer_implementation == "fused":
        found.append(("optimizer_implementation", f"fused {job.optimizer} in a trace", "foreach, or without --trace"))
    return found
