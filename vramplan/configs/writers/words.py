"""What writers share: tables of readers turned round, and settings of the programs around the Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from vramplan.configs.asked import Asked
from vramplan.configs.page import Page
from vramplan.configs.programs import trainer
from vramplan.configs.programs.deepspeed_keys import SIZES

K = TypeVar("K")
V = TypeVar("V")

STATES = ("parallel.sharding", "parallel.shards")
NEAR_OPTIMIZERS = {
    **dict.fromkeys(("adam", "galore-adamw", "apollo-adamw", "adam-mini", "muon"), "adamw"),
    "galore-adamw-8bit": "adamw-8bit",
    **dict.fromkeys(("nadam", "radam", "adamax", "adadelta", "adopt", "adamc", "prodigy", "came"), "adamw"),
    **dict.fromkeys(("stable-adamw", "adamw-optimi", "grokadamw"), "adamw"),
    **dict.fromkeys(("schedule-free-adamw", "schedule-free-radam"), "adamw"),
    **dict.fromkeys(("sgd-momentum", "lomo", "asgd", "schedule-free-sgd"), "sgd"),
    **dict.fromkeys(("galore-adafactor", "adalomo"), "adafactor"),
}
STAGES = {"fsdp": 3, "hsdp": 3, "fsdp-grad-op": 2, "distributed-optimizer": 1, "none": 1}
"""The stages of ZeRO that come nearest to other ways of sharing the states; stage 1 of one GPU shares nothing."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def turned(table: Mapping[K, V], last: bool = False) -> dict[V, K]:
    """What a table of words has for each meaning: the first word, or the last."""
    items = list(table.items()) if last else list(table.items())[::-1]
    return {value: word for word, value in items}


def optimizer(asked: Asked, more: Mapping[str, tuple[str, tuple[tuple[str, Any], ...]]] | None = None) -> str:
    """The Trainer's name for an optimizer and its implementation; of one that it has not, of the nearest."""
    known = {**trainer.OPTIMIZERS, **(more or {})}
    for name in trainer.OF_OLD_RELEASES:
        del known[name]
    wanted = str(asked["optimizer"])
    for word in (wanted, NEAR_OPTIMIZERS.get(wanted.partition(":")[0], ""), wanted.partition("-")[0], "adamw"):
        names = [name for name, (means, _) in known.items() if means == word]
        if names:
            exact = [name for name in names if dict(known[name][1]).get(HOW) == asked[HOW]]
            plain = [name for name in names if HOW not in dict(known[name][1])]
            return (exact or plain or names)[0]
    return next(iter(known))


HOW = "optimizer_implementation"


def put_optimizer(page: Page, key: str, asked: Asked, more: Mapping[str, Any] | None = None) -> None:
    """The optimizer, with the rank of one that projects."""
    word, _, rank = str(asked["optimizer"]).partition(":")
    name = word.replace("-", "_")
    if name in trainer.LOW_RANK_OPTIMIZERS and rank:
        steps_alone = asked["optimizer_in_backward"] and name not in trainer.NO_LAYERWISE
        told = ("optimizer",) if name in trainer.NO_LAYERWISE else ("optimizer", "optimizer_in_backward")
        page.put(key, f"{name}_layerwise" if steps_alone else name, *told)
        page.put("optim_args", f"rank={rank}", "optimizer")
        page.put("optim_target_modules", "all_linear")  # the spelling that Axolotl's schema takes as well
        return
    page.put(key, optimizer(asked, more), "optimizer", HOW)
    if word.startswith("sgd-momentum"):
        page.put("optim_args", "momentum=0.9", "optimizer")


def attention(asked: Asked, names: Mapping[str, str] = trainer.ATTENTIONS) -> str | None:
    """The program's name for the attention; None where the model has none.

    A model whose attention is eager is asked for so by name: Transformers refuses `sdpa` where a model has it not.
    """
    word = asked["attention"]
    if word is None:
        return None
    return "sdpa" if asked.is_sdpa and word != "eager" else turned(names).get(word, "sdpa")


def targets(asked: Asked) -> Any:
    """The layers that have an adapter: `all-linear` alone as a word, else a list."""
    found = list(asked["adapter.targets"] or ())
    return found[0] if found == ["all-linear"] else found


def alpha(asked: Asked) -> int:
    """The factor of an adapter: twice its rank where the job leaves it open, as its papers have it.

    The programs take whole numbers, so of another one it is the nearest.
    """
    value = asked["adapter.alpha"]
    return 2 * int(asked["adapter.rank"] or 8) if value is None else max(1, round(value))


def put_zero(page: Page, asked: Asked, prefix: str = "", *, filled: bool = False) -> None:
    """The settings of DeepSpeed. `filled`: the Trainer fills what it knows itself, so that no two files differ."""
    auto = "auto"
    zero = f"{prefix}zero_optimization"
    half = asked.half
    page.put(f"{prefix}train_micro_batch_size_per_gpu", auto if filled else asked["micro_batch_size"], *BATCH[:1])
    page.put(f"{prefix}gradient_accumulation_steps", auto if filled else asked["gradient_accumulation_steps"], BATCH[1])
    norm = asked["max_gradient_norm"] or 0.0
    page.put(f"{prefix}gradient_clipping", auto if filled else norm, "max_gradient_norm")
    for name in ("bf16", "fp16"):
        if filled or half == name:
            page.put(f"{prefix}{name}.enabled", auto if filled else True, "precision")
    page.put(f"{zero}.stage", STAGES.get(asked.kind, 0) if asked.zero is None else asked.zero, *STATES)
    for name in ("overlap_comm", "contiguous_gradients", "memory_efficient_linear"):
        value = asked[f"parallel.{name}"]
        if value is not None:
            page.put(f"{zero}.{name}", value, f"parallel.{name}")
    for name, key in dict.fromkeys(SIZES.items()):
        if name == key and asked[f"parallel.{key}"] is not None:
            page.put(f"{zero}.{name}", asked[f"parallel.{key}"], f"parallel.{key}")
    for name, part in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if asked.offloads(part):
            device = asked[f"parallel.offload_{part}_device"] or "cpu"
            page.put(f"{zero}.{name}.device", device, "offload", f"parallel.offload_{part}_device")
            if device == "nvme":
                page.yours(f"{zero}.{name}.nvme_path", "/local_nvme")
    if (asked["parallel.tensor"] or 1) > 1:
        page.put(f"{prefix}tensor_parallel.autotp_size", asked["parallel.tensor"], "parallel.tensor")


BATCH = ("micro_batch_size", "gradient_accumulation_steps")
