"""Calculon's model of a transformer: blocks alone, without embeddings, head or loss, and with the block in work.

Source: calculon-ai/calculon, calculon/llm/llm.py (_build_attn_block, _build_mlp_block, _compute_block_stats,
_compute_batch_stats), commit 0384d1e, and calculon/llm/layers.py, commit 33a5aab: multi-head attention, an activation
that is not fused, and no overlap of communication (`tensor_par_overlap: none`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from tests.textbook.peers import Figures, Run, Transformer, interleaving, up

HALF_BYTES, FULL_BYTES = 2, 4


class Step(NamedTuple):
    """One layer of a block, in bytes."""

    kept: Fraction | int  # of its input, until backward
    gradient: Fraction | int  # of its output
    stored: bool = True
    reused: bool = False  # it is the input of an earlier layer too
    dropped_output: Fraction | int = 0  # an output that is recomputed, and not kept by the layer after


def block(model: Transformer, run: Run, recomputed: str = "none", *, gathers_again: bool = False) -> tuple[Step, ...]:
    """The layers of a block: fork, norm, collective, attention, collective, dropout and sum; the same around the MLP.

    `recomputed` is none, attn_only or full; `gathers_again` repeats the all-gathers of sequence parallelism.
    """
    h, t, two = model.hidden_size, run.tensor, HALF_BYTES
    whole = run.tokens * h
    apart = Fraction(whole, t if run.sequence_parallel else 1)
    part, wide = Fraction(whole, t), Fraction(run.tokens * model.intermediate_size, t)
    scores = Fraction(model.attention_heads * run.sequence_length * run.tokens, t)
    attention = recomputed in ("attn_only", "full")
    first_input, second_input = not (attention or gathers_again), not (recomputed == "full" or gathers_again)
    dropped = scores * two if attention else 0

    def collective(*, ends: bool) -> tuple[Step, ...]:
        """What goes in and out of the devices that share the matrices."""
        if t == 1:
            return ()
        if run.sequence_parallel:
            return (Step(part * two, part * two, stored=not ends),)
        return (Step(whole * two if ends else 0, 0 if ends else whole * two, stored=not ends),)

    enters = (Step(apart * two, 0), Step(apart * two, apart * two, stored=False, reused=True))
    leaves = (Step(apart, apart), Step(2 * apart * two, apart * two, stored=False, reused=True))
    attends = (
        Step(whole * two, 0, stored=first_input),
        *[Step(whole * two, part * two, stored=False, reused=True)] * 3,
        Step(2 * part * two, scores * two, dropped_output=dropped),
        Step(scores * two, scores * two, dropped_output=dropped),
        Step(scores, scores, stored=not attention),
        Step((scores + part) * two, part * two),
        Step(part * two, whole * two),
    )
    widens = (
        Step(whole * two, wide * two, stored=second_input),
        Step(wide * two, wide * two),
        Step(wide * two, whole * two),
    )
    ends, begins = collective(ends=True), collective(ends=False)
    return (*enters, *begins, *attends, *ends, *leaves, *enters, *begins, *widens, *ends, *leaves)


def block_parameters(model: Transformer, run: Run) -> Fraction:
    """Of one block on one device: two norms whole, and the parts of four matrices of attention and two of the MLP."""
    h = model.hidden_size
    return 4 * h + Fraction(4 * h * h + 2 * h * model.intermediate_size, run.tensor)


def report(
    model: Transformer,
    run: Run,
    *,
    recomputed: str = "none",
    shards_optimizer: bool = False,
    gathers_again: bool = False,
) -> Figures:
    """What it says of the first stage.

    Gradients: those of one block in fp32, the others in 2 bytes, shared as the optimizer is. Activations: what the
    block in work holds, and what every other block of each micro-batch in flight has stored, or its input.
    """
    steps = block(model, run, recomputed, gathers_again=gathers_again)
    each, shards = block_parameters(model, run), run.data if shards_optimizer else 1
    blocks = -(-model.layers // run.pipeline)
    working = sum(one.kept for one in steps if not one.reused)
    stored = sum((one.kept if one.stored else 0) - one.dropped_output for one in steps)
    waiting: Fraction | int = run.pipeline if run.micro_batches is None else min(run.micro_batches, run.pipeline)
    if run.virtual > 1:
        waiting = waiting * interleaving(run)
    if recomputed == "full":
        held = working + blocks * waiting * run.tokens * model.hidden_size * HALF_BYTES
    else:
        held = working + stored * (blocks * waiting - 1)
    return Figures(
        weights=up(blocks * each * HALF_BYTES),
        gradients=up(each * FULL_BYTES + (blocks - 1) * each * HALF_BYTES / shards),
        optimizer=up(blocks * each * 3 * FULL_BYTES / shards),
        activations=up(held),
        other=up(sum(one.gradient for one in steps)),
    )
