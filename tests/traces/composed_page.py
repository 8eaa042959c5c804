"""The page of the composed jobs that are kept: shares answered and exact, by pair of techniques, and what is not."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.traces.composed import summary
from vramplan.values.parallel import DDP, ZERO_STAGES

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "accuracy-composed.md"
KEPT = HERE / "composed.json"
SHARDED = {
    "fsdp": ("FSDP2", "composed_fsdp2.json", "each block wrapped by PyTorch's `fully_shard`"),
    "fsdp1": ("FSDP1", "composed_fsdp1.json", "each block in a `FullyShardedDataParallel`"),
    DDP: ("DDP", "composed_ddp.json", "the model in PyTorch's `DistributedDataParallel`"),
    **{
        stage: (f"ZeRO-{stage[-1]}", f"composed_{stage}.json", "under DeepSpeed's engine or the Trainer with it")
        for stage in ZERO_STAGES
    },
}
"""By word of `--sharding`: how it is called, where its jobs are kept, and what it does."""

LATER = {
    "later": ("one device", "composed_later.json"),
    "last": ("one device, once more", "composed_last.json"),
    "again": ("one device, again", "composed_again.json"),
    "fsdp later": ("FSDP2", "composed_fsdp2_later.json"),
    "fsdp1 later": ("FSDP1", "composed_fsdp1_later.json"),
    "fsdp1 last": ("FSDP1, once more", "composed_fsdp1_last.json"),
    "ddp later": ("DDP", "composed_ddp_later.json"),
    **{f"{stage} later": (f"ZeRO-{stage[-1]}", f"composed_{stage}_later.json") for stage in ZERO_STAGES},
}
"""Later draws of the same, by a word of their own: what is new in them shows what a user of today meets."""

PROGRAMS = {
    "torchtune": ("torchtune", "composed_torchtune.json", "its recipes of Llama and Mistral"),
    "litgpt": ("LitGPT", "composed_litgpt.json", "its models and LoRA, with what Fabric puts around them"),
    "torchtitan": ("torchtitan", "composed_torchtitan.json", "its Llama on several devices"),
    "llm-foundry": ("llm-foundry", "composed_llm_foundry.json", "its MPT"),
    "nanogpt": ("nanoGPT", "composed_nanogpt.json", "its GPT-2"),
}
"""By word of `--program`: how it is called, where its jobs are kept, and what of it runs."""


def kept() -> dict[str, dict[str, Any]]:
    """The results of each way to share, and of each program, that has some, by its word."""
    found = {}
    files = {word: name for word, (_, name, *_) in {**SHARDED, **PROGRAMS, **LATER}.items()}
    for word, name in files.items():
        if (HERE / name).exists():
            found[word] = json.loads((HERE / name).read_text("utf-8"))
    return found


HEAD = """\
# Composed jobs

For people whose job has several techniques at once, which no traced row has together.

Small jobs on one device under Transformers and PyTorch, drawn out of the table of options: each technique on its own
with a small probability, so that two to five meet.
Each was answered, and traced on the libraries' own code; a job that is refused was traced past its refusal.
"""

TABLE = """\
## By pair of techniques

Of the jobs in which two keys met and that the libraries run: how many are answered, how many of these are exact to the
byte in all three phases, and the worst error of the peak.

| Keys | Jobs | Answered | Exact | Worst error |
|---|---:|---:|---:|---:|
"""


def by_pair(document: dict[str, Any]) -> list[tuple[str, str, int, int, int, float]]:
    """Of each pair of keys that met: jobs that the libraries run, answered, exact, and the worst error."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in document["results"]:
        if one["status"] in ("exact", "off", "refused"):
            for pair in combinations(sorted({name.partition(": ")[0] for name in one["techniques"]}), 2):
                found.setdefault(pair, []).append(one)
    rows = []
    for (first, second), jobs in sorted(found.items()):
        answered = [one for one in jobs if one["status"] != "refused"]
        exact = sum(one["status"] == "exact" for one in answered)
        rows.append((first, second, len(jobs), len(answered), exact, max([one.get("error", 0.0) for one in jobs])))
    return rows


def page() -> str:
    """The page of the results that are kept."""
    document = json.loads(KEPT.read_text("utf-8"))
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    how = f"The command is `{document['command']}`, with {versions}; [traces](traces.md) says how to run it.\n"
    rows = "".join(
        f"| {first}, {second} | {jobs} | {answered} | {exact} | {worst:.3%} |\n"
        for first, second, jobs, answered, exact, worst in by_pair(document)
    )
    sharded = "".join(_section(word, one) for word, one in kept().items())
    return f"{HEAD}\n{_said(document)}\n{how}{_rest(document)}\n{TABLE}{rows}{sharded}"


def _said(document: dict[str, Any]) -> str:
    """What is found today, and what was when the jobs were drawn, where that was another."""
    now = summary(document)
    first = document.get("first", now)
    drawn = [] if first == now else [f"when they were drawn, before anything was mended: {first[1]}"]
    return "".join(f"- {line[0].upper()}{line[1:]}.\n" for line in (*now, *drawn))


def _section(word: str, document: dict[str, Any]) -> str:
    """The jobs under a way to share, or of a program."""
    if word in LATER:
        head = f"\n## Drawn later: {LATER[word][0]}\n\nThe same with another seed.\n"
    elif word in PROGRAMS:
        name, _, how = PROGRAMS[word]
        head = f"\n## {name}\n\nJobs that are drawn for the program: {how}.\n"
    else:
        name, _, how = SHARDED[word]
        head = f"\n## Under {name}\n\nThe same draws on two to five devices, {how}.\n"
    rest = _rest(document).replace("\n## ", "\n### ")
    return f"{head}\n{_said(document)}\nThe command is `{document['command']}`.\n{rest}"


def _rest(document: dict[str, Any]) -> str:
    """What was refused or off, job by job."""
    found = [one for one in document["results"] if one["status"] in ("refused", "off")]
    if not found:
        return ""
    lines = ["\n## Refused, or off\n\n| Techniques | What |\n|---|---|\n"]
    for one in found:
        what = one["said"] if one["status"] == "refused" else f"off by {one['error']:.3%} of the peak"
        lines.append(f"| {', '.join(one['techniques']) or 'none'} | {what} |\n")
    return "".join(dict.fromkeys(lines))  # two jobs may have the same techniques
