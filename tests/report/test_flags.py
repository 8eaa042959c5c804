"""Job keys as options."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramplan.options.flags import arguments_of, flags_of, quoted


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        ({"micro_batch_size": 2}, "--micro-batch 2"),
        ({"sequence_length": 512}, "--seq 512"),
        ({"activation_checkpointing": "full"}, "--checkpointing full"),
        ({"activation_checkpointing": "layers:[[0,6]]"}, "--checkpointing 'layers:[[0,6]]'"),
        ({"optimizer_implementation": "fused"}, "--optimizer-implementation fused"),
        ({"precision": "pure-bf16", "optimizer": "adafactor"}, "--precision pure-bf16 --optimizer adafactor"),
        ({"attention": "efficient", "gpu": "h100"}, "--attention efficient --gpu h100"),
        ({"hold_outputs": False}, "--no-hold-outputs"),
        ({"compile": True}, "--compile"),
        (
            {"global_batch_size": 64, "gradient_accumulation_steps": 8},
            "--global-batch 64 --gradient-accumulation-steps 8",
        ),
        ({"parallel": {"data": 4, "sharding": "fsdp"}}, "--gpus 4 --sharding fsdp"),
        ({"parallel": {"sequence_parallel": True}}, "--sequence-parallel"),
        ({"adapter": {"kind": "lora", "rank": 16, "targets": ["q", "v"]}}, "--lora --rank 16 --targets q,v"),
        ({"gpu": {"name": "h100", "memory": "80 GiB"}}, "--gpu h100"),
        ({"reserve": "2 GiB"}, "--reserve '2 GiB'"),
        ({"offload": ["optimizer", "activations"]}, "--offload optimizer,activations"),
        (
            {"adapter": {"kind": "lora", "dropout": 0.1, "dtype": "bf16", "modules_to_save": ["norm"]}},
            "--lora --adapter-dropout 0.1 --adapter-dtype bf16 --modules-to-save norm",
        ),
        ({"quantization": None}, "--quantization null"),
        ({}, ""),
    ],
)
def test_a_change_becomes_options(change: dict[str, Any], flags: str) -> None:
    assert flags_of(change) == flags
    assert shlex.split(flags) == arguments_of(change)


@given(st.text())
def test_a_quoted_word_is_read_back_by_a_shell(word: str) -> None:
    assert shlex.split(quoted(word)) == [word]
