"""Which techniques were traced together, and with which models: the rest is refused and never recommended."""

from __future__ import annotations

from vramplan.replay.models import compiles_blocks, offloads
from vramplan.values.job import Job

UNTRACED = {
    "compile": ("frozen", "padding", "packing", "offload", "checkpoint_reentrant", "label_smoothing", "weight_dtype"),
    "precision": ("adapter", "frozen", "padding", "packing", "offload", "checkpoint_reentrant", "label_smoothing"),
    "loss": ("packing", "offload"),
    "packing": ("adapter", "frozen", "padding", "offload", "checkpoint_reentrant"),
    "optimizer": ("adapter", "frozen"),
    "activation_checkpointing": ("adapter", "frozen", "weight_dtype"),
    "quantization": ("loss", "offload", "checkpoint_reentrant", "padding", "compile"),
}
"""What does not go with a key.

Of `precision` it is fp8, of `loss` dpo, of `optimizer` GaLore, of `activation_checkpointing`
selective-op, and of `quantization` GPTQ, that it is about.
"""

BESIDE = ("eval_batch_size", "generation_batch_size", "generation_length")
NOT_BESIDE = ("compile", "precision", "packing")
"""What an evaluation or a generation beside training was not traced with."""

QUANTIZABLE = (
    *("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("phi", "phi3", "gpt_neox", "opt", "bloom", "mpt", "bert"),
    *("t5", "bart", "roberta", "xlm-roberta", "mixtral", "glm", "glm4", "llava"),
)
"""Model types that were traced with weights of bitsandbytes beneath an adapter (adapters.json, quantized.json)."""

KEEPS_FP32 = ("t5",)
"""Model types of which Transformers leaves layers in fp32 where it loads the rest in fp16: that was not traced."""

GPTQ_QUANTIZABLE = (
    *("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("phi", "phi3", "gpt_neox", "opt", "bloom", "glm", "glm4"),
)
"""Model types of which gptqmodel has checkpoints and optimum finds the blocks (tests/oracle/quantized.json)."""

ADAPTED_ALONE = ("clip", "resnet", "falcon", "chatglm", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")
"""Model types whose adapters were traced without other techniques beside them."""

NOT_BESIDE_ADAPTERS = ("loss", "padding", "offload", "checkpoint_reentrant", "label_smoothing", *BESIDE)
"""What they were not traced with; other model types' adapters were."""

ADAPTABLE = (
    *QUANTIZABLE,
    "vit",
    *ADAPTED_ALONE,
)
"""Model types whose adapters were traced (the same file, adapted.json and adapters_more.json); others are refused."""

FREEZABLE = ADAPTABLE
"""Model types whose frozen parts were traced (frozen.json)."""

NO_ALL_LINEAR = {
    "chatglm": "whose own code does not say which layer is its head, so PEFT makes a target of that too",
    "resnet": "whose only linear layer is its head",
}
"""Model types of which a linear layer is the head alone, or the head is one of them; and why that is."""

ONLY_LORA = ("resnet",)
"""Model types whose adapters were traced with LoRA alone."""

PROJECTABLE = (
    *("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("phi", "phi3", "gpt_neox", "opt", "bloom", "mpt", "bert", "roberta", "t5", "bart"),
    *("xlm-roberta", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "vit", "clip", "llava"),
    *("falcon", "glm", "glm4"),
)
"""Model types whose gradients GaLore was traced projecting (tests/oracle/galore.json)."""

COMPILED_ADAPTERS = ("gpt2", "llama", "bert")
"""Families whose LoRA was traced under a compiler, with every activation stored (tests/oracle/compile_more.json)."""


def loads_fp32(model_type: str, precision: str, *, half_weights: bool) -> bool:
    """Whether a model that is loaded to be quantized would have layers in fp32 among others in fp16."""
    return model_type in KEEPS_FP32 and (precision == "pure-fp16" or (precision == "amp-fp16" and half_weights))


def techniques(job: Job) -> dict[str, str]:
    """The techniques of a job that do not go with everything, by their key, and what each is called."""
    found = {
        "compile": "true" if job.compile else "",
        "activation_checkpointing": "selective-op" if job.activation_checkpointing == "selective-op" else "",
        "precision": "fp8" if job.precision == "fp8" else "",
        "loss": job.loss if job.loss == "dpo" else "",
        "adapter": "" if job.adapter is None else job.adapter.kind,
        "quantization": "gptq-int4" if job.quantization == "gptq-int4" else "",
        "frozen": ", ".join(job.frozen),
        "padding": job.padding if job.padding != "none" else "",
        "packing": "true" if job.packing else "",
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
    if offloads(job.model.family):
        pairs = [pair for pair in pairs if pair != ("compile", "offload")]
    apart = compiles_blocks(job.model.family)  # compiled blocks have a stated basis, with adapters or without
    if job.compile and job.adapter is not None and not apart and not _is_compiled_adapter(job):
        pairs.append(("compile", "adapter"))
    if job.adapter is not None and _is_adapted_alone(job):
        pairs += [("adapter", other) for other in NOT_BESIDE_ADAPTERS if other in has]
    return pairs + [(one, other) for one in NOT_BESIDE if one in has for other in BESIDE if other in has]


def _is_adapted_alone(job: Job) -> bool:
    """Whether nothing else was traced beside an adapter of the model type, or over its experts."""
    from vramplan.replay.techniques.expert_adapters import is_over_experts  # only jobs with an adapter pay for it

    model_type = job.model.transformers_model_type
    assert job.adapter is not None
    return model_type in ADAPTED_ALONE or is_over_experts(job.adapter.kind, model_type, job.adapter.targets)


def _is_compiled_adapter(job: Job) -> bool:
    adapter = job.adapter
    assert adapter is not None
    plain = adapter.kind == "lora" and not adapter.modules_to_save and job.quantization is None
    stored = job.activation_checkpointing in (None, "none")
    return plain and stored and job.model.family in COMPILED_ADAPTERS
