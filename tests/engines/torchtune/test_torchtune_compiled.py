"""torchtune's layers, each compiled by itself, inside of checkpoints and beside adapters."""

from __future__ import annotations

import pytest

from vramplan.job.file import build_job
from vramplan.planner import judge
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

LLAMA = {
    "family": "llama",
    "layers": 4,
    "hidden_size": 256,
    "attention_heads": 8,
    "key_value_heads": 4,
    "intermediate_size": 768,
    "vocabulary_size": 1024,
    "max_positions": 512,
    "tied_embeddings": False,
}
LORA = {"adapter": {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj", "o_proj"]}}


def job_of(**keys: object) -> ResolvedJob:
    job = build_job(
        {
            "model": LLAMA,
            "gpu": "h100",
            "sequence_length": 128,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "precision": "pure-bf16",
            "activation_checkpointing": "full",
            "runtime": "torchtune",
            "compile": True,
            **keys,
        }
    )
    assert isinstance(job, ResolvedJob)
    return job


@pytest.mark.sweep(4)
@pytest.mark.parametrize("strategy", ["none", "full"])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        LORA,
        LORA | {"loss": "chunked:4"},
        LORA | {"offload": ["activations"]},
        LORA | {"quantization": "nf4"},
        {"parallel": {"data": 4}, "precision": "pure-bf16"},
    ],
)
def test_one_layer_stands_for_all(strategy: str, accumulation: int, keys: dict[str, object]) -> None:
    if keys.get("offload") and strategy == "none":
        strategy = "full"  # torchtune offloads what checkpoints save
    job = job_of(activation_checkpointing=strategy, gradient_accumulation_steps=accumulation, **keys)
    setup = judge.Judge(job).setup(strategy, accumulation != 1)
    for batch in (1, 3):
        quick, direct = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
        assert quick.peaks(batch) == direct.peaks(batch)
        assert quick.saved_bytes(batch) == direct.saved_bytes(batch)


@pytest.mark.closed_form
def test_a_compiled_layer_keeps_what_its_products_and_its_attention_read() -> None:
    """In 16 bits of each token its input, both norms, query, key, value, attention and what goes out of it.

    Of the inner width there are both products and what the last one reads. Each norm keeps 4 bytes a token, the
    logsumexp 4 bytes a head.
    """
    two, three = (
        replay(judge.Judge(job).setup("none", accumulates=False))
        for job in (job_of(model=LLAMA | {"layers": layers}, activation_checkpointing="none") for layers in (4, 5))
    )
    tokens, hidden, inner, heads = 2 * 128, 256, 768, 8
    kept = three.saved_bytes(2) - two.saved_bytes(2)
    assert kept == tokens * (2 * (8 * hidden + 3 * inner) + 4 * (heads + 2)) + 2 * 512
