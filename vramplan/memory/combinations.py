"""Which techniques were traced together, and with which models: the rest is refused and never recommended."""

from __future__ import annotations

from vramplan.spec import Job

UNTRACED = {
    "compile": ("adapter", "frozen", "padding", "offload", "checkpoint_reentrant", "label_smoothing", "weight_dtype"),
    "precision": ("adapter", "frozen", "padding", "offload", "checkpoint_reentrant", "label_smoothing"),
    "loss": ("adapter", "frozen", "offload", "checkpoint_reentrant", "weight_dtype"),
    "adapter": ("offload", "checkpoint_reentrant", "padding"),
    "frozen": ("offload", "checkpoint_reentrant", "padding"),
    "padding": ("offload", "checkpoint_reentrant"),
}
"""What does not go with a key; of `precision` it is fp8, and of `loss` dpo, that it is about."""

BESIDE = ("eval_batch_size", "generation_batch_size", "generation_length")
NOT_BESIDE = ("compile", "precision", "adapter")
"""What an evaluation or a generation beside training was not traced with."""

QUANTIZABLE = (
    *("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("phi", "phi3", "gpt_neox", "opt", "bloom", "mpt", "bert"),
)
"""Model types that were traced with quantized weights beneath an adapter (tests/oracle/adapters.json)."""

ADAPTABLE = (*QUANTIZABLE, "t5", "bart", "roberta", "xlm-roberta", "mixtral", "glm", "glm4", "vit", "llava")
"""Model types whose adapters were traced (the same file, and frozen.json); others are refused."""

FREEZABLE = (
    *ADAPTABLE,
    *("resnet", "clip", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "falcon", "chatglm"),
)
"""Model types whose frozen parts were traced (the same files)."""

NO_ALL_LINEAR = ("mixtral",)
"""Model types with experts in one tensor, which PEFT takes for linear layers too: that was not traced."""


UNTRACED_HALF_WEIGHTS = ("chatglm", "resnet")
"""Model types of which half weights under autocast are refused: traces of the first deviate, the second has none."""


def techniques(job: Job) -> dict[str, str]:
    """The techniques of a job that do not go with everything, by their key, and what each is called."""
    found = {
        "compile": "true" if job.compile else "",
        "precision": "fp8" if job.precision == "fp8" else "",
        "loss": job.loss if job.loss == "dpo" else "",
        "adapter": "" if job.adapter is None else job.adapter.kind,
        "frozen": ", ".join(job.frozen),
        "padding": job.padding if job.padding != "none" else "",
        "offload": "activations" if job.offload_activations else "",
        "checkpoint_reentrant": "true" if job.checkpoint_reentrant else "",
        "label_smoothing": f"{job.label_smoothing:g}" if job.label_smoothing else "",
        "weight_dtype": job.precision.rpartition("-")[2] if job.half_weights else "",
    }
    found |= {key: str(getattr(job, key)) for key in BESIDE if getattr(job, key) is not None}
    return {key: word for key, word in found.items() if word}


def untraced(job: Job) -> list[tuple[str, str]]:
    """The pairs of keys of a job that were never traced together; empty where it is modelled."""
    has = techniques(job)
    pairs = [(one, other) for one in has for other in UNTRACED.get(one, ()) if other in has]
    return pairs + [(one, other) for one in NOT_BESIDE if one in has for other in BESIDE if other in has]
