"""Random jobs that are accepted: small networks, so that hundreds can be answered."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

PRECISIONS = ("fp32", "amp-fp16", "amp-bf16", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16")
IMPLEMENTATIONS = {
    "adamw": ("foreach", "fused", "for-loop"),
    "adam": ("foreach", "fused", "for-loop"),
    "sgd": ("foreach", "for-loop"),
    "sgd-momentum": ("foreach", "for-loop"),
    "rmsprop": ("foreach", "for-loop"),
    "adafactor": ("foreach", "for-loop"),
}
STRATEGIES = (
    *("none", "sqrt", "full", "every:2", "every:5", "layers:[[0,0]]"),
    *("selective", "selective-op", "selective-layer:2"),
)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """An inline model."""
    family = draw(st.sampled_from(["gpt2", "llama", "bert"]))
    heads = draw(st.sampled_from([1, 2, 4]))
    model: dict[str, Any] = {
        "name": "drawn",
        "family": family,
        "layers": draw(st.integers(1, 9)),
        "hidden_size": heads * draw(st.sampled_from([16, 32, 48])),
        "attention_heads": heads,
        "vocabulary_size": draw(st.sampled_from([64, 1000, 5003])),
        "max_positions": 512,
    }
    if family == "llama":
        model["key_value_heads"] = draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]))
        model["tied_embeddings"] = draw(st.booleans())
        model["qkv_bias"] = draw(st.booleans())
    elif draw(st.booleans()):
        model |= dict.fromkeys(("embedding_dropout", "attention_dropout", "hidden_dropout"), 0.0)
    if family == "bert" and draw(st.booleans()):
        model |= {"task": "cls", "classes": 3}
    return model


@st.composite
def gpus(draw: st.DrawFn) -> dict[str, Any]:
    """A card with little or much beside the 600 MiB of the context."""
    gpu: dict[str, Any] = {"name": "drawn", "memory": f"{draw(st.integers(610, 1100))} MiB"}
    if draw(st.booleans()):
        gpu |= {"bf16": True, "flash_attention": True, "architecture": "ampere"}
    return gpu


@st.composite
def jobs(draw: st.DrawFn, *, pin_micro: bool = True) -> dict[str, Any]:
    """A job with some keys pinned. The batch keys never contradict each other."""
    precision = draw(st.sampled_from(PRECISIONS))
    mixed = precision.startswith("mixed-")
    optimizer = draw(st.sampled_from([name for name in IMPLEMENTATIONS if not (mixed and name == "adafactor")]))
    job: dict[str, Any] = {
        "model": draw(models()),
        "gpu": draw(gpus()),
        "sequence_length": draw(st.integers(1, 300)),
        "precision": precision,
        "optimizer": optimizer,
        "attention": draw(st.sampled_from(["eager", "efficient", "sdpa"])),
        "hold_outputs": draw(st.booleans()),
        "runtime": draw(st.sampled_from(["transformers", "pytorch"])),
        "parallel": {"data": draw(st.sampled_from([1, 1, 2, 3]))},
        "reserve": draw(st.sampled_from(["0 GiB", "10 MB"])),
    }
    if not mixed and draw(st.booleans()):
        job["optimizer_implementation"] = draw(st.sampled_from(IMPLEMENTATIONS[optimizer]))
    if draw(st.booleans()):
        job["activation_checkpointing"] = draw(st.sampled_from(STRATEGIES))
    if draw(st.booleans()):
        job["dropout"] = draw(st.sampled_from([0, 0.1]))
    batch = draw(st.sampled_from(["nothing", "global", "steps", "micro"] if pin_micro else ["nothing", "global"]))
    if batch == "global":
        job["global_batch_size"] = job["parallel"]["data"] * draw(st.integers(1, 700))
    elif batch == "steps":
        job["gradient_accumulation_steps"] = draw(st.integers(1, 9))
    elif batch == "micro":
        job["micro_batch_size"] = draw(st.integers(1, 900))
        if draw(st.booleans()):
            job["gradient_accumulation_steps"] = draw(st.integers(1, 9))
    return job
