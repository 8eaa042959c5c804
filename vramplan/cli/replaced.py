"""Keys that files of training programs say and that mean nothing beside an option that replaces another key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.options import table, words

SHARDING, PRECISION, LOSS = "parallel.sharding", "precision", "loss"
WEIGHTS, PURE = "weight_dtype", "pure-"  # whose weights are of the type that it computes in
MASTER = "mixed-"
SCALED = ("amp-fp16", "fsdp-fp16", "auto")  # whose loss torch.amp.GradScaler scales
CHECKPOINTS, SELECTIVE_OP, PRODUCTS = "activation_checkpointing", "selective-op", "every_second_matmul"
REFERENCE, ADAPTER_OFF = "dpo_reference", "adapter-off"
OF_MASTER_COPIES = ("zero", "distributed-optimizer")
OF_FSDP, HALVES = ("fsdp", "fsdp-grad-op", "hsdp:N"), ("bf16", "fp16")


def meaningless(files: Mapping[str, Any], typed: Mapping[str, Any]) -> frozenset[str]:
    """Keys of the files that belong to a value which an option replaces: those of FSDP where `--sharding zero3` is
    typed, the rank of an adapter that `--adapter null` takes away, the reference model of another loss, what
    selective checkpoints keep where others are asked for.

    Both have dotted keys. A key that is typed itself stays, and is judged with the rest of the job.
    """
    found: set[str] = set()
    for group, head in table.HEADS.items():
        if f"{group}.{head}" in typed and typed[f"{group}.{head}"] is None:
            found |= {key for key in files if key.startswith(f"{group}.")}
    if SHARDING in typed:
        kind = words.pattern_word(str(typed[SHARDING]))
        rows = {row.key: row.sharding for row in table.TABLE if row.sharding}
        found |= {key for key in files if key in rows and kind not in rows[key]}
    if str(typed.get(PRECISION)).startswith(PURE):
        found.add(WEIGHTS)
    copies = str(typed.get(SHARDING)).startswith(OF_MASTER_COPIES)  # whose program scales the loss by itself
    if copies and str(precision_for(files, typed)).startswith(MASTER):  # which casts whatever was loaded
        found.add(WEIGHTS)
    if copies or (typed.get(PRECISION) is not None and typed[PRECISION] not in SCALED):
        found.add("grad_scaler")
    if CHECKPOINTS in typed and typed[CHECKPOINTS] != SELECTIVE_OP:
        found.add(PRODUCTS)
    if typed.get(LOSS) is not None and typed[LOSS] not in words.REFERENCED_LOSSES:
        found.add(REFERENCE)
    if "adapter.kind" in found and files.get(REFERENCE) == ADAPTER_OFF:
        found.add(REFERENCE)
    return frozenset(key for key in found & files.keys() if key not in typed)


def precision_for(files: Mapping[str, Any], typed: Mapping[str, Any]) -> str | None:
    """The precision of the files under a sharding that is typed; None where it stays as it is.

    One setting of a program, as `bf16: true`, is autocast under DDP, FSDP's own policy, or DeepSpeed's copy of fp32.
    """
    prefix, _, half = str(files.get(PRECISION)).partition("-")
    if SHARDING not in typed or PRECISION in typed or half not in HALVES:
        return None
    before, kind = str(files.get(SHARDING)), words.pattern_word(str(typed[SHARDING]))
    if prefix not in ("fsdp", "amp") and not (prefix == "mixed" and before.startswith("zero")):
        return None
    under = "fsdp" if kind in OF_FSDP else "mixed" if kind.startswith(OF_MASTER_COPIES) else "amp"
    return None if under == prefix else f"{under}-{half}"
