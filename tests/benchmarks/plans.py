"""How long a search among plans takes, and a comparison: `python -m tests.benchmarks.plans [REPETITIONS]`.

User CPU time of a whole process on one core, also as a ratio to a trivial Typer program that runs in turn with it, so
that the machine and its load cancel out. Beside it stands how many combinations and candidates there were, or cells. As
with the other benchmarks nothing is asserted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.ratios import ONE_COMMAND, program, run

SEARCHES = (
    ("one GPU", "plan -m gpt2-xl -g v100 --global-batch 512"),
    ("8 GPUs", "plan -m llama-3-8b -g h100-80gb --gpus 8"),
    ("8 GPUs, a batch", "plan -m llama-3-8b -g h100-80gb --gpus 8 --global-batch 512"),
    ("8 GPUs, every program", "plan -m llama-3-8b -g h100-80gb --gpus 8 --runtime all"),
    ("16 GPUs, every program", "plan -m llama-3-8b -g h100-80gb --gpus 16 --runtime all"),
    ("8 GPUs, offload alone fits", "plan -m llama-3-70b -g rtx-4090 --gpus 8"),
    ("4 GPUs, many are simulated", "plan -m qwen2.5-7b -g a100-40gb --gpus 4 --runtime pytorch"),
    (
        "4 GPUs, a batch, ZeRO",
        "plan -m gpt2-xl -g rtx-3090 --gpus 4 --global-batch 64 --sharding zero2,zero3 --exclude compile=true",
    ),
    ("Megatron, 16 GPUs", "plan -m llama-2-13b -g a100 --gpus 16 --runtime megatron --global-batch 512"),
    ("Megatron, 64 GPUs, experts", "plan -m mixtral-8x7b -g h100 --gpus 64 --runtime megatron"),
    (
        "Megatron, 64 GPUs, a batch",
        "plan -m llama-3-70b -g h100 --gpus 64 --runtime megatron --global-batch 1024",
    ),
    (
        "a comparison",
        "compare -m gpt2,gpt2-medium,gpt2-large,gpt2-xl,llama-3.2-1b,qwen2.5-7b,llama-3-8b,mistral-7b "
        "-g t4,v100,a100-40gb,a100-80gb,h100,rtx-4090,l4,rtx-3090 --gpus 8 --sharding ddp,fsdp,zero3 "
        "--micro-batch 1,2,4,8 --checkpointing none,sqrt,full --precision amp-bf16,pure-bf16,fp32,amp-fp16",
    ),
    (
        "checkpoints of several, FSDP",
        "compare -m gpt2-xl,llama-3-8b,llama-3-70b -g h100 --gpus 8 --sharding fsdp --checkpointing sqrt,every:8 "
        "--micro-batch 1,2 --precision amp-bf16,pure-bf16",
    ),
)


def main(repetitions: int) -> None:
    """Run each search, and print one line for it."""
    print(f"Median user CPU time of {repetitions} pairs; the base is a trivial Typer program.")
    print(f"{'search':<28}{'combinations':>14}{'candidates':>12}{'shown':>7}{'s':>8}{'ratio':>8}{'a second':>10}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one_command.py").write_text(ONE_COMMAND, "utf-8")
        base = (sys.executable, "one_command.py")
        run(base, folder)
        for search, words in SEARCHES:
            command = (*program(), *words.split(), "--format", "json")
            pairs = [(run(base, folder).user_seconds, run(command, folder).user_seconds) for _ in range(repetitions)]
            combinations, candidates, shown = _counts(
                json.loads(subprocess.run(command, check=False, capture_output=True, text=True).stdout)
            )
            seconds = statistics.median(ours for _, ours in pairs)
            ratio = statistics.median(ours / theirs for theirs, ours in pairs)
            print(
                f"{search:<28}{combinations:>14,}{candidates:>12,}{shown:>7}{seconds:>8.1f}{ratio:>8.1f}"
                f"{candidates / seconds:>10,.0f}",
                flush=True,
            )


def _counts(found: dict[str, Any]) -> tuple[int, int, int]:
    """Combinations, those with every way to divide the batch of a step, and how many answers fit."""
    if "cells" in found and "combinations" not in found:
        cells = found["cells"]
        return len(cells), len(cells), sum(cell["verdict"] == "fits" for cell in cells)
    return found["combinations"], found["candidates"], found["fits"]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
