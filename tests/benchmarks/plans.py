"""How long a search among plans takes: `python -m tests.benchmarks.plans`.

User CPU time of a whole process on one core, beside how many combinations there were and how many were answered. As
with the other benchmarks nothing is asserted.
"""

from __future__ import annotations

import json
import os
import subprocess

from tests.benchmarks.ratios import program

SEARCHES = (
    ("one GPU", "-m gpt2-xl -g v100 --global-batch 512"),
    ("8 GPUs", "-m llama-3-8b -g h100-80gb --gpus 8"),
    ("8 GPUs, a batch", "-m llama-3-8b -g h100-80gb --gpus 8 --global-batch 512"),
    ("8 GPUs, every program", "-m llama-3-8b -g h100-80gb --gpus 8 --runtime all"),
    ("Megatron, 16 GPUs", "-m llama-2-13b -g a100 --gpus 16 --runtime megatron --global-batch 512"),
    ("Megatron, 64 GPUs, experts", "-m mixtral-8x7b -g h100 --gpus 64 --runtime megatron"),
)


def main() -> None:
    """Run each search once, and print one line for it."""
    print(f"{'search':<28}{'combinations':>14}{'candidates':>12}{'shown':>7}{'user s':>9}{'candidates/s':>14}")
    for name, words in SEARCHES:
        before = os.times().children_user
        command = [*program(), "plan", *words.split(), "--format", "json"]
        found = json.loads(subprocess.run(command, check=False, capture_output=True, text=True).stdout)
        seconds = os.times().children_user - before
        print(
            f"{name:<28}{found['combinations']:>14,}{found['candidates']:>12,}{found['fits']:>7}{seconds:>9.1f}"
            f"{found['candidates'] / seconds:>14,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
