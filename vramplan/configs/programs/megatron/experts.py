"""The experts of a Megatron command: how many, how wide, in which blocks, and how many tokens each takes.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py (`moe_freq_type`),
core/models/gpt/gpt_layer_specs.py; deepspeedai/Megatron-DeepSpeed main (4efb479d), megatron/arguments.py and
megatron/model/transformer.py (`get_num_experts_per_layer`); deepspeed 0.19.8, deepspeed/moe/{layer,sharded_moe}.py
(an expert takes its capacity, whatever was chosen; `residual` is a feed-forward layer that every token passes).
"""

from __future__ import annotations

import ast
from typing import Any

from vramplan.configs.programs.megatron.asked import MegatronMeaning

INTERVAL = 2  # Megatron-DeepSpeed: of so many blocks the last one has experts
CAPACITY = 1.0  # Megatron-DeepSpeed: of an expert over the mean
LONGEST = 4096  # blocks of a list that is written as a sum of lists


def are_deepspeeds(asked: MegatronMeaning) -> bool:
    """Whether the layer is DeepSpeed's."""
    return bool(asked.sheet.flag("deepspeed"))


def count_of(asked: MegatronMeaning) -> int | None:
    """Experts of a block; the most of them, where Megatron-DeepSpeed's pyramid has a number for each block."""
    text = asked.sheet.text("num_experts") or ""
    numbers = [int(word) for word in text.split() if word.isdecimal()]
    if len(numbers) > 1 and len(set(numbers)) > 1:
        asked.meaning.lack("num_experts", f"{text}, and every block is counted with {max(numbers)}")
    return max(numbers) if len(numbers) > 1 else asked.count("num_experts")


def mixture_of(asked: MegatronMeaning, count: int, inner: int, layers: int) -> dict[str, Any]:
    """The mixture in the words of a model."""
    sheet = asked.sheet
    mixture: dict[str, Any] = {"count": count, "active": asked.count("moe_router_topk")}
    mixture["active"] = asked.count("topk") or mixture["active"]
    mixture["intermediate_size"] = asked.count("moe_ffn_hidden_size") or inner
    shared = asked.count("moe_shared_expert_intermediate_size")
    dense = _without(asked, layers)
    if are_deepspeeds(asked):
        mixture["active"] = asked.count("topk") or 1
        shared = inner if sheet.text("mlp_type") == "residual" else None
        interval = asked.count("expert_interval") or INTERVAL
        dense = [number for number in range(layers) if (number + 1) % interval]
    if shared:
        mixture |= {"shared": 1, "shared_intermediate_size": shared}
    if dense:
        mixture["dense_layers"] = dense
    return mixture


def _without(asked: MegatronMeaning, layers: int) -> list[int]:
    """Blocks without experts, by `--moe-layer-freq`: every so many have some, or a list says which."""
    text = asked.sheet.text("moe_layer_freq")
    if text is None:
        return []
    if text.isdecimal():
        every = int(text) or 1
        return [number for number in range(layers) if number % every]
    try:
        found = _listed(ast.parse(text.strip("'\""), mode="eval").body)
    except (SyntaxError, ValueError):
        found = None
    if found is None or len(found) != layers:
        asked.meaning.lack("moe_layer_freq", f"{text}, and every block is counted with experts")
        return []
    return [number for number, one in enumerate(found) if not one]


def _listed(node: ast.expr) -> list[int] | None:
    """`[0]*3+[1]*58` as the list that it is; None for anything else."""
    if isinstance(node, ast.List):
        found = [one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, int)]
        return found if len(found) == len(node.elts) else None
    if not isinstance(node, ast.BinOp):
        return None
    if isinstance(node.op, ast.Add):
        left, right = _listed(node.left), _listed(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant) and isinstance(node.right.value, int):
        left = _listed(node.left)
        return None if left is None or len(left) * node.right.value > LONGEST else left * node.right.value
    return None


def capacity(asked: MegatronMeaning) -> None:
    """Say how many tokens an expert takes."""
    sheet, meaning = asked.sheet, asked.meaning
    key = "moe_expert_capacity_factor"
    factor, pads = sheet.number(key), bool(sheet.flag("moe_pad_expert_input_to_capacity"))
    if are_deepspeeds(asked) and (count_of(asked) or 1) > 1 and not sheet.flag("disable_moe_token_dropping"):
        key = "moe_train_capacity_factor"
        factor, pads = sheet.number(key, CAPACITY), True
    if factor:
        meaning.say("expert_capacity_factor", factor, key)
        if pads:
            meaning.say("expert_pad_to_capacity", True, "moe_pad_expert_input_to_capacity", key)
