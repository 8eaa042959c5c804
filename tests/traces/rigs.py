"""The rigs: which programs' rows each makes again, what it needs, and its commands."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.traces.parts import PARTS, figures_of, parts_of, write_parts
from vramplan.values.job import ResolvedJob

HERE = Path(__file__).parent


class Rig(NamedTuple):
    """An environment in which rows are traced again."""

    name: str
    files: tuple[str, ...]  # of rows
    covers: str
    source: tuple[str, str] | None = None  # of a program that is no package: its repository and the commit
    paths: tuple[str, ...] = ()  # of the files of that repository that are taken; without any all are
    types: tuple[str, ...] = ()  # of models whose rows it makes; without any those of all
    alone: tuple[str, ...] = ()  # packages without what they need, of which the rows run a part
    alone_with: tuple[tuple[str, str], ...] = ()  # variables of the environment in which these are installed

    @property
    def requirements(self) -> Path:
        """What is installed in it, versions pinned."""
        return HERE / "requirements" / f"{self.name}.txt"


TRANSFORMERS = Rig(
    "transformers",
    (
        *("suite", "random", "families", "attention", "seq2seq", "moe", "vision", "resnet", "halves", "optimizers"),
        *("steps", "precisions", "selective", "selective_more", "checkpoints", "losses", "heads", "smoothing"),
        *("padding", "losses_more", "adapters", "frozen", "adapted", "adapters_more", "lora_parts", "pairs", "galore"),
        "adapter_kinds",
        "peft_more",
        *(
            "quantized",
            "returned",
            "master",
            "hosted",
            "masks",
            "more_families",
            "images",
            "tiles",
            "liger",
            "turns",
            "other_optimizers",
            "tiled",
            "taught",
        ),
        *(
            "linear",
            "block_kinds",
            "decoders",
            "state_spaces",
            "short_convolutions",
            "met",
            "half_logits",
            "zeroed_late",
            "distilbert",
            "whisper",
            "dbrx",
            "deberta_v2",
            "electra",
            "modernbert",
            "other_families",
            "types_more",
            "named_types",
            "vision_more",
            "image_text",
            "stages",
            "text_types",
            "speech",
            "virtual_tokens",
            "further_types",
            "added_types",
        ),
        "optimizers_more",
        *("preference", "policy", "evaluation", "evaluation_more", "generation", "generation_more", "pairs_beside"),
    ),
    "Transformers, PEFT, plain PyTorch, Liger's loss and kernels, TRL's losses, weights and optimizers of "
    "bitsandbytes, galore-torch, apollo-torch, adam-mini, badam, lomo-optim, schedulefree, torch-optimi, grokadamw, "
    "came-pytorch and prodigyopt, evaluation and generation",
)
GPTQ = Rig(
    "gptq",
    ("quantized",),
    "weights of a GPTQ checkpoint under LoRA, by optimum and gptqmodel, in the models of the first rig",
    alone=("gptqmodel==7.7.0",),
)
CHATGLM = Rig(
    "chatglm",
    ("attention", "losses_more", "frozen", "adapters_more", "pairs", "evaluation_more"),
    "ChatGLM3, whose code is no class of Transformers, with what the first rig has",
    ("https://github.com/THUDM/language_filter_chatglm3", "07b027543c65631ca54cb3107cfee7e384ed9dd9"),
    paths=("modeling_chatglm.py", "configuration_chatglm.py"),
    types=("chatglm",),
)
COMPILE = Rig(
    "compile",
    ("compile", "compile_more", "compile_beside"),
    "torch.compile with Inductor round what the first rig has",
)
FSDP2 = Rig(
    "fsdp2",
    (
        *("fully_shard", "fully_shard_more", "replicas", "sharded_more", "sharded_units", "sharded_decoders"),
        *("sharded_spaces", "sharded_tiles", "sharded_bits", "sharded_activations", "zeroed_late_shared"),
        "preference_shared",
        "stepped_shared",
        "distilbert_shared",
        "whisper_shared",
        "dbrx_shared",
        "deberta_v2_shared",
        "electra_shared",
        "modernbert_shared",
        "other_families_shared",
        "every_type_shared",
        "optimizers_more_shared",
        "met_shared",
        "peft_more_shared",
        "image_shared",
        "further_types_shared",
        "added_types_shared",
    ),
    "PyTorch's fully_shard with the models, adapters, optimizers and losses of the first rig",
)
REPLICATED = Rig(
    "ddp",
    ("replicated", "peft_more_shared", "image_shared", "further_types_shared", "added_types_shared"),
    "PyTorch's DistributedDataParallel with what the first rig has",
)
FSDP1 = Rig(
    "fsdp1",
    ("flat_parameter", "flat_adapters", "flat_host", "optimizers_more_shared", "met_shared"),
    "PyTorch's FullyShardedDataParallel with what the first rig has, and PEFT's policy",
)
ZERO = Rig(
    "zero",
    (
        "zero",
        "zero_offload",
        "zero_adapters",
        "host_activations",
        "dbrx_zero",
        "deberta_v2_zero",
        "electra_zero",
        "modernbert_zero",
        "whisper_zero",
        "preference_zero",
        "other_families_zero",
        "every_type_zero",
        "optimizers_more_shared",
        "met_shared",
        "peft_more_shared",
        "image_shared",
        "further_types_zero",
        "added_types_zero",
    ),
    "DeepSpeed's engine with the stages of ZeRO, and what the first rig has",
)
AXOLOTL = Rig(
    "axolotl",
    ("fused_lora", "fused_lora_shared", "tiled_mlp", "tiled_mlp_shared", "taught_from_file", "optimizers_more"),
    "Axolotl's fused LoRA, its MLPs in tiles, its distillation from files and two optimizers, in the models of the "
    "first rig",
    alone=("axolotl==0.19.0",),
)
TORCHAO = Rig(
    "torchao",
    ("fp8", "fp8_more", "rounded", "rounded_shared"),
    "torchao's Float8Linear and fake quantizers in the models of the first rig",
)
TORCHTUNE = Rig(
    "torchtune",
    ("torchtune", "torchtune_units", "torchtune_taught", "torchtune_rounded", "torchtune_compiled"),
    "torchtune's builders, adapters and losses, its teachers, and its shards",
)
LITGPT = Rig(
    "litgpt", ("litgpt", "litgpt_flat"), "LitGPT's models and LoRA, its losses and Fabric around them, and its shards"
)
LITGPT_OLD = Rig(
    "litgpt-0.4",
    ("litgpt_old",),
    "LitGPT 0.4.5, whose norms and projections are others",
    alone=("litgpt==0.4.5",),
)
LITGPT_BITS = Rig("litgpt-bits", ("litgpt",), "LitGPT with weights in 4 bits of bitsandbytes 0.41.1")
TORCHTITAN = Rig(
    "torchtitan",
    ("titan", "titan_replicas", "titan_units", "titan_compiled", "titan_context_rows", "titan_pipeline_rows"),
    "torchtitan's Llama, its parallelize_llama and pipeline_llama",
)
NANOGPT = Rig(
    "nanogpt",
    ("nanogpt",),
    "nanoGPT's model.py and its loop",
    ("https://github.com/karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
)
RECORDS = "records/track_1_short/"
LOGS = {
    True: f"{RECORDS}2024-12-10_MFUTweaks/04df8c70-2462-4b6c-9e49-c7589b321a81.txt",
    False: f"{RECORDS}2024-12-17_SparsifyEmbeds/165384d5-5a41-4fba-9b79-8ecc372616ea.txt",
}
"""A log of each record of modded-nanogpt that is traced, by whether its value embeddings are mirrored."""

MODDED = Rig(
    "modded-nanogpt",
    ("modded",),
    "the classes of two records of modded-nanogpt, in DDP",
    ("https://github.com/KellerJordan/modded-nanogpt", "f411b3d346aa52d3504324ca93c230fd84c6c07f"),
    paths=tuple(LOGS.values()),
)
FOUNDRY = Rig(
    "llm-foundry",
    ("foundry",),
    "llm-foundry's MPT and flash-attn's functions, on one device and in FSDP1's units of blocks",
    alone=("llm-foundry==0.6.0", "flash-attn==2.5.0"),
    alone_with=(
        ("FLASH_ATTENTION_SKIP_CUDA_BUILD", "TRUE"),
        ("FLASH_ATTENTION_FORCE_BUILD", "TRUE"),
        ("PIP_NO_BUILD_ISOLATION", "0"),
    ),
)
MEGATRON = Rig(
    "megatron",
    ("megatron_rows", "expert_rows", "capacity_rows", "context_rows"),
    "Megatron-core's GPTModel, one micro-batch of a stage, with tensor, sequence, context and expert parallelism",
    alone=("transformer-engine==2.10.0",),
)
TORCHVISION = Rig(
    "torchvision",
    ("torchvision",),
    "torchvision's ViT in a plain loop on one device",
    alone=("torchvision==0.28.0",),
)
OLDER = tuple(
    Rig(
        f"transformers-{release}",
        ("older_releases",),
        f"models of Transformers {release} that are built like Llama, and its mixtures of experts",
    )
    for release in ("4.48", "4.53", "4.57")
)
RIGS = {
    one.name: one
    for one in (
        *(
            TRANSFORMERS,
            GPTQ,
            CHATGLM,
            COMPILE,
            AXOLOTL,
            FSDP2,
            REPLICATED,
            FSDP1,
            ZERO,
            TORCHAO,
            TORCHTUNE,
            LITGPT,
            LITGPT_BITS,
            LITGPT_OLD,
            TORCHTITAN,
        ),
        *(NANOGPT, MODDED, FOUNDRY, MEGATRON, TORCHVISION, *OLDER),
    )
}

WITHOUT: dict[str, str] = {}
"""What no rig makes again, and where its rows are: in a table of docs/traces.md too."""


BETWEEN_STEPS = ("evaluation", "evaluation_more", "generation", "generation_more", "pairs_beside")
"""Files of peaks of what runs between two training steps."""


def row_names() -> tuple[str, ...]:
    """Every file of rows."""
    from tests.oracle.compare import COMPILED, FILES

    return (*FILES, *COMPILED, *BETWEEN_STEPS)


def pinned(requirements: Path) -> list[str]:
    """The packages of a file of versions, and of those that it names."""
    found = []
    for line in requirements.read_text("utf-8").splitlines():
        if line.startswith("-r "):
            found += pinned(requirements.parent / line.removeprefix("-r "))
        elif line[:1].isalpha():
            found.append(line)
    return found


def source_of(file: str) -> str:
    """What makes the rows of a file: the rigs, their versions and their commands, and which rows none makes."""
    made = "; or ".join(_made_by(one, file) for one in RIGS.values() if file in one.files)
    rest = [what for what, where in WITHOUT.items() if f"{file}.json" in where.replace(",", " ").split()]
    return f"{made}; the others by a program that is not in this repository ({', '.join(rest)})" if rest else made


def _made_by(rig: Rig, file: str) -> str:
    versions = ", ".join(line.replace("==", " ") for line in (*pinned(rig.requirements), *rig.alone))
    return f"rig {rig.name}: {versions}; python -m tests.traces check {rig.name} --files {file}"


def write_sources(files: Sequence[str]) -> None:
    """Name in each file of rows what makes them."""
    from tests.oracle.chosen import path_of

    for file in files:
        if file in PARTS:
            write_parts(file, source_of(file), parts_of(file))
            continue
        path = path_of(file)
        text = path.read_text("utf-8")
        head, jobs = text.split('"jobs":', 1)
        defaults = json.loads(head.rstrip().rstrip(",") + "}").get("defaults", {})
        defaults["source"] = source_of(file)
        path.write_text(f'{{"version": 1, "defaults": {json.dumps(defaults)}, "jobs":{jobs}', "utf-8")


def folder_of(rig: Rig) -> Path:
    """Where the environment of a rig lies: below VRAMPLAN_RIGS, or in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramplan" / "rigs"
    return Path(os.environ.get("VRAMPLAN_RIGS") or cache) / rig.name


