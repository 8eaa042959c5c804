"""Which settings are Megatron's, and the YAML of its functional tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.written import Written

DEVICES_OF_THE_TESTS = 8  # tests/test_utils/recipes: one node of 8

UNDECIDED = "_undecided"
"""The key of options that only a branch of a script adds which its caller decides."""

OLD_NAMES = {"use_custom_fsdp": "use_megatron_fsdp"}
"""What options were called. Source: NVIDIA/Megatron-LM of spring 2025, megatron/training/arguments.py."""

ARGUMENT_FILES = ("MODEL_ARGS", "TRAINING_ARGS", "ARGS")


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are Megatron's alone, with or without the dashes that its YAML has."""
    flat = (key for key in keys if "." not in key or key.split(".", 1)[0] in ARGUMENT_FILES)
    names = {key.rsplit(".", 1)[-1].lstrip("-").replace("-", "_") for key in flat}
    own = {"tensor_model_parallel_size", "num_layers", "num_attention_heads", "use_mcore_models", "clip_grad"}
    own |= {"no_load_optim", "lr_decay_iters"} if "program" in names else set()
    return len(names & (own | {"pipeline_model_parallel_size", "max_position_embeddings", "micro_batch_size"}))


def prepared(written: dict[str, Written]) -> dict[str, Written]:
    """Settings themselves, or of the functional tests' `MODEL_ARGS: {--num-layers: 12}`."""
    for old, name in OLD_NAMES.items():
        if old in written and name not in written:
            written = {name if key == old else key: item for key, item in written.items()}
    result: dict[str, Written] = {}
    for key, item in written.items():
        head, _, rest = key.partition(".")
        if head in ARGUMENT_FILES and rest.startswith("--"):
            result[rest[2:].replace("-", "_").lower()] = item
    if not result:
        return written
    result["launcher.nproc_per_node"] = Written(DEVICES_OF_THE_TESTS)
    return result
