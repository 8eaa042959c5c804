"""What the simulated allocator reserves of drawn runs, beside what they allocate: `python -m tests.measured.estimate`.

No measurement is in it: it says how far the factors of the estimate (1.04, and the upper end) are from the allocator's
own rules, on one device that has room for every run. The draws are the same each time, and take six minutes; another
seed draws others.
"""

from __future__ import annotations

import random
import sys
from typing import Any, NamedTuple

from vramplan.errors import VramplanError
from vramplan.job import build_job
from vramplan.planner.decision import MOST_EVENTS, decide

RUNS = 330
SEED = 7
PLAIN = 1.10  # the upper end where no tensor is large
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


class Ratio(NamedTuple):
    """Bytes of a run over those that it allocates at once."""

    reserved: float  # simulated
    high: float  # the upper end of the estimate, without the context
    is_long: bool  # so that `fit` estimates it


def ratios(seed: int) -> list[Ratio]:
    """Those of each run."""
    chance, found = random.Random(seed), list[Ratio]()
    while len(found) < RUNS:
        try:
            decision = decide(build_job({**draw(chance), "allocator": "simulate"}))
        except VramplanError:
            continue
        judge, rung = decision.judge, decision.choice.rung
        estimated = judge.footprint(rung.placement, rung.schedule)
        record = judge.record_at(rung.placement, rung.schedule.micro_batch_size, rung.schedule.accumulates)
        high, allocated = estimated.high - judge.outside_bytes, estimated.allocated
        is_long = record.events_of_every_copy > MOST_EVENTS
        found.append(Ratio(rung.peak.reserved / allocated, high / allocated, is_long))
    return found


def main() -> None:
    """Print the distribution."""
    seed = int(sys.argv[1]) if sys.argv[1:] else SEED
    every = ratios(seed)
    for what, found in (("all", every), ("estimated by fit", [one for one in every if one.is_long])):
        reserved, high = (sorted(getattr(one, name) for one in found) for name in ("reserved", "high"))
        print(f"{what}: {len(found)} runs")
        for name, those in (("reserved", reserved), ("upper end", high)):
            print(
                f"  {name}:", ", ".join(f"{share:.0%} below {those[int(len(those) * share)]:.3f}" for share in SHARES)
            )
        within = sum(one.reserved <= one.high for one in found)
        print(f"  {within} within the upper end, {sum(one <= PLAIN for one in reserved)} within {PLAIN}")


if __name__ == "__main__":
    main()
