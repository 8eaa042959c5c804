"""Which model of the catalogue has the shape of a checkpoint, by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from vramplan.catalog import locate

SUFFIXES = re.compile(
    r"[-_.]?("
    r"gptq(-int4|-4bit.*)?|awq|aqlm-2bit-1x16|aqlm.*|bnb-[48]bit|bnb|[48]-?bit(-\d+g)?|w[48]a(8|16)|quantized|int4|int8|fp16|bf16|fp8|nf4|gguf|hf|converted|"
    r"dequantized|linearized|2of4|"
    r"instruct|chat|it|base|sft|dpo|rlhf|full|qlora|lora|pro|mod|evol|inst|thinking|pretrain(ed)?|deduped|"
    r"orpo|kto|simpo|grpo|ft|finetuned?|merged|math|code|ep-?\d+|\d+ep|epoch-?\d+|checkpoint-?\d+|"
    r"alpha|beta|gemma-it|text|orig|sharded|safetensors|unsloth|reasoning|preview|"
    r"rope-\d+k|\d{4}|v\d+(\.\d+)*|intermediate-step-.*|step-?\d+k?.*"
    r")$"
)
"""What stands behind the shape in a name: how the weights were trained, written or quantized."""

FINE_TUNES = {
    "llama-3-1-8b-math-orca-spectrum-10k-ep1": "llama-3.1-8b",
    "swallow-mx-8x7b-nve-v0.1": "mixtral-8x7b",
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
    "deepseek-r1": "deepseek-v3",  # deepseek-ai/DeepSeek-R1, README: trained from DeepSeek-V3-Base
    "deepseek-r1-distill-qwen-7b": "qwen2.5-math-7b",  # deepseek-ai/DeepSeek-R1, README: its base
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",  # as above
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",  # as above
    "deepseek-r1-0528-qwen3-8b": "qwen3-8b",  # deepseek-ai/DeepSeek-R1-0528-Qwen3-8B, README: the same architecture
    "deepseek-coder-v2-lite": "deepseek-v2-lite",  # deepseek-ai/DeepSeek-Coder-V2, README: DeepSeek-V2 trained further
    "deepseek-math-7b": "deepseek-llm-7b",  # deepseek-ai/DeepSeek-Math, README: begun from DeepSeek-Coder-Base-v1.5
    "deepscaler-1.5b": "deepseek-r1-distill-qwen-1.5b",  # agentica-org/DeepScaleR-1.5B-Preview, README
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",  # Qwen/Qwen3-Coder-30B-A3B-Instruct, README: layers, heads and experts
    "qwen2.5-math-1.5b": "qwen2.5-1.5b",  # Lightning-AI/litgpt, litgpt/config.py: the same sizes
    "qwen2.5-math-72b": "qwen2.5-72b",  # as above
    "qwen2.5-coder-0.5b": "qwen2.5-0.5b",  # as above
    "qwen2.5-coder-3b": "qwen2.5-3b",  # as above
    "qwen2-math-1.5b": "qwen2-1.5b",  # Qwen/Qwen2-Math-1.5B, README: built upon Qwen2
    "qwen2-math-7b": "qwen2-7b",  # as above
    "qwen2-math-72b": "qwen2-72b",  # as above
    "codestral-22b": "mistral-small-22b",  # mistralai/Codestral-22B-v0.1, params.json: the same sizes
    "magistral-small": "mistral-small-24b",  # mistralai/Magistral-Small-2506, README: of Mistral Small 3.1, text alone
    "devstral-small": "mistral-small-24b",  # mistralai/Devstral-Small-2507, README: the tower for images was removed
    "nemotron-mini-4b": "nemotron-3-4b",  # NVIDIA/Megatron-LM, modelopt/conf/nvidia/Nemotron-Mini-4B-Instruct.sh
    "glm-4.6": "glm-4.5",  # zai-org/GLM-4.6, README: the architecture of GLM-4.5 with a longer context
    "llama-guard-3-8b": "llama-3.1-8b",  # meta-llama/Llama-Guard-3-8B, README: Llama-3.1-8B, fine-tuned
    "llama-guard-3-1b": "llama-3.2-1b",  # meta-llama/Llama-Guard-3-1B, README
    "bloomz-560m": "bloom-560m",  # bigscience/bloomz, README: BLOOM, fine-tuned
    "bloomz-1b1": "bloom-1b1",
    "bloomz-1b7": "bloom-1b7",
    "bloomz-3b": "bloom-3b",
    "bloomz-7b1": "bloom-7b1",
    "bloomz-7b1-mt": "bloom-7b1",
    "bloomz": "bloom-176b",
    "bloomz-mt": "bloom-176b",
    "yi-1.5-6b": "yi-6b",  # 01-ai/Yi-1.5, README: Yi trained further
    "yi-1.5-34b": "yi-34b",  # adamo1139/Yi-1.5-34B-base-mirror, config.json: the same sizes
    "starling-lm-7b": "mistral-7b",  # berkeley-nest/Starling-LM-7B-alpha, README: of Mistral 7B
    "openchat-3.5": "mistral-7b",  # openchat/openchat-3.5-0106, README
    "e5-mistral-7b": "mistral-7b",  # intfloat/e5-mistral-7b-instruct, README: begun from Mistral-7B-v0.1
    "dolly-v2-3b": "pythia-2.8b",  # databricks/dolly-v2-3b, README: of pythia-2.8b
    "dolly-v2-7b": "pythia-6.9b",
    "dolly-v2-12b": "pythia-12b",
    "aya-101": "mt5-xxl",  # CohereForAI/aya-101, README: mT5 XXL, fine-tuned
    "gemma-1.1-7b": "gemma-7b",  # yzhuang/gemma-1.1-7b-it_fictional_chinese_v1, config.json: the same sizes
    "gemma-1.1-2b": "gemma-2b",  # google/gemma-1.1-2b-it, README: an update of Gemma 2B
    "codegemma-7b": "gemma-7b",  # cclabadmin/codegemma-7b-it-system, config.json: the same sizes
    "codegemma-2b": "gemma-2b",  # google/codegemma-2b, README: Gemma trained further
    "shieldgemma-2b": "gemma-2-2b",  # google/shieldgemma-2b, README: built upon Gemma 2
    "shieldgemma-9b": "gemma-2-9b",
    "medgemma-4b": "gemma-3-4b",  # google/medgemma-4b-it, README: a variant of Gemma 3
    "medgemma-27b": "gemma-3-27b",
    "deepseek-v3.1": "deepseek-v3",  # deepseek-ai/DeepSeek-V3.1, README: the structure of DeepSeek-V3
    "llama-3.1-nemotron-70b": "llama-3.1-70b",  # nvidia/Llama-3.1-Nemotron-70B-Instruct-HF, README
    "llama-3.1-nemotron-nano-8b": "llama-3.1-8b",  # nvidia/Llama-3.1-Nemotron-Nano-8B-v1, README
    "qwen3guard-gen-0.6b": "qwen3-0.6b",  # Qwen/Qwen3Guard-Gen-0.6B, README: built upon Qwen3
    "qwen3guard-gen-4b": "qwen3-4b",
    "qwen3guard-gen-8b": "qwen3-8b",
    "openr1-qwen-7b": "qwen2.5-math-7b",  # open-r1/OpenR1-Qwen-7B, README: of Qwen2.5-Math-Instruct
    "openthinker-7b": "qwen2.5-7b",  # open-thoughts/OpenThinker-7B, README: of Qwen2.5-7B-Instruct
    "openthinker-32b": "qwen2.5-32b",
    "s1-32b": "qwen2.5-32b",  # simplescaling/s1-32B, README: of Qwen2.5-32B-Instruct
    "s1.1-32b": "qwen2.5-32b",
    "limo": "qwen2.5-32b",  # GAIR/LIMO, README: of Qwen2.5-32B-Instruct
    "rugpt2large": "gpt2-large",  # Vladniag/Requestor0, config.json, a fine-tune of ai-forever/rugpt2large
    "mythomax-13b": "llama-2-13b",  # as the next one
    "mythomax-l2-13b": "llama-2-13b",  # Gryphe/MythoMax-L2-13b, README: a merge of fine-tunes of Llama 2
    "bagel-34b": "yi-34b",  # jondurbin/bagel-34b-v0.2, README: of yi-34b-200k
    "bge-base-en": "bert-base-uncased",  # BAAI/bge-base-en-v1.5, README: BERT of this size
    "bge-large-en": "bert-large-uncased",
    "llemma-7b": "codellama-7b",  # EleutherAI/llemma_7b, README: begun from Code Llama
    "tulu-2-dpo-7b": "llama-2-7b",  # allenai/tulu-2-dpo-7b, README
    "tulu-2-dpo-13b": "llama-2-13b",
    "tulu-2-dpo-70b": "llama-2-70b",
    "vigogne-2-7b": "llama-2-7b",  # bofenghuang/vigogne-2-7b-instruct, README: of LLaMA-2-7B
    "vigogne-2-13b": "llama-2-13b",
    "taiwan-llm-7b": "llama-2-7b",  # yentinglin/Taiwan-LLM-7B-v2.0-chat, README: of Llama 2 7B
    "taiwan-llm-13b": "llama-2-13b",
    "llama-3-elyza-jp-8b": "llama-3-8b",  # elyza/Llama-3-ELYZA-JP-8B, README: of Meta-Llama-3-8B-Instruct
    "llama-3-typhoon-v1.5x-8b": "llama-3-8b",  # scb10x/llama-3-typhoon-v1.5x-8b-instruct, README: of Llama 3
    "llama-3-typhoon-v1.5x-70b": "llama-3-70b",
}
"""Fine-tunes whose names say another shape than they have, each by the model card of its base."""

OF_ANOTHER_KIND = re.compile(
    r"llava|vision|audio|video|speech|omni|multimodal|internvl|janus|vlm|(^|-)vl?(-|$)|moe|gguf|draft|eagle|medusa|mamba|mtp|pruned|nvfp4|mxfp4|fp8|"
    r"embed|rerank|bitnet|1\.58|hymba|merged?-experts|frankenmerge|slerp-\d|layers"
)
"""Words beside the name of a base that say that more was made of it than a fine-tune."""

BASES = re.compile(
    r"(meta-)?(llama-?[23](\.\d)?-\d|qwen-?[23](\.5)?-(\d|coder|math)|gemma-?[234]-e?\d|phi-?[34]-|mistral-(7b|nemo|small)|mixtral-8x|"
    r"yi-(1\.5-)?\d|smollm[23]-|olmo-?[23]-|tinyllama|codellama-|gpt-oss-)"
)
"""What the name of a base begins with, where it has its generation and its size: `qwen-7b` alone is of several."""


SIZE = re.compile(r"(^|-)\d+(\.\d+)?[bm](-|$)")
"""How many parameters there are, as a word of a name."""

PARTED = re.compile(
    r"(?P<generation>llama-?3(\.\d)?|qwen-?(2\.5|3)|gemma-?[23])-(?P<own>.+)-(?P<size>\d+(\.\d+)?b)(-(instruct|it|chat|base))?"
)
"""A name whose generation and size stand apart."""


def shape_of(name: str, known: Callable[[str], str | None]) -> str | None:
    """The catalogue's name for the shape of a checkpoint; None if the catalogue has no such shape.

    `known`: the catalogue's name for a name or an alias, without case; None for what it does not have.
    """
    whole = name.strip().rstrip("/").lower()
    found = known(whole)
    if found:
        return found
    for candidate in (*candidates(whole), *of_bases(whole)):
        found = known(candidate) or known(FINE_TUNES.get(candidate, ""))
        if found:
            return found
    return None


def profile_by(name: str, dirs: Sequence[Path] = ()) -> str | None:
    """The profile that the name of a repository points to; None for a shape that the catalogue has not."""
    names = profiles_by_name(dirs)
    return shape_of(name, lambda one: names.get(one.lower()))


def begun_from(name: str, dirs: Sequence[Path] = ()) -> str | None:
    """The profile of the base that a name may begin with, which is no proof: more may have been made of it."""
    names = profiles_by_name(dirs)
    found = (
        names.get(one) or names.get(FINE_TUNES.get(one, "")) for one in of_starts(name.strip().rstrip("/").lower())
    )
    return next((one for one in found if one is not None), None)


def with_words_between(family: str, tag: str, dirs: Sequence[Path] = ()) -> dict[str, str]:
    """The profiles that a family and a tag may mean, by the words that names have between the two.

    `qwen3` and `30b` are `qwen3-30b-a3b`, with nothing between; `deepseek-r1` and `14b` are
    `deepseek-r1-distill-qwen-14b`. Where names have the tag right behind the family, others are not meant.
    """
    names = profiles_by_name(dirs)
    known = {**names, **{name: names[shape] for name, shape in FINE_TUNES.items() if shape in names}}
    for between in ("()", "(.*)-"):
        begin = "|".join(map(re.escape, candidates(family.lower())))
        expression = re.compile(rf"(?:{begin})-{between}{re.escape(tag.lower())}(?:-.*)?")
        found = {match[1]: profile for name, profile in known.items() if tag and (match := expression.fullmatch(name))}
        if found:
            return found
    return {}


def profiles_by_name(dirs: Sequence[Path] = ()) -> dict[str, str]:
    """Every name and alias in small letters, and the end of an alias with a slash, to the name of a profile.

    A name goes before an alias, and an alias before the end of another one. The files are not parsed for it.
    """
    known = locate.aliases_by_name("models", dirs)
    aliases = [(alias.lower(), stem) for stem, others in known.items() for alias in others]
    ends: dict[str, str] = {}
    for alias, stem in aliases:
        ends.setdefault(alias.rsplit("/", 1)[-1], stem)
    return {**ends, **dict(aliases), **{stem.lower(): stem for stem in known}}


def of_bases(name: str) -> list[str]:
    """The candidates of the base that stands at the end of a fine-tune's name, as in `dolphin-2.9-llama3-8b`."""
    last = name.rsplit("/", 1)[-1].replace("_", "-")
    last = re.sub(r"-(base|instruct|chat|it)-(?=\d+(\.\d+)?b\b)", "-", last)
    words = re.sub(r"(llama|qwen|gemma|phi)-(\d)-(\d)-(?=\d+b\b)", r"\1-\2.\3-", last).split("-")
    start = next((i for i in range(len(words)) if BASES.match("-".join(words[i:]))), None)
    if start is None or OF_ANOTHER_KIND.search("-".join(words)):
        return []
    return candidates("-".join(words[start:]))