def python_of(rig: Rig) -> Path | None:
    """Its interpreter; None where it is not set up."""
    python = folder_of(rig) / "bin" / "python"
    return python if python.exists() else None


def set_up(rig: Rig, source: str | None = None) -> int:
    """Make the environment: the pinned versions, and this checkout beside them.

    `source`: a repository in the place of that of the rig, on this machine for example.
    """
    if source is not None and rig.source is None:
        print(f"rig {rig.name} is made of packages alone, and takes no --source")
        return 2
    folder = folder_of(rig)
    install: list[Any] = [folder / "bin" / "python", "-m", "pip", "install"]
    made = subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False).returncode
    if made:
        return made
    words: list[list[Any]] = [
        [*install, *_requirements(rig, install)],
        *([*install, "--no-deps", one] for one in rig.alone),
        [*install, "-e", HERE.parents[1]],
    ]
    if rig.source is not None:
        repository, commit = rig.source
        if not (folder / "source").exists():
            words.append(["git", "clone", "--no-checkout", source or repository, folder / "source"])
        taken = [commit, "--", *rig.paths] if rig.paths else ["--detach", commit]
        words.append(["git", "-C", folder / "source", "checkout", *taken])
    for one in words:
        more = dict(rig.alone_with) if one[-1] in rig.alone else {}
        done = subprocess.run([str(word) for word in one], check=False, env={**os.environ, **more}).returncode
        if done:
            return done
    print(f"rig {rig.name} is in {folder}")
    return 0


