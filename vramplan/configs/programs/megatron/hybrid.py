"""The model that a pattern of blocks means: Megatron's `--hybrid-layer-pattern`, a letter for each block.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), core/models/hybrid/hybrid_layer_allocation.py (letters),
core/transformer/transformer_config.py (defaults of `mamba_*`), core/ssm/mamba_mixer.py (heads, where none are given).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPACE, ATTENTION, FEEDFORWARD, EXPERTS = "M", "*", "-", "E"
BETWEEN = "|"  # of the parts of a pipeline
BEHIND = "/"  # before blocks that predict further tokens
FAMILY = "nemotron_h"
USUAL_VOCABULARY_SIZE = 131072  # of the tokenizer of Nemotron-H
KEYS = {
    "heads": "mamba_num_heads",
    "head_size": "mamba_head_dim",
    "state_size": "mamba_state_dim",
    "groups": "mamba_num_groups",
}
"""Arguments of the state spaces."""

MIXTURE = {
    "count": "num_experts",
    "active": "moe_router_topk",
    "intermediate_size": "moe_ffn_hidden_size",
    "shared_intermediate_size": "moe_shared_expert_intermediate_size",
    "latent_size": "moe_latent_size",
}
"""Arguments of the experts."""

USUAL = {"head_size": 64, "state_size": 128, "groups": 8}
EXPANDED = 2  # elements of all heads to those of the hidden state


def blocks_of(pattern: str) -> str | None:
    """A letter for each block; None where some are of another kind."""
    blocks = pattern.strip().strip("'\"").partition(BEHIND)[0].replace(BETWEEN, "")
    return blocks if blocks and not {*blocks} - {SPACE, ATTENTION, FEEDFORWARD, EXPERTS} else None


def shape_of(
    blocks: str, sizes: Mapping[str, Any], space: Mapping[str, int | None], mixture: Mapping[str, int | None]
) -> dict[str, Any]:
    """A model of these blocks; `space` has what is given of its state spaces, `mixture` of its experts."""
    own = {name: space.get(name) or usual for name, usual in USUAL.items()}
    heads = space.get("heads") or EXPANDED * int(sizes["hidden_size"]) // own["head_size"]
    shape: dict[str, Any] = {"family": FAMILY, "layers": len(blocks), **sizes}
    inner = EXPANDED * heads * own["head_size"] + 2 * own["groups"] * own["state_size"] + heads
    width = int(sizes["hidden_size"])
    of_attention = 2 * width * sizes["head_size"] * (sizes["attention_heads"] + sizes["key_value_heads"])
    each = {
        SPACE: width * inner + heads * own["head_size"] * width,
        ATTENTION: of_attention,
        FEEDFORWARD: 2 * width * sizes["intermediate_size"],
    }
    if EXPERTS in blocks:
        experts: dict[str, Any] = {"intermediate_size": sizes["intermediate_size"], "active": 2}
        experts |= {"normalized": True, "groups": 1, "active_groups": 1}
        experts |= {name: size for name, size in mixture.items() if size}
        experts["dense_layers"] = [i for i, one in enumerate(blocks) if one != EXPERTS]
        experts.setdefault("shared_intermediate_size", experts["intermediate_size"])
        each[EXPERTS] = 2 * width * experts["shared_intermediate_size"]
        each[EXPERTS] += 2 * experts.get("latent_size", width) * experts["intermediate_size"] * experts.get("count", 1)
        shape["experts"] = experts
    shape["name"] = f"{FAMILY}-{sum(each[one] for one in blocks) / 1e9:.1f}b"
    shape["state_space"] = {
        "heads": heads,
        **own,
        "layers": [i for i, one in enumerate(blocks) if one == SPACE],
        "feedforward_layers": [i for i, one in enumerate(blocks) if one in (FEEDFORWARD, EXPERTS)],
    }
    return shape
