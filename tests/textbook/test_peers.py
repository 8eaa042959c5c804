"""CLOSED FORM. Other planners' arithmetic, against their own tests and what they print.

Printed by Megatron-LM at commit d98e8a6, the cookbook at 827ee3b and Calculon at caa4b11, with the same formulas as the
commits that the modules name.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.textbook.peers import Figures, Run, Transformer, calculon, cookbook, interleaving, megatron

pytestmark = pytest.mark.closed_form

GIB, MIB = 2**30, 2**20
GPT2_XL = Transformer(48, 1600, 25, 6400, 50257)
LLAMA_2_7B = Transformer(32, 4096, 32, 11008, 32000, gated=True, rms_norm=True, tied_embeddings=False)
GPT3_175B = Transformer(96, 12288, 96, 49152, 51200)


def in_mib(size: int) -> float:
    return round(size / MIB, 2)


def in_gib(figures: Figures) -> tuple[float, ...]:
    return tuple(round(size / GIB, 3) for size in figures)


# ------------------------------------------------ Megatron-LM: tests/unit_tests/training/test_activation_memory.py

TOY = Transformer(2, 4, 1, 16, 32)
TOY_RUN = Run(8, 2)
TOY_EXPERTS = megatron.Experts(experts=4, chosen=2, intermediate_size=8, layers=1, shared_intermediate_size=4)
TOKENS = 16  # 8 x 2
HIDDEN = TOKENS * 4
ENDS = 8 * TOKENS + HIDDEN + 4 * HIDDEN * (1 + 32 // 4)


def toy(experts: megatron.Experts | None = TOY_EXPERTS, run: Run = TOY_RUN, *recomputed: str) -> int:
    kept = ("core_attn", *recomputed)
    return megatron.activations_with_sequence_parallelism(TOY, run, experts=experts, recomputed=kept)


def test_a_dense_toy_keeps_34sbh() -> None:
    assert toy(None) == 2 * 34 * HIDDEN + ENDS


def test_a_toy_of_experts_keeps_what_it_routes() -> None:
    dense, moe = 18 * HIDDEN + TOKENS * 4 * 16, 18 * HIDDEN + TOKENS * 4 * 4
    dispatched, widened = 4 * 2 * TOKENS * 4, 2 * TOKENS * 4 * 8
    assert toy() == dense + moe + dispatched + widened + ENDS


def test_each_more_expert_of_a_token_adds_the_same() -> None:
    one, two, four = (toy(TOY_EXPERTS._replace(chosen=chosen)) for chosen in (1, 2, 4))
    assert (two - one, four - two) == (4 * TOKENS * 4 + TOKENS * 4 * 8, 2 * (4 * TOKENS * 4 + TOKENS * 4 * 8))


def test_expert_parallelism_leaves_activations_and_expert_tensor_repeats_the_dispatched() -> None:
    assert {toy(TOY_EXPERTS._replace(expert_parallel=size)) for size in (1, 2, 8, 64)} == {toy()}
    assert toy(TOY_EXPERTS._replace(expert_tensor=2)) - toy() == 4 * 2 * TOKENS * 4


def test_tensor_parallelism_divides_every_term() -> None:
    assert toy(TOY_EXPERTS, TOY_RUN._replace(tensor=4)) * 4 == toy()


def test_a_gate_widens_every_mlp_once_more() -> None:
    gated = TOY._replace(gated=True)
    extra = 2 * (TOKENS * 16 + TOKENS * 4 + 2 * TOKENS * 8)
    assert megatron.activations_with_sequence_parallelism(gated, TOY_RUN, experts=TOY_EXPERTS) - extra == toy()


@pytest.mark.parametrize(
    ("module", "dropped"),
    [
        ("shared_experts", TOKENS * 4 * 4),
        ("moe_act", 2 * TOKENS * 2 * 8),
        ("moe", TOKENS * 4 * 4 + 4 * 2 * TOKENS * 4 + 2 * TOKENS * 4 * 8),
        ("mlp", TOKENS * 4 * 16),
    ],
)
def test_what_is_recomputed_is_not_kept(module: str, dropped: int) -> None:
    assert module in megatron.RECOMPUTABLE
    assert toy() - toy(TOY_EXPERTS, TOY_RUN, module) == dropped


def test_latent_experts_are_sent_narrow_tokens() -> None:
    assert toy() - toy(TOY_EXPERTS._replace(latent_size=2)) == 4 * 2 * TOKENS * (4 - 2)


# ----------------------------------- Megatron-LM: tests/unit_tests/training/test_weight_and_optimizer_memory.py

MIXED = Transformer(2, 8, 2, 16, 32, rms_norm=True)
MIXED_EXPERTS = megatron.Experts(
    experts=4,
    chosen=1,
    intermediate_size=16,
    layers=1,
    shared_intermediate_size=8,
    expert_parallel=2,
    expert_tensor=4,
)


def test_states_of_a_toy_with_experts() -> None:
    held = megatron.shard(MIXED, Run(1, 1, tensor=2, pipeline=2), MIXED_EXPERTS)
    split, whole, routed = ((256 + 256 + 256 + 128) / 2 + 256) / 2, (16 + 16 + 32 + 8) / 2, 1024 / 2 / (4 * 2)
    assert [float(part) for part in held] == [split, whole, routed]
    found = megatron.states(held, data=16, distributed_optimizer=True, expert_data=4)
    assert found.total == (split + whole) * (6 + 12 / 16) + routed * (6 + 12 / 4) == 3195


def test_states_of_a_toy_shrink_with_tensor_and_expert_parallelism() -> None:
    def total(run: Run, experts: megatron.Experts, *, distributed: bool, expert_data: int) -> int:
        held = megatron.shard(MIXED, run, experts)
        return megatron.states(held, data=16, distributed_optimizer=distributed, expert_data=expert_data).total

    alone = MIXED_EXPERTS._replace(expert_parallel=1, expert_tensor=1)
    sizes = [total(Run(1, 1, tensor=t), alone, distributed=False, expert_data=16 * t) for t in (1, 2, 4)]
    assert sizes[0] > sizes[1] > sizes[2]
    parts = ((1, 1), (2, 1), (2, 2), (4, 2))
    sizes = [
        total(
            Run(1, 1, tensor=2),
            MIXED_EXPERTS._replace(expert_parallel=ep, expert_tensor=etp),
            distributed=True,
            expert_data=32 // (ep * etp),
        )
        for ep, etp in parts
    ]
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]


# ------------------------------------------------------------------------- Megatron-LM: figures that it prints


@pytest.mark.parametrize(
    ("vocabulary", "states", "total"),
    [
        (50257, 26698.18, 29483.67),  # its functions, called
        (50304, 26699.47, 29485.06),  # printed by a run, which pads the vocabulary
    ],
)
def test_megatron_prints_of_gpt2_xl(vocabulary: int, states: float, total: float) -> None:
    found = megatron.report(GPT2_XL._replace(vocabulary_size=vocabulary), Run(1024, 1))
    assert in_mib(found.total - found.activations) == states
    assert in_mib(found.total) == total


def test_megatron_prints_of_selective_recomputation() -> None:
    one, many = (megatron.report(GPT2_XL, Run(1024, b, sequence_parallel=True), selective=True) for b in (1, 32))
    assert (in_mib(one.activations), in_mib(many.total)) == (2754.14, 114830.55)


def test_megatron_prints_of_llama_2_7b_with_the_distributed_optimizer() -> None:
    run = Run(4096, 1, data=8, sequence_parallel=True)
    found = megatron.report(LLAMA_2_7B, run, distributed_optimizer=True, selective=True)
    assert (in_mib(found.total - found.activations), in_mib(found.activations)) == (48196.90, 15300.03)


def test_megatron_keeps_less_of_a_pipeline_that_is_not_filled_and_more_of_one_that_is_interleaved() -> None:
    plain = Run(2048, 1, tensor=8, pipeline=8, sequence_parallel=True)
    whole = megatron.activations_with_sequence_parallelism(GPT3_175B, plain)
    half = megatron.activations_with_sequence_parallelism(GPT3_175B, plain._replace(micro_batches=4))
    more = megatron.activations_with_sequence_parallelism(GPT3_175B, plain._replace(virtual=3))
    assert whole == 2 * half
    factor = interleaving(plain._replace(virtual=3))
    assert factor == Fraction(31, 24)
    assert 0 <= more - whole * factor < 1  # whole bytes


def test_megatron_leaves_the_head_to_the_last_stage() -> None:
    """The first of several has an embedding and no head, whether the two are tied or not."""
    one, two = Run(2048, 1), Run(2048, 1, pipeline=2)
    apart = GPT3_175B._replace(tied_embeddings=False)
    assert megatron.shard(apart, two) == megatron.shard(GPT3_175B, two)
    difference = megatron.shard(apart, one).total - megatron.shard(GPT3_175B, one).total
    assert difference == GPT3_175B.hidden_size * GPT3_175B.vocabulary_size


# --------------------------------------------------------------------------------------- EleutherAI's cookbook


def test_the_cookbook_prints_of_gpt2_xl() -> None:
    """With --zero-stage 0 --bytes-per-grad-ele 2."""
    none = cookbook.report(GPT2_XL, Run(1024, 1), zero_stage=0, gradient_bytes=2)
    assert tuple(round(size / GIB, 2) for size in none) == (3.05, 3.05, 18.30, 8.35, 0)
    checkpointed = {
        b: cookbook.report(GPT2_XL, Run(1024, b), zero_stage=0, gradient_bytes=2, checkpointed=True) for b in (1, 32)
    }
    many = cookbook.report(GPT2_XL, Run(1024, 32), zero_stage=0, gradient_bytes=2)
    sizes = (none, checkpointed[1], many, checkpointed[32])
    assert [round(one.total / GIB, 2) for one in sizes] == [32.75, 26.89, 291.59, 104.09]


def test_the_cookbook_prints_of_llama_2_7b_under_zero_3() -> None:
    """With --num-mlp-linears 3 and gradients of 2 bytes."""
    run = Run(4096, 1, data=8)
    found = cookbook.report(LLAMA_2_7B, run, zero_stage=3, checkpointed=True, gradient_bytes=2)
    assert tuple(round(size / GIB, 2) for size in found) == (1.57, 1.57, 9.44, 17.00, 2.79)
    assert round(found.total / GIB, 2) == 32.38


def test_the_cookbook_divides_by_all_devices_what_zero_shares_and_by_the_split_the_weights_alone() -> None:
    run = Run(2048, 1, tensor=8, pipeline=8)
    count = cookbook.parameters(GPT3_175B, 2048)
    whole, shared = cookbook.report(GPT3_175B, run, zero_stage=0), cookbook.report(GPT3_175B, run, zero_stage=2)
    assert (whole.weights, whole.gradients, whole.optimizer) == (-(-count * 2 // 64), count * 4, count * 12)
    assert (shared.gradients, shared.optimizer) == (-(-count * 4 // 64), -(-count * 12 // 64))
    partitioned = cookbook.report(GPT3_175B, run, zero_stage=0, partitioned=True)
    assert partitioned.activations * 8 == whole.activations


# ----------------------------------------------------------------------------------------------------- Calculon


def test_calculon_prints_of_gpt2_xl() -> None:
    found = calculon.report(GPT2_XL, Run(1024, 1))
    assert in_gib(found)[:4] == (2.747, 2.804, 16.483, 8.350)
    sizes = {
        (b, how): calculon.report(GPT2_XL, Run(1024, b), recomputed=how) for b in (1, 32) for how in ("none", "full")
    }
    assert [round(sizes[key].total / GIB, 3) for key in ((1, "none"), (1, "full"), (32, "none"), (32, "full"))] == [
        *(30.564, 22.535, 294.984, 38.050)
    ]


def test_calculon_prints_of_llama_2_7b_with_a_shared_optimizer() -> None:
    found = calculon.report(LLAMA_2_7B, Run(4096, 1, data=8), recomputed="full", shards_optimizer=True)
    assert in_gib(found) == (9.376, 1.721, 7.032, 2.949 + 1.0, 3.012)
    assert round(found.total / GIB, 3) == 25.090


def test_calculons_block_is_the_34sbh_of_the_paper_and_its_scores() -> None:
    """arXiv:2205.05198, equation 1: what a block stores is sbh(34 + 5as/h), and equation 4 with both techniques."""
    run, h = Run(2048, 1), GPT3_175B.hidden_size
    sbh = run.tokens * h

    def stored(split: Run, how: str, **more: bool) -> Fraction | int:
        steps = calculon.block(GPT3_175B, split, how, **more)
        return sum((one.kept if one.stored else 0) - one.dropped_output for one in steps)

    scores = 5 * GPT3_175B.attention_heads * run.sequence_length * run.tokens
    assert stored(run, "none") == 34 * sbh + scores
    shared = run._replace(tensor=8, sequence_parallel=True)
    assert stored(shared, "attn_only", gathers_again=True) == Fraction(34 * sbh, 8)