def of_starts(name: str) -> list[str]:
    """The candidates of the base that a fine-tune's name may begin with: `qwen3-8b-own-sft`, `llama-3.1-own-8b`.

    Longer beginnings come first. Behind the generation alone the size may stand at the end, with one size in the name.
    """
    last = name.rsplit("/", 1)[-1].replace("_", "-")
    words = re.sub(r"(llama|qwen|gemma|phi)-(\d)-(\d)-(?=\d+b\b)", r"\1-\2.\3-", last).split("-")
    if OF_ANOTHER_KIND.search("-".join(words)):
        return []
    starts = ["-".join(words[:count]) for count in range(len(words) - 1, 1, -1)]
    found = [one for start in starts if BASES.match(start) or start in FINE_TUNES for one in candidates(start)]
    parted = PARTED.fullmatch("-".join(words))
    if parted is not None and not SIZE.search(parted["own"]):
        found += candidates(f"{parted['generation']}-{parted['size']}")
    return [one for one in found if SIZE.search(one)]


DOT_OF_MODELSCOPE = "___"
"""How ModelScope's cache writes a dot in the name of a folder: modelscope, hub/snapshot_download.py."""


def candidates(name: str) -> list[str]:
    """Shorter and shorter names of the same shape, the longest first."""
    last = name.rsplit("/", 1)[-1].replace(DOT_OF_MODELSCOPE, ".")
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
