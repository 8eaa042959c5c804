"""EleutherAI's calculator of the memory of a transformer.

Source: EleutherAI/cookbook, calc/calc_transformer_mem.py, calc_mem, commit 069ae2e. Its defaults are those of the
script: gradients in fp32, buckets of ZeRO of 5e8 elements, 1e9 gathered parameters of stage 3.
"""

from __future__ import annotations

from fractions import Fraction

from tests.textbook.peers import Figures, Run, Transformer, up

HALF_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
ALL_GATHER_BUCKET = 500_000_000  # elements
MAX_LIVE_PARAMETERS = 1_000_000_000  # elements, of stage 3


def parameters(model: Transformer, sequence_length: int) -> int:
    """The embedding counted twice, a position for each token of a sequence, norms with bias, no other bias."""
    h = model.hidden_size
    embeddings = 2 * model.vocabulary_size * h + h * sequence_length
    norms = 8 * h * model.layers + 2 * h
    matrices = 3 if model.gated else 2
    return embeddings + norms + model.layers * (4 * h * h + matrices * h * model.intermediate_size)


def report(
    model: Transformer,
    run: Run,
    *,
    zero_stage: int = 1,
    checkpointed: bool = False,
    partitioned: bool = False,
    gradient_bytes: int = GRADIENT_BYTES,
) -> Figures:
    """What the script says of one of all devices in half precision with an fp32 copy of the weights.

    Tensor and pipeline parallelism divide the weights alone; ZeRO divides by all devices, not by the data-parallel
    ones. Checkpointed, a block keeps 34sbh, which is what selective recomputation keeps; else 5as^2 b more. A pipeline
    changes nothing of the activations, and tensor parallelism divides them with `partitioned` alone (ZeRO-R).
    """
    count = parameters(model, run.sequence_length)
    devices = run.tensor * run.pipeline * run.data
    weights = Fraction(count * HALF_BYTES, run.tensor * run.pipeline)
    gradients, optimizer, buffers = Fraction(count * gradient_bytes), Fraction(count * OPTIMIZER_BYTES), 0
    if zero_stage >= 1:
        optimizer /= devices
        buffers += ALL_GATHER_BUCKET * HALF_BYTES if devices > 1 else 0
    if zero_stage >= 2:
        gradients /= devices
    if zero_stage == 3:
        weights /= devices
        buffers += MAX_LIVE_PARAMETERS * HALF_BYTES if devices > 1 else 0
    saved = 34 * run.tokens * model.hidden_size * model.layers
    if not checkpointed:
        saved += 5 * run.tokens * model.attention_heads * run.sequence_length * model.layers
    activations = Fraction(saved, run.tensor if partitioned else 1)
    return Figures(up(weights), up(gradients), up(optimizer), up(activations), buffers)
