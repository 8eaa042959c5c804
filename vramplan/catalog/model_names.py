"""Which model of the catalogue has the shape of a checkpoint, by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from vramplan.catalog import locate

SUFFIXES = re.compile(
    r"[-_.]?("
    r"gptq(-int4|-4bit.*)?|awq|aqlm-2bit-1x16|aqlm.*|bnb-4bit|bnb|4bit|int4|int8|fp16|bf16|fp8|nf4|gguf|hf|converted|"
    r"dequantized|linearized|2of4|"
    r"instruct|chat|it|base|sft|dpo|rlhf|full|qlora|lora|pro|mod|evol|inst|thinking|pretrain(ed)?|deduped|"
    r"alpha|beta|gemma-it|text|orig|sharded|safetensors|unsloth|"
    r"\d{4}|v\d+(\.\d+)*|intermediate-step-.*|step-?\d+k?.*"
    r")$"
)
"""What stands behind the shape in a name: how the weights were trained, written or quantized."""

FINE_TUNES = {
    "zephyr-7b": "mistral-7b",  # HuggingFaceH4/zephyr-7b-beta, README: fine-tune of mistralai/Mistral-7B-v0.1
    "zephyr-7b-gemma": "gemma-7b",  # HuggingFaceH4/zephyr-7b-gemma-v0.1, README: fine-tune of google/gemma-7b
    "mistral-7b-cai": "mistral-7b",  # HuggingFaceH4/mistral-7b-cai, README
    "mistral-7b-sft-constitutional-ai": "mistral-7b",  # alignment-handbook, README
    "starchat2-15b": "starcoder2-15b",  # HuggingFaceH4/starchat2-15b-sft-v0.1, README: of bigcode/starcoder2-15b
    "smollm3-3b-checkpoints": "smollm3-3b",  # HuggingFaceTB/SmolLM3-3B-checkpoints: the steps of its training
    "cogito-v1-preview-qwen-14b": "qwen2.5-14b",  # deepcogito/cogito-v1-preview-qwen-14B, config.json
    "phi-3.5-mini": "phi-3-mini-128k",  # microsoft/Phi-3.5-mini-instruct, config.json: the same sizes
    "mistral-7b-openorca": "mistral-7b",
    "openhermes-2.5-mistral-7b": "mistral-7b",
    "hermes-2-pro-mistral-7b": "mistral-7b",
    "llama-3.1-tulu-3-8b": "llama-3.1-8b",  # allenai/Llama-3.1-Tulu-3-8B, README: fine-tune of Llama-3.1-8B
    "llama-3.1-tulu-3-70b": "llama-3.1-70b",
    "llama-3.1-tulu-3-405b": "llama-3.1-405b",
    "tiny-llama-1.1b": "tinyllama-1.1b",  # Lightning-AI/litgpt, litgpt/config.py: its name for TinyLlama-1.1B
    "tulu-2-7b": "llama-2-7b",
    "tulu-2-13b": "llama-2-13b",
    "tulu-2-70b": "llama-2-70b",
    "deepseek-v3-base-bf16": "deepseek-v3",
    "codellama-7b-instruct": "codellama-7b",
    "cogito-v1-preview-llama-3b": "llama-3.2-3b",  # deepcogito/cogito-v1-preview-llama-3B, README
    "deepcoder-14b-preview": "qwen2.5-14b",  # agentica-org/DeepCoder-14B-Preview, README
    "skywork-reward-v2-qwen3-8b": "qwen3-8b",  # Skywork/Skywork-Reward-V2-Qwen3-8B, README
    "plano-orchestrator-4b": "qwen3-4b",  # katanemo/Plano-Orchestrator-4B, README: of Qwen3-4B-Instruct-2507
    "gpt-oss-safeguard-20b": "gpt-oss-20b",  # openai/gpt-oss-safeguard-20b, README: fine-tune of gpt-oss-20b
}
"""Fine-tunes whose names say another shape than they have, each by the model card of its base."""


def shape_of(name: str, known: Callable[[str], str | None]) -> str | None:
    """The catalogue's name for the shape of a checkpoint; None if the catalogue has no such shape.

    `known`: the catalogue's name for a name or an alias, without case; None for what it does not have.
    """
    whole = name.strip().rstrip("/").lower()
    found = known(whole)
    if found:
        return found
    for candidate in candidates(whole):
        found = known(candidate) or known(FINE_TUNES.get(candidate, ""))
        if found:
            return found
    return None


def profile_by(name: str, dirs: Sequence[Path] = ()) -> str | None:
    """The profile that the name of a repository points to; None for a shape that the catalogue has not."""
    names = profiles_by_name(dirs)
    return shape_of(name, lambda one: names.get(one.lower()))


def profiles_by_name(dirs: Sequence[Path] = ()) -> dict[str, str]:
    """Every name and alias in small letters, and the end of an alias with a slash, to the name of a profile.

    A name goes before an alias, and an alias before the end of another one. The files are not parsed for it.
    """
    aliases = [
        (alias.lower(), stem)
        for stem, path in locate.files("models", dirs).items()
        for alias in locate.aliases_of(path)
    ]
    ends: dict[str, str] = {}
    for alias, stem in aliases:
        ends.setdefault(alias.rsplit("/", 1)[-1], stem)
    return {**ends, **dict(aliases), **{stem.lower(): stem for stem in locate.files("models", dirs)}}


def candidates(name: str) -> list[str]:
    """Shorter and shorter names of the same shape, the longest first."""
    last = name.rsplit("/", 1)[-1]
    result: list[str] = []
    todo = [last]
    while todo:
        now = todo.pop(0)
        if not now or now in result:
            continue
        result.append(now)
        for other in (now.replace("_", "-"), re.sub(r"^(meta|google|microsoft|hf|mosaicml|sparse)-", "", now)):
            if other != now:
                todo.append(other)
        spelled = re.sub(r"^(llama|qwen|gemma|phi|smollm|olmo|mistral)-?(\d)", r"\1-\2", now)
        todo += [spelled, re.sub(r"^(qwen|smollm)-(\d)", r"\1\2", now)]
        shorter = SUFFIXES.sub("", now)
        if shorter != now:
            todo.append(shorter)
    return result