def _requirements(rig: Rig, install: Sequence[Any]) -> list[Any]:
    """The pins alone where pip's own indexes have PyTorch's build, else the file, which names one more index.

    Where the named index cannot be reached pip would wait for it, though a mirror has everything.
    """
    pins = pinned(rig.requirements)
    builds = [pin for pin in pins if "+" in pin]
    words = [*map(str, install), "--quiet", *builds]
    if builds and subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode == 0:
        return list(pins)
    return ["-r", rig.requirements]


def check(rig: Rig, rows: int, seed: int, files: Sequence[str] = ()) -> int:
    """Trace rows of each file again in the environment; the exit code is 1 if one comes out otherwise, 2 without it."""
    python = python_of(rig)
    if python is None:
        print(f"rig {rig.name} is not set up: python -m tests.traces setup {rig.name}")
        return 2
    words = [
        str(python),
        "-W",
        "ignore",
        "-m",
        "tests.traces",
        "rows",
        rig.name,
        "--rows",
        str(rows),
        "--seed",
        str(seed),
        *(("--files", *files) if files else ()),
    ]
    return subprocess.run(words, check=False, cwd=HERE.parents[1]).returncode


def nightly(rows: int, seed: int) -> int:
    """`check` of every rig that is set up; the exit code is 1 if a row comes out otherwise, 2 if there is no rig."""
    codes = []
    for rig in RIGS.values():
        if python_of(rig) is None:
            print(f"rig {rig.name} is left out: it is not set up", flush=True)
            continue
        print(f"rig {rig.name}", flush=True)
        codes.append(check(rig, rows, seed))
    return int(any(codes)) if codes else 2


