"""Closed form: checkpoints of several blocks around units of FSDP compute again what lies between their inputs."""

from __future__ import annotations

import pytest

from vramplan import fit
from vramplan.results import FitResult

pytestmark = [pytest.mark.closed_form, pytest.mark.plain]

BLOCKS, TOKENS, WIDTH, BF16_BYTES = 16, 2 * 2048, 2048, 2
INPUT_BYTES = TOKENS * WIDTH * BF16_BYTES


def of_several(checkpointing: str) -> FitResult:
    return fit(
        model="llama-3.2-1b",
        gpu="h100",
        runtime="litgpt",
        sequence_length=2048,
        micro_batch_size=2,
        gradient_accumulation_steps=1,
        activation_checkpointing=checkpointing,
        parallel={"data": 8, "sharding": "fsdp"},
    )


@pytest.mark.parametrize("blocks", [2, 4])
def test_a_checkpoint_of_several_blocks_keeps_fewer_inputs_and_computes_more(blocks: int) -> None:
    each, several = of_several("full"), of_several(f"every:{blocks}")
    saved = each.peak.allocated_bytes - several.peak.allocated_bytes
    # at the peak, the head's, one input is there for each checkpoint
    assert saved == (BLOCKS - BLOCKS // blocks) * INPUT_BYTES
    assert several.time is not None
    assert each.time is not None
    assert several.time.step_seconds > each.time.step_seconds
