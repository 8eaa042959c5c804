"""Which techniques were traced together, and with which models: the rest is refused and never recommended."""

from __future__ import annotations

from vramplan.spec import Job

UNTRACED = {
    "compile": ("frozen", "padding", "offload", "checkpoint_reentrant", "label_smoothing", "weight_dtype"),
    "precision": ("adapter", "frozen", "padding", "offload", "checkpoint_reentrant", "label_smoothing"),
    "loss": ("offload",),
    "optimizer": ("adapter", "frozen"),
}
"""What does not go with a key; of `precision` it is fp8, of `loss` dpo, and of `optimizer` GaLore, that it is about."""

BESIDE = ("eval_batch_size", "generation_batch_size", "generation_length")
NOT_BESIDE = ("compile", "precision")
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

PROJECTABLE = (
    *("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("phi", "phi3", "gpt_neox", "opt", "bloom", "mpt", "bert", "roberta", "t5", "bart"),
    *("xlm-roberta", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "vit", "clip", "llava"),
    *("falcon", "glm", "glm4"),
)
"""Model types whose gradients GaLore was traced projecting (tests/oracle/galore.json)."""

COMPILED_ADAPTERS = ("gpt2", "llama", "bert")
"""Families whose LoRA was traced under a compiler, with every activation stored (tests/oracle/compile_more.json)."""

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
        "optimizer": job.optimizer if job.optimizer.startswith("galore") else "",
        "weight_dtype": job.precision.rpartition("-")[2] if job.half_weights else "",
    }
    found |= {key: str(getattr(job, key)) for key in BESIDE if getattr(job, key) is not None}
    return {key: word for key, word in found.items() if word}


def untraced(job: Job) -> list[tuple[str, str]]:
    """The pairs of keys of a job that were never traced together; empty where it is modelled."""
    has = techniques(job)
    pairs = [(one, other) for one in has for other in UNTRACED.get(one, ()) if other in has]
    if job.compile and job.adapter is not None and not _is_compiled_adapter(job):
        pairs.append(("compile", "adapter"))
    return pairs + [(one, other) for one in NOT_BESIDE if one in has for other in BESIDE if other in has]


def _is_compiled_adapter(job: Job) -> bool:
    adapter = job.adapter
    assert adapter is not None
    plain = adapter.kind == "lora" and not adapter.modules_to_save and job.quantization is None
    stored = job.activation_checkpointing in (None, "none")
    return plain and stored and job.model.family in COMPILED_ADAPTERS
