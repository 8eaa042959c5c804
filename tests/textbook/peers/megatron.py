"""Megatron-LM's report of theoretical memory, which a run prints beside what it measures.

Source: NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py, compute_weight_and_optimizer_memory,
compute_activation_memory and compute_activation_memory_without_sp: dense models as of commit 00caa53,
experts as tests/unit_tests/training/test_weight_and_optimizer_memory.py (commit f5f64ed) and
test_activation_memory.py (commit f399823) define them.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from tests.textbook.peers import Figures, Run, Transformer, interleaving, up

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
"""Of each parameter: bf16, fp32 (`main_grad`), and an fp32 copy with both moments of Adam: 18, or 6 + 12/N."""

OVERHEAD = Fraction(21, 20)
"""Times all activations without sequence parallelism, "for optimizer and miscellaneous temporaries"."""

RECOMPUTABLE = ("core_attn", "mlp", "moe", "moe_act", "shared_experts")
"""Modules of `--recompute-modules` that the report knows; core_attn is always taken as recomputed."""


class Experts(NamedTuple):
    """Routed experts, which replace the MLP of some blocks."""

    experts: int
    chosen: int  # by each token
    intermediate_size: int
    layers: int  # blocks that have them
    shared_intermediate_size: int = 0  # of the expert that every token goes to
    latent_size: int | None = None  # width that tokens are projected to for the routed experts
    expert_parallel: int = 1
    expert_tensor: int = 1


class Shard(NamedTuple):
    """Parameters on the most loaded device, by how devices share them."""

    split: Fraction  # over the devices of tensor parallelism
    whole: Fraction  # the same on each of them
    experts: Fraction  # over those of expert and expert-tensor parallelism

    @property
    def total(self) -> Fraction:
        """Their sum."""
        return self.split + self.whole + self.experts


def shard(model: Transformer, run: Run, experts: Experts | None = None, key_value_heads: int | None = None) -> Shard:
    """Parameters of the first stage: its blocks and the embedding; the head too, if it is apart and there is one stage.

    No biases but those of the norms. Without experts every parameter is divided by t, the norms too (commit 00caa53);
    with them the norms and routers are whole (commit f5f64ed).
    """
    h, t, p = model.hidden_size, run.tensor, run.pipeline
    norm = h if model.rms_norm else 2 * h
    matrices = 3 if model.gated else 2
    groups = model.attention_heads if key_value_heads is None else key_value_heads
    attention = 2 * h * h * (1 + Fraction(groups, model.attention_heads))
    embedding = h * model.vocabulary_size
    ends = embedding if model.tied_embeddings or p > 1 else 2 * embedding
    dense = model.layers - (0 if experts is None else experts.layers)
    split = dense * (attention + matrices * h * model.intermediate_size)
    norms = model.layers * 2 * norm + norm
    if experts is None:
        return Shard((Fraction(split + norms) / p + ends) / t, Fraction(0), Fraction(0))
    inner = h if experts.latent_size is None else experts.latent_size
    projections = 0 if experts.latent_size is None else 2 * h * experts.latent_size
    split += experts.layers * (attention + matrices * h * experts.shared_intermediate_size)
    norms += experts.layers * (h * experts.experts + projections)
    routed = experts.layers * experts.experts * matrices * inner * experts.intermediate_size
    return Shard(
        (Fraction(split) / p + ends) / t,
        Fraction(norms, p),
        Fraction(routed, p * experts.expert_parallel * experts.expert_tensor),
    )


def states(held: Shard, *, data: int, distributed_optimizer: bool, expert_data: int | None = None) -> Figures:
    """Bytes of weights, gradients and optimizer: 18 for each parameter, or 6 + 12/N with the distributed optimizer.

    `data` devices share the states of what is not an expert, `expert_data` those of the experts.
    """
    one, other = (data, expert_data or data) if distributed_optimizer else (1, 1)
    stepped = (held.split + held.whole) / one + held.experts / other
    optimizer = up(OPTIMIZER_BYTES * stepped)
    return Figures(up(WEIGHT_BYTES * held.total), up(GRADIENT_BYTES * held.total), optimizer, 0)


def in_flight(run: Run) -> Fraction:
    """Of the activations of a whole pipeline, what is kept: less if it is not filled, more if it is interleaved."""
    if run.virtual > 1:
        return interleaving(run)
    if run.micro_batches is None:
        return Fraction(1)
    return min(Fraction(1), Fraction(run.micro_batches, run.pipeline))


def _embedding_bytes(model: Transformer, run: Run) -> int:
    """Token ids in int64 and the mask of the dropout after them, of each micro-batch in flight."""
    return (8 + model.hidden_size) * run.tokens * run.pipeline


def activations_with_sequence_parallelism(
    model: Transformer,
    run: Run,
    *,
    counts_gate: bool = True,
    experts: Experts | None = None,
    recomputed: tuple[str, ...] = ("core_attn",),
) -> int:
    """Activations with sequence parallelism and selective recomputation, all divided by t: 34sbh of a block.

    Of each block 18sbh, and of its MLP the widened tokens before and after the activation, in 2 bytes; the widened
    tokens twice where there is a gate, which commit 00caa53 does not count (`counts_gate=False`). With one stage also
    the inputs of the head and of the loss, in 4 bytes: 4sbh(1 + V/h).
    """
    h, tokens = model.hidden_size, run.tokens
    before = 2 if model.gated and counts_gate else 1

    def widened(width: int, *, activated: bool = True) -> int:
        return 2 * width * (before + (1 if activated else 0))

    moe = 0 if experts is None else experts.layers
    mlp = 0 if "mlp" in recomputed else tokens * widened(model.intermediate_size)
    total = Fraction(model.layers * 18 * tokens * h + (model.layers - moe) * mlp)
    if experts is not None and "moe" not in recomputed:
        inner = h if experts.latent_size is None else experts.latent_size
        copies = experts.chosen * tokens
        if "shared_experts" not in recomputed:
            total += moe * tokens * widened(experts.shared_intermediate_size)
        total += moe * 4 * copies * inner * experts.expert_tensor
        total += moe * copies * widened(experts.intermediate_size, activated="moe_act" not in recomputed)
    total = (total + _embedding_bytes(model, run)) * in_flight(run)
    if run.pipeline == 1:
        total += 4 * tokens * (h + model.vocabulary_size)
    return up(total / run.tensor)


def activations_without_sequence_parallelism(model: Transformer, run: Run) -> int:
    """Activations of every other run, whatever it recomputes: sbh(10 + 24/t) of a block, and 5 % more of all.

    With one stage also the logits and the output of the last norm, in 2 bytes. The width of the MLP is taken as 4h.
    """
    h, tokens = model.hidden_size, run.tokens
    total = Fraction(model.layers * tokens * h) * (10 + Fraction(24, run.tensor))
    total = (total + _embedding_bytes(model, run)) * in_flight(run)
    if run.pipeline == 1:
        total += 2 * tokens * (h + Fraction(model.vocabulary_size, run.tensor))
    return up(total * OVERHEAD)


def report(model: Transformer, run: Run, *, distributed_optimizer: bool = False, selective: bool = False) -> Figures:
    """What the report says of a dense model: which activations it takes depends on two flags alone."""
    found = states(shard(model, run), data=run.data, distributed_optimizer=distributed_optimizer)
    if run.sequence_parallel and selective:
        saved = activations_with_sequence_parallelism(model, run, counts_gate=False)
    else:
        saved = activations_without_sequence_parallelism(model, run)
    return found._replace(activations=saved)