def recorded_of(job: ResolvedJob) -> dict[str, int]:
    """The peaks of a row: of its phases, or of what runs between steps."""
    for name, asked in (("evaluation", job.eval_batch_size), ("generation", job.generation_batch_size)):
        if asked is not None:
            return {name: job.case["measured"]["peak_bytes"]}
    peaks: dict[str, int] = job.case["trace"]["phase_peaks"]
    return peaks


def trace_rows(rig: Rig, rows: int, seed: int, files: Sequence[str] = ()) -> int:
    """The same inside of the environment. What it has no loop for is counted, and is no failure."""
    from tests.oracle.compare import jobs
    from tests.traces.composed import begin, traced_row
    from tests.traces.composed import check as check_job
    from vramplan.errors import InputError
    from vramplan.options.words import BACKWARD

    def again(job: Any) -> tuple[dict[str, int], dict[str, int]]:
        check_job(job)
        found = traced_row(job._replace(hold_outputs_until=BACKWARD))  # nothing is left of the iteration before
        return recorded_of(job), found

    kept, wrong = begin(), 0
    for file in files or rig.files:
        every: Sequence[Any] = parts_of(file) if file in PARTS else jobs(file)
        if rig.types:
            every = [one for one in every if one.model.transformers_model_type in rig.types]
        chosen = every if rows >= len(every) else random.Random(seed).sample(every, rows)
        began, counts = time.monotonic(), {"exact": 0, "off": 0, "not run": 0}
        for one in chosen:
            name = one["row"] if file in PARTS else one.name
            try:
                recorded, found = figures_of(file, one) if file in PARTS else again(one)
            except InputError:
                counts["not run"] += 1
                continue
            except Exception as error:  # of the library, on a row that it once ran
                counts["off"] += 1
                print(f"  {name}: {type(error).__name__}: {str(error)[:200]}")
                continue
            counts["exact" if found == recorded else "off"] += 1
            if found != recorded:
                print(f"  {name}: recorded {recorded}, traced {found}")
        wrong += counts["off"]
        said = ", ".join(f"{number} {word}" for word, number in counts.items())
        print(f"{file}: {len(chosen)} of {len(every)} rows, {said} ({time.monotonic() - began:.0f} s)", flush=True)
    del kept
    return int(wrong > 0)
