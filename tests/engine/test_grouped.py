"""Attention that no fused kernel takes: fewer key-value heads than heads, without a mask, where flash cannot run."""

from __future__ import annotations

import pytest

from tests.engine.examples import model, setup
from vramplan.replay.checkpoints import ALTERNATE_MATMULS, MATMULS
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.tensors import ALLOCATOR_BLOCK_BYTES

HEADS, GROUPS, LENGTH = 4, 2, 64
TYPES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "glm", "gemma3_text", "olmo2", "starcoder2")


def grouped(of: str, **fields: object) -> Setup:
    shape = model(of, attention_heads=HEADS, key_value_heads=GROUPS, hidden_size=32, head_size=8, sliding_window=None)
    return setup(shape, attention="math", sequence_length=LENGTH)._replace(**fields)


@pytest.mark.sweep(8)
@pytest.mark.contract
@pytest.mark.parametrize("keeps", ["all", "none", MATMULS, ALTERNATE_MATMULS])
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "pure-bf16"])
@pytest.mark.parametrize("of", TYPES)
def test_a_quick_replay_is_that_of_every_block(of: str, precision: str, keeps: str) -> None:
    part = grouped(of, precision=precision)
    selects = keeps if keeps in (MATMULS, ALTERNATE_MATMULS) else None
    segments = tuple(one._replace(checkpointed=keeps != "all", selects=selects) for one in part.segments)
    part = part._replace(segments=segments)
    for batch in (1, 2, 3):
        quick, direct = replay(part, batch=min(batch, 2)), replay(part, batch=batch, direct=True)
        assert quick.peaks(batch) == direct.peaks(batch)


@pytest.mark.closed_form
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_each_block_keeps_its_probabilities_in_fp32(precision: str) -> None:
    """What the softmax and the product behind it save is one matrix of the scores of a sample, 4 B S^2 a bytes."""
    scores = 4 * HEADS * LENGTH * LENGTH
    assert not scores % ALLOCATOR_BLOCK_BYTES
    for batch in (1, 3):
        records = [
            replay(grouped("llama", precision=precision, attention=kernel), batch=batch, direct=True)
            for kernel in ("math", "efficient")
        ]
        kept = [
            {one: times for one, times in record.kept().items() if record.sizes(batch)[one] == batch * scores}
            for record in records
        ]
        layers = 2
        assert sum(kept[0].values()) - sum(kept[1].values()) == layers
