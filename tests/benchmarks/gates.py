"""What gates of a thousand jobs cost: `python -m tests.benchmarks.gates [REPETITIONS]`."""

from __future__ import annotations

import sys
from itertools import islice, product

from tests.benchmarks.ratios import Case, print_ratios

MODELS = (
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "bert-base-uncased",
    "bert-large-uncased",
    "opt-1.3b",
    "pythia-1.4b",
    "llama-3.2-1b",
    "qwen2.5-7b",
)
GPUS = ("t4", "v100", "a100-40gb", "a100-80gb", "h100", "rtx-4090")
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
JOBS = 1000
STRATEGIES = ("none", "sqrt", "full")


def thousand_jobs(*, pinned: bool) -> str:
    """A job file of a thousand jobs: models x GPUs x micro-batches x strategies; open ones leave the micro-batch open.

    The open ones differ in the global batch instead.
    """
    lines = ["version: 1", "jobs:"]
    combinations = product(MICRO_BATCHES, MODELS, GPUS, STRATEGIES)  # all models and GPUs, however many are left out
    for micro, model, gpu, strategy in islice(combinations, JOBS):
        size = f"micro_batch_size: {micro}" if pinned else f"global_batch_size: {micro * 64}"
        lines.append(
            f"  - {{name: {model} on {gpu} with {micro} and {strategy}, model: {model}, gpu: {gpu}, {size}, "
            f"activation_checkpointing: {strategy}, max_utilization: 1.0}}"
        )
    return "\n".join(lines) + "\n"


def main(repetitions: int) -> None:
    """Measure both files."""
    files = {"pinned.yaml": thousand_jobs(pinned=True), "open.yaml": thousand_jobs(pinned=False)}
    cases = (
        Case("check, 1,000 pinned jobs", ("check", "pinned.yaml"), seconds_limit=6, memory_limit_mb=60),
        Case("check, 1,000 open jobs", ("check", "open.yaml"), seconds_limit=15),
    )
    print_ratios(cases, files, repetitions)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
