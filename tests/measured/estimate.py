"""What the simulated allocator reserves of drawn runs, beside what they allocate: `python -m tests.measured.estimate`.

No measurement is in it: it says how far the factors of the estimate (1.04, and 1.10 for the upper end) are from the
allocator's own rules, on one device that has room for every run. The draws are the same each time, and take six
minutes.
"""

from __future__ import annotations

import random
from typing import Any

from vramplan import fit
from vramplan.errors import VramplanError

RUNS = 330
SEED = 7
MODELS = (
    *("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-base-uncased", "bert-large-uncased", "opt-1.3b"),
    *("pythia-1.4b", "llama-3.2-1b", "qwen2.5-7b", "llama-3.1-8b", "t5-base", "gemma-2-2b", "qwen2.5-0.5b"),
    *("mistral-7b", "qwen3-4b", "llama-2-13b", "phi-2", "qwen2.5-14b"),
)
SHARES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95)


def draw(chance: random.Random) -> dict[str, Any]:
    """The keys of a run; not every one is possible."""
    keys: dict[str, Any] = {
        "model": chance.choice(MODELS),
        "gpu": {"name": "roomy", "memory": "2900 GiB", "architecture": "ampere"},
        "micro_batch_size": chance.choice([1, 1, 2, 2, 3, 4, 6, 8, 16, 32]),
        "activation_checkpointing": chance.choice(["none", "none", "full", "full", "sqrt"]),
        "gradient_accumulation_steps": chance.choice([1, 1, 4]),
        "sequence_length": chance.choice([256, 512, 1024, 2048]),
    }
    if chance.random() < 0.35:
        keys["adapter"] = {"kind": "lora", "rank": 16}
    if chance.random() < 0.3:
        keys["loss"] = "fused"
    if chance.random() < 0.3:
        keys["optimizer"] = chance.choice(["adamw-8bit", "sgd", "adafactor"])
    if chance.random() < 0.4:
        keys["precision"] = chance.choice(["amp-bf16", "pure-bf16", "fp32"])
    if "adapter" in keys and chance.random() < 0.4:
        keys["quantization"] = "nf4"
    return keys


def ratios() -> list[float]:
    """Reserved over allocated bytes of each run, in order."""
    chance, found = random.Random(SEED), list[float]()
    while len(found) < RUNS:
        try:
            answered = fit(**draw(chance), allocator="simulate")
        except VramplanError:
            continue
        assert answered.allocator is not None
        found.append(answered.allocator.reserved_bytes / answered.peak.allocated_bytes)
    return sorted(found)


def main() -> None:
    """Print the distribution."""
    found = ratios()
    print(", ".join(f"{share:.0%} below {found[int(len(found) * share)]:.3f}" for share in SHARES))
    print(f"{sum(one > 1.10 for one in found)} of {len(found)} above 1.10")


if __name__ == "__main__":
    main()
